"""The selection of the identity at home: the node, by a certificate, or the bridge's account."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.certificates import signed_certificate
from bridge.home_identity import identity_selection
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS
from tests.bridge.home_identity.signing_home import SUBJECT, World, subjects
from tests.conftest import ClientFor
from tests.fakeapi import Authority, FakeApi, Fault


async def test_account_that_may_act_in_place_of_the_node_does(world: World) -> None:
    async with world.clients() as found:
        assert found.identity == "service-account"
        assert found.home is found.account is world.account
    assert world.requests() == []
    assert "--home-identity node waits for an administrator" in world.reports[-1]


async def test_administrator_approves_after_one_question(world: World) -> None:
    questions: list[str] = []

    async def yes(question: str) -> bool:
        questions.append(question)
        return True

    world.consent = Consent(ask=yes)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.sign_what_is_approved())
        async with world.clients() as found:
            assert found.identity == "node"
            assert found.reason == "home signed its certificate"
    (question,) = questions
    assert "node burst" in question
    assert "kubernetes.io/kube-apiserver-client-kubelet" in question


async def test_administrator_who_declines_leaves_the_account(world: World) -> None:
    async def no(_: str) -> bool:
        return False

    world.consent = Consent(ask=no)
    async with world.clients() as found:
        assert found.identity == "service-account"
    assert "a certificate of the node was not approved" in world.reports[-1]


async def test_home_that_signs_nothing_leaves_the_account(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_selection, "SIGNING_SECONDS", 1)
    world.consent = Consent(assume_yes=True)
    async with world.clients() as found:
        assert found.identity == "service-account"
    assert "has not signed an approved certificate in 1 s" in world.reports[-1]


async def test_option_selects_the_account(world: World) -> None:
    async with world.clients("service-account") as found:
        assert found.identity == "service-account"
    assert world.reports == ["home: the bridge acts as its own account (by --home-identity)"]


async def test_account_with_few_permissions_waits_for_the_nodes_certificate(world: World) -> None:
    world.deny(resource="pods", verb="delete")
    command = "kubectl certificate approve kubelet-client-burst-"

    async def approve_as_reported() -> None:
        await world.api.until(lambda: any(command in line for line in world.reports))
        await world.approve()

    async with asyncio.TaskGroup() as group:
        group.create_task(approve_as_reported())
        async with world.clients() as found:
            assert found.identity == "node"
            assert found.reason == "the credential may not act in its place"
            assert await subjects(found, world) == [SUBJECT, ""]


async def test_bootstrap_credential_requests_the_certificate(world: World) -> None:
    """The account may not request one, and is not needed for it."""
    content = (world.folder / "config").read_text().replace("the account's", "bootstrap")
    world.bootstrap = world.folder / "bootstrap"
    world.bootstrap.write_text(content)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.approve())
        async with world.clients() as found:
            assert found.identity == "node"
            created = world.api.requests("POST", CERTIFICATE_SIGNING_REQUESTS.path())
            assert await subjects(found, world) == [SUBJECT, ""]
    assert [it.authorization for it in created] == ["Bearer bootstrap"]
    assert "was requested by the bootstrap credential" in world.reports[-1]


async def test_stored_certificate_needs_no_approval(world: World) -> None:
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            if not world.requests():
                group.create_task(world.approve())
            async with world.clients("node") as found:
                assert await subjects(found, world) == [SUBJECT, ""]
    assert len(world.requests()) == 1
    assert found.reason == "its certificate is stored"
    (file,) = (world.folder / "certs").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_rejected_stored_certificate_is_replaced(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(world.approve())
        async with world.clients("node"):
            pass
    world.api.fail(Fault(code=401, when=lambda entry: entry.subject == SUBJECT, times=1))
    async with asyncio.TaskGroup() as group:
        group.create_task(world.approve())
        async with world.clients("node") as found:
            assert await subjects(found, world) == [SUBJECT, ""]
    assert len(world.requests()) == 2


async def test_home_without_node_authorizer_permits_nothing_to_the_node(world: World) -> None:
    world.deny(resource="nodes", verb="patch")
    async with asyncio.TaskGroup() as group:
        group.create_task(world.approve())
        with pytest.raises(PreflightError, match="does not run the Node authorizer"):
            async with world.clients("node"):
                pass


async def test_plain_http_has_no_client_certificates(
    home_api: FakeApi, client_for: ClientFor, tmp_path: Path
) -> None:
    account = await client_for(home_api, "home")
    world = World(home_api, Authority(tmp_path), account, tmp_path)
    with pytest.raises(PreflightError, match="cannot be node burst: home's API server has no TLS"):
        async with world.clients("node"):
            pass
    async with world.clients() as found:
        assert found.identity == "service-account"


async def test_missing_permission_to_request_is_named(world: World) -> None:
    world.deny(resource="certificatesigningrequests", verb="create")
    with pytest.raises(PreflightError, match="may not create certificatesigningrequests"):
        async with world.clients("node"):
            pass


@pytest.mark.parametrize("has_ended", [False, True])
async def test_renewed_certificate_is_used_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """The node renews it itself, so that kube-controller-manager approves that; the account
    requests the next one after the end of a certificate."""
    async with asyncio.TaskGroup() as group:
        group.create_task(world.approve())
        async with world.clients("node") as found:
            monkeypatch.setattr(signed_certificate, "renewal_time", lambda begin, *_: begin)
            world.api.clear_log()
            is_renewed = asyncio.Event()
            found.home.credentials.renewed.add(is_renewed.set)
            if has_ended:
                rejected = Fault(code=401, when=lambda it: it.subject == SUBJECT, times=1)
                world.api.fail(rejected)
            renewing = asyncio.create_task(found.keep_renewed())
            await world.approve()
            async with asyncio.timeout(10):
                await is_renewed.wait()
            created = world.api.requests("POST", CERTIFICATE_SIGNING_REQUESTS.path())
            assert created[-1].subject == ("" if has_ended else SUBJECT)
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
