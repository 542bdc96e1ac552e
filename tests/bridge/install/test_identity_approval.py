"""The identity of an installed bridge: the administrator's consent, and the approval."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.consent import NO_CONSENT, Consent
from bridge.certificates.certificate_kinds import CLIENT, SERVING, CertificateKind
from bridge.certificates.signing_request import build_csr, generate_key
from bridge.install import identity_approval, installation_manifests, installer, rollout
from bridge.install.identity_approval import IdentityApproval, NotSignedError
from bridge.install.installation import Installation
from bridge.install.installer import InstallOrder
from bridge.rbac.rbac_manifests import HomePermissions
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    SECRETS,
    Object,
)
from sync.kube.client import KubeClient
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi

WANTED = Installation("far", "image:1", HomePermissions(["far"]))
AS_NODE = replace(WANTED, home_identity="node")
YES = Consent(assume_yes=True)


@dataclass
class World:
    """A home, and its administrator, who installs."""

    api: FakeApi
    home: KubeClient
    reports: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    def consent(self, *, answer: bool) -> Consent:
        async def ask(question: str) -> bool:
            self.questions.append(question)
            return answer

        return Consent(ask=ask)

    def approval(self, consent: Consent) -> IdentityApproval:
        return IdentityApproval(self.home, AS_NODE, consent, self.reports.append)

    def put(self, wanted: Installation) -> None:
        for obj in installation_manifests.render(wanted, "kubeconfig"):
            self.api.put(obj)

    def request(
        self,
        user: str = WANTED.account.user,
        *,
        node: str = "far",
        kind: CertificateKind = CLIENT,
        named: str = "",
    ) -> str:
        """A request of this user; returns its name."""
        made = build_csr(kind, generate_key(), node, [])
        made["spec"]["username"] = user
        if named:
            made["metadata"]["name"] = CLIENT.request_name_prefix(named) + "0123456789"
        self.api.put(made)
        return str(made["metadata"]["name"])

    def approved(self) -> list[str]:
        return [
            it["metadata"]["name"]
            for it in self.api.objects(CERTIFICATE_SIGNING_REQUESTS)
            if (it.get("status") or {}).get("conditions")
        ]


@pytest.fixture
async def world(home_api: FakeApi, client_for: ClientFor) -> World:
    return World(home_api, await client_for(home_api, "home"))


async def selected(world: World, consent: Consent, wanted: Installation = WANTED) -> str:
    found = await identity_approval.select_identity(world.home, wanted, consent, asks=True)
    return found.home_identity


async def test_consent_selects_the_node_after_one_question(world: World) -> None:
    consent = world.consent(answer=True)
    assert await selected(world, consent) == "node"
    world.request()
    await world.approval(consent).step()
    assert len(world.approved()) == 1
    (question,) = world.questions
    assert "act at home as node far" in question


async def test_without_consent_the_choice_is_left_to_the_bridge(world: World) -> None:
    assert await selected(world, world.consent(answer=False)) == "auto"
    assert await selected(world, NO_CONSENT) == "auto"
    assert await selected(world, YES) == "node"
    assert await selected(world, YES, replace(WANTED, home_identity="service-account")) == (
        "service-account"
    )


@pytest.mark.parametrize("resource", ["signers", "certificatesigningrequests"])
async def test_credential_that_may_not_approve_asks_nothing(world: World, resource: str) -> None:
    def authorize(spec: Object) -> bool:
        return bool(spec["resourceAttributes"]["resource"] != resource)

    world.api.api.authorize = authorize
    assert await selected(world, world.consent(answer=True)) == "auto"
    assert not world.questions


async def test_home_without_the_node_authorizer_is_not_offered(world: World) -> None:
    world.api.api.authorize = lambda spec: spec.get("user") != "system:node:far"
    assert await selected(world, world.consent(answer=True)) == "auto"
    assert not world.questions


async def test_stored_certificate_keeps_the_node(world: World) -> None:
    world.put(WANTED)
    namespace, name = WANTED.state_secret
    assert await selected(world, NO_CONSENT) == "auto"
    world.api.update(SECRETS, name, {"data": {"client.pem": "eA=="}}, namespace)
    assert await selected(world, NO_CONSENT) == "node"


async def test_only_the_request_of_the_installations_account_is_approved(world: World) -> None:
    consent = world.consent(answer=True)
    approval = world.approval(consent)
    world.request("system:serviceaccount:team:cluster-bridge-far")
    world.request("system:node:far")
    world.request(node="other", named="far")
    world.request(kind=SERVING)
    await approval.step()
    assert not world.approved()
    own = world.request()
    await approval.step()
    await approval.step()
    assert world.approved() == [own]
    assert world.reports == [f"home: approved certificate signing request {own}"]
    assert len(world.questions) == 1
    assert "SHA-256 of its public key" in world.questions[0]


async def test_declined_request_is_left_to_another_person(world: World) -> None:
    approval = world.approval(world.consent(answer=False))
    world.request()
    for _ in range(2):
        await approval.step()
    assert not world.approved()
    assert len(world.questions) == 1


async def test_approval_without_a_signature_is_an_error(world: World) -> None:
    approval = world.approval(YES)
    name = world.request()
    await approval.step()
    await asyncio.sleep(identity_approval.SIGNING_SECONDS - 1)
    await approval.step()
    await asyncio.sleep(2)
    with pytest.raises(NotSignedError, match="home has not signed"):
        await approval.step()
    world.api.update(CERTIFICATE_SIGNING_REQUESTS, name, {"status": {"certificate": "eA=="}})
    await approval.step()


def _ready(world: World) -> object:
    """A rollout that is over at once, after one look at the requests."""

    async def wait(*_: object, meanwhile: object, **__: object) -> None:
        assert callable(meanwhile)
        await meanwhile()
        world.api.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "far"}, "status": {}}
        )

    return wait


def may_delete_pods(world: World) -> bool:
    (role,) = (
        it
        for it in world.api.objects(CLUSTER_ROLES)
        if it["metadata"]["name"].endswith("cluster-bridge-far:home")
    )
    return "delete" in str(role["rules"])


def order(wanted: Installation, consent: Consent = NO_CONSENT) -> InstallOrder:
    return InstallOrder(
        wanted, "kubeconfig", consent, dry_run=False, wait=True, timeout=5.0, selects_identity=True
    )


def arguments(world: World) -> list[str]:
    deployment = world.api.get(DEPLOYMENTS, WANTED.name, WANTED.namespace)
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


async def test_new_installation_of_the_node_has_the_small_account(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "wait_until_ready", _ready(world))
    await installer.install(world.home, order(WANTED, YES), notify=world.reports.append)
    assert "--home-identity=node" in arguments(world)
    assert not may_delete_pods(world)


async def test_running_bridges_keep_their_permissions_until_they_are_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "wait_until_ready", _ready(world))
    await installer.install(world.home, order(WANTED), notify=world.reports.append)
    assert may_delete_pods(world)

    async def check(*_: object, **__: object) -> None:
        assert "--home-identity=node" in arguments(world)
        assert may_delete_pods(world)

    monkeypatch.setattr(rollout, "wait_until_ready", check)
    await installer.install(world.home, order(AS_NODE), notify=world.reports.append)
    assert not may_delete_pods(world)


async def test_home_that_signs_nothing_gets_an_account_in_place_of_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[list[str]] = []

    async def wait(*_: object, **__: object) -> None:
        attempts.append(arguments(world))
        if "--home-identity=node" in attempts[-1]:
            raise NotSignedError("home has not signed it")
        world.api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "far"}})

    monkeypatch.setattr(rollout, "wait_until_ready", wait)
    await installer.install(world.home, order(WANTED, YES), notify=world.reports.append)
    assert len(attempts) == 2
    assert "--home-identity=node" not in arguments(world)
    assert may_delete_pods(world)
    assert any("the bridge acts as its ServiceAccount" in it for it in world.reports)
    with pytest.raises(PreflightError, match="install with --home-identity service-account"):
        await installer.install(world.home, order(AS_NODE, YES), notify=world.reports.append)
