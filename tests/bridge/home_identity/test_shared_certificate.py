"""The node's certificate of a bridge in the home cluster, which its replicas share in a Secret."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from bridge.base.command_error import PreflightError
from bridge.certificates import signed_certificate
from bridge.certificates.tls_key_pair import parse_pem
from bridge.home_identity.identity_selection import HomeClients
from sync.kube import in_cluster
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, SECRETS
from tests.bridge.home_identity.signing_home import SUBJECT, World, subjects
from tests.fakeapi import Fault
from tests.objects import secret

SECRET, NAMESPACE = "bridge-state-burst", "bridges"


@pytest.fixture
def pod(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A home whose account is that of a pod, with an empty state Secret."""
    world.account.credentials.in_cluster = True
    monkeypatch.setattr(in_cluster, "namespace", lambda: NAMESPACE)
    world.state_secret = SECRET
    world.api.put(secret(SECRET, namespace=NAMESPACE))
    return world


def stored(world: World) -> dict[str, bytes]:
    """The content of the state Secret."""
    data = world.api.get(SECRETS, SECRET, NAMESPACE).get("data") or {}
    return {key: base64.b64decode(content) for key, content in data.items()}


@asynccontextmanager
async def replicas(world: World, count: int = 2) -> AsyncIterator[list[HomeClients]]:
    """Replicas that start at once, and whose request an administrator approves."""
    async with AsyncExitStack() as stack:
        starting = [stack.enter_async_context(world.clients("node")) for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            if not world.requests():
                group.create_task(world.approve())
            tasks = [group.create_task(it) for it in starting]
        yield [it.result() for it in tasks]


@asynccontextmanager
async def renewing(found: list[HomeClients]) -> AsyncIterator[list[asyncio.Event]]:
    """The replicas' renewals; each event is set when the replica uses another certificate."""
    events = []
    for it in found:
        events.append(asyncio.Event())
        it.home.credentials.renewed.add(events[-1].set)
    tasks = [asyncio.create_task(it.keep_renewed()) for it in found]
    try:
        yield events
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_of(events: list[asyncio.Event]) -> None:
    async with asyncio.timeout(30):
        for event in events:
            await event.wait()


async def watched(world: World, count: int) -> None:
    await world.api.until(lambda: len(world.api.open_watches(SECRETS)) == count)


async def test_replicas_that_start_at_once_make_one_request(pod: World) -> None:
    async with replicas(pod, 3) as found:
        for it in found:
            assert await subjects(it, pod) == [SUBJECT, ""]
    assert len(pod.requests()) == 1
    assert list(stored(pod)) == ["client.pem"]
    assert b"PRIVATE KEY" in stored(pod)["client.pem"]


async def test_key_that_is_not_stored_is_retried_with_delay(
    pod: World, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault("PATCH", f"*/secrets/{SECRET}", code=409, times=None)
    pod.api.fail(fault)
    async with asyncio.TaskGroup() as group:
        group.create_task(pod.approve())
        starting = pod.clients("node")
        entering = group.create_task(starting.__aenter__())
        await pod.api.until(lambda: "was changed before each write; retry in" in caplog.text)
        assert not pod.requests()
        pod.api.heal(fault)
        await entering
    await starting.__aexit__(None, None, None)


async def test_later_replica_needs_no_approval(pod: World) -> None:
    async with replicas(pod, 1):
        pass
    async with pod.clients("auto") as found:
        assert found.identity == "node"
        assert found.reason == "its certificate is stored"
    assert len(pod.requests()) == 1


async def test_replica_uses_the_certificate_that_another_has_renewed(
    pod: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(pod) as (first, second):
        async with renewing([second]) as events:
            await watched(pod, 1)
            due = iter([datetime.now(UTC)])
            later = datetime.now(UTC) + timedelta(days=1)
            monkeypatch.setattr(signed_certificate, "renewal_time", lambda *_: next(due, later))
            async with renewing([first]):
                await pod.approve()
                await all_of(events)
        for it in (first, second):
            assert await subjects(it, pod) == [SUBJECT, ""]
    assert len(pod.requests()) == 2


@pytest.mark.parametrize("content", [None, base64.b64encode(b"nonsense").decode()])
async def test_certificate_that_is_lost_or_invalid_is_requested_again(
    pod: World, content: str | None
) -> None:
    async with replicas(pod) as found, renewing(found) as events:
        await watched(pod, 2)
        pod.api.clear_log()
        pod.api.update(SECRETS, SECRET, {"data": {"client.pem": content}}, NAMESPACE)
        await pod.approve()
        await all_of(events)
        (created, *_) = pod.api.requests("POST", CERTIFICATE_SIGNING_REQUESTS.path())
        assert created.subject == SUBJECT, "the node requests its next certificate"
        await pod.api.until(lambda: parse_pem(stored(pod).get("client.pem", b"")) is not None)
    assert len(pod.requests()) == 2


async def test_deleted_secret_is_reported_and_filled_once_it_exists_again(
    pod: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(pod, 1) as found, renewing(found) as events:
        await watched(pod, 1)
        pod.api.remove(SECRETS, SECRET, NAMESPACE)
        await pod.api.until(lambda: "does not exist" in caplog.text)
        assert len(pod.requests()) == 1
        pod.api.put(secret(SECRET, namespace=NAMESPACE))
        await pod.approve()
        await all_of(events)
        await pod.api.until(lambda: "client.pem" in stored(pod))


async def test_rejected_certificate_is_replaced_for_all_replicas(pod: World) -> None:
    async with replicas(pod):
        pass
    rejected = stored(pod)["client.pem"]
    pod.api.fail(Fault(code=401, when=lambda entry: entry.subject == SUBJECT, times=2))
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        group.create_task(pod.approve())
        for _ in range(2):
            group.create_task(stack.enter_async_context(pod.clients("node")))
    assert len(pod.requests()) == 2
    assert stored(pod)["client.pem"] != rejected


async def test_denied_request_is_followed_by_one_for_all_replicas(pod: World) -> None:
    def deny() -> None:
        (request,) = pod.requests()
        status = {"conditions": [{"type": "Denied", "status": "True"}]}
        name = request["metadata"]["name"]
        pod.api.update(CERTIFICATE_SIGNING_REQUESTS, name, {"status": status})

    async def deny_and_approve() -> None:
        await pod.api.until(pod.requests)
        await pod.api.until(lambda: len(pod.api.open_watches(CERTIFICATE_SIGNING_REQUESTS)) == 2)
        deny()
        await pod.approve()

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        group.create_task(deny_and_approve())
        for _ in range(2):
            group.create_task(stack.enter_async_context(pod.clients("node")))
    assert len(pod.requests()) == 2


async def test_pod_without_a_state_secret_is_the_account(pod: World) -> None:
    pod.state_secret = None
    async with pod.clients("auto") as found:
        assert found.identity == "service-account"
    with pytest.raises(PreflightError, match="a bridge in a pod needs --state-secret"):
        async with pod.clients("node"):
            pass


async def test_missing_secret_and_permissions_are_named(pod: World) -> None:
    pod.api.remove(SECRETS, SECRET, NAMESPACE)
    with pytest.raises(PreflightError, match="Secret bridges/bridge-state-burst does not exist"):
        async with pod.clients("node"):
            pass
    pod.deny(resource="secrets", verb="patch")
    with pytest.raises(PreflightError, match="may not patch secrets of Secret bridges/bridge-st"):
        async with pod.clients("node"):
            pass


async def test_key_is_in_no_log_and_no_report(pod: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with replicas(pod) as found:
        assert "PRIVATE KEY" not in repr(found)
    key = stored(pod)["client.pem"].partition(b"PRIVATE KEY-----\n")[2].decode().splitlines()[0]
    assert key not in caplog.text + "".join(pod.reports)
