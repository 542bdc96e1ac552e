"""Deletion of empty remote namespaces that the bridge created."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web

from sync.cleanup.empty_namespaces import EmptyNamespaceController
from sync.kube.api_resources import CONFIG_MAPS, NAMESPACES, PODS, Object
from tests.fakeapi import Fault
from tests.objects import config_map, pod
from tests.sync.discovery_documents import WIDGETS, serve_discovery
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAMESPACE,
    LABEL_NODE,
    namespace_users,
    owner_labels,
)
from translators.relay import agent_pod

#: Seconds: long enough for actions of a test, short enough to wait for.
SOON = 0.05


@pytest.fixture
def lived(harness: EngineHarness) -> EngineHarness:
    """Shortens the delays before checks of namespaces."""
    serve_discovery(harness.remote)
    harness.namespace_linger = SOON
    return harness


def _namespace(harness: EngineHarness) -> Object | None:
    return harness.remote.find(NAMESPACES, REMOTE_NAMESPACE)


async def _pod_comes_and_goes(harness: EngineHarness) -> None:
    harness.pod()
    await harness.settle()
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    if harness.remote_pod():
        harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()


async def _wait_checked(harness: EngineHarness) -> None:
    """Waits until the namespace is checked and no check is scheduled."""
    queue = harness.engine.find(EmptyNamespaceController).controller.queue
    for _ in range(1000):
        if not (queue.delayed or len(queue) or queue.working):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still at work: {queue!r}")


async def test_namespace_is_deleted_after_its_last_pod(lived: EngineHarness) -> None:
    lived.home.put(config_map("conf"))
    await lived.start()
    lived.pod(uses=["cm/conf"])
    await lived.settle()
    await _pod_comes_and_goes(lived)
    await lived.remote.until(lambda: not _namespace(lived))
    (entry,) = lived.remote.requests("DELETE", "/api/v1/namespaces/" + REMOTE_NAMESPACE)
    assert entry.body["preconditions"].keys() == {"uid", "resourceVersion"}


async def test_relay_agent_keeps_its_namespace(lived: EngineHarness) -> None:
    await lived.start()
    lived.pod()
    await lived.settle()
    relay = agent_pod.agent_pod(
        "relay", HomeNamespace("default"), IDENTITY, image="i", node_selector={}
    )
    relay["spec"]["nodeName"] = "worker"
    lived.remote.put(relay)
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert _namespace(lived)
    # A bridge without --relay-image has no use for it.
    assert lived.remote.get(PODS, "relay", REMOTE_NAMESPACE)["metadata"]["deletionTimestamp"]
    lived.remote.remove(PODS, "relay", REMOTE_NAMESPACE)
    await lived.remote.until(lambda: not _namespace(lived))


async def test_namespace_stays_while_it_has_pods_and_for_the_linger(lived: EngineHarness) -> None:
    lived.namespace_linger = 60.0
    await lived.start()
    await _pod_comes_and_goes(lived)
    assert _namespace(lived)
    assert lived.engine.find(EmptyNamespaceController).controller.queue.delayed


async def test_pod_within_the_linger_keeps_the_namespace(lived: EngineHarness) -> None:
    await lived.start()
    await _pod_comes_and_goes(lived)
    lived.pod("b")
    await lived.settle()
    await _wait_checked(lived)
    assert _namespace(lived)
    assert lived.remote_pod("b")


async def test_leftover_namespace_is_deleted_after_a_start(lived: EngineHarness) -> None:
    meta = {
        "name": REMOTE_NAMESPACE,
        "labels": owner_labels(lived.identity),
        "annotations": {ANNOTATION_HOME_NAMESPACE: "default"},
    }
    lived.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await lived.start()
    await lived.remote.until(lambda: not _namespace(lived))


@pytest.mark.parametrize(
    "thing",
    [
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": WIDGETS.api_version, "kind": WIDGETS.kind},
    ],
    ids=["a ConfigMap", "a custom resource"],
)
async def test_unmanaged_object_keeps_the_namespace(lived: EngineHarness, thing: Object) -> None:
    await lived.start()
    lived.pod()
    await lived.settle()
    lived.remote.put({**thing, "metadata": {"name": "theirs", "namespace": REMOTE_NAMESPACE}})
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert _namespace(lived)
    assert not lived.remote.requests("DELETE", "/api/v1/namespaces/" + REMOTE_NAMESPACE)


async def test_pod_of_another_virtual_node_keeps_the_namespace(lived: EngineHarness) -> None:
    await lived.start()
    lived.pod()
    await lived.settle()
    other = pod("b", REMOTE_NAMESPACE)
    labels = owner_labels(lived.identity)
    other["metadata"]["labels"] = {**labels, LABEL_NODE: "another"}
    lived.remote.put(other)
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert _namespace(lived)


@pytest.fixture
async def other(lived: EngineHarness) -> AsyncIterator[EngineHarness]:
    """Another virtual node of the same home in the same remote."""
    async with EngineHarness(lived.home, lived.remote) as made:
        made.identity = replace(IDENTITY, node="other")
        made.namespace_linger = 60.0
        made.record.peers, lived.record.peers = [lived.record], [made.record]
        yield made


class SuspendedCheck:
    """Suspends the next check of a namespace after pods are listed and before widgets are."""

    def __init__(self, harness: EngineHarness) -> None:
        self._looking, self._go_on = asyncio.Event(), asyncio.Event()
        self._world = harness
        harness.remote.route("GET", f"*/namespaces/{REMOTE_NAMESPACE}/widgets", self._widgets)

    async def _widgets(self, _: web.Request) -> web.Response:
        self._looking.set()
        await self._go_on.wait()
        return web.json_response({"kind": "WidgetList", "metadata": {}, "items": []})

    async def __aenter__(self) -> None:
        async with asyncio.timeout(30):
            await self._looking.wait()
        pods = f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods"
        await self._world.remote.until(lambda: self._world.remote.requests("GET", pods))

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()


async def test_new_pod_of_another_virtual_node_during_the_check_keeps_the_namespace(
    lived: EngineHarness, other: EngineHarness
) -> None:
    await lived.start()
    await other.start()
    look = SuspendedCheck(lived)
    await _pod_comes_and_goes(lived)
    before = _namespace(lived)
    assert before
    async with look:
        lived.remote.mute_watches()  # The deleting node's caches do not show the pod yet.
        lived.home.put(pod("theirs", node="other"))
        await lived.remote.until(lambda: lived.remote.find(PODS, "theirs", REMOTE_NAMESPACE))
    deletes = f"/api/v1/namespaces/{REMOTE_NAMESPACE}"
    await lived.remote.until(lambda: lived.remote.requests("DELETE", deletes))
    lived.remote.unmute_watches()
    await _wait_checked(lived)
    after = _namespace(lived)
    assert after
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "deletionTimestamp" not in after["metadata"]
    assert lived.remote.find(PODS, "theirs", REMOTE_NAMESPACE)


async def test_empty_namespace_with_another_user_stays(
    lived: EngineHarness, other: EngineHarness
) -> None:
    """Its first pod is about to be created: the request is still on its way."""
    await lived.start()
    await other.start()
    lived.pod()
    await lived.settle()
    held = lived.remote.fail(
        Fault("POST", f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods", code=500, times=None)
    )
    lived.home.put(pod("theirs", node="other"))
    await lived.remote.until(lambda: held.hits)
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    namespace = _namespace(lived)
    assert namespace
    assert namespace_users(namespace) == {"other"}
    lived.remote.heal(held)
    await lived.remote.until(lambda: lived.remote.find(PODS, "theirs", REMOTE_NAMESPACE))


async def test_next_pod_records_the_node_as_a_user_again(lived: EngineHarness) -> None:
    await lived.start()
    lived.pod()
    await lived.settle()
    lived.remote.put(config_map("theirs", REMOTE_NAMESPACE))
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert namespace_users(_namespace(lived) or {}) == set()
    lived.clear_logs()
    lived.pod("b")
    lived.pod("c")
    await lived.settle()
    assert namespace_users(_namespace(lived) or {}) == {IDENTITY.node}
    claims = [
        it for it in lived.writes() if it.endswith(f"PATCH /api/v1/namespaces/{REMOTE_NAMESPACE}")
    ]
    assert len(claims) == 1


async def test_pod_cached_after_the_check_keeps_the_namespace(lived: EngineHarness) -> None:
    """The remote's response predates the pod, whose node runs a version without claims."""
    await lived.start()
    look = SuspendedCheck(lived)
    await _pod_comes_and_goes(lived)
    async with look:
        theirs = pod("theirs", REMOTE_NAMESPACE)
        theirs["metadata"]["labels"] = owner_labels(replace(IDENTITY, node="other"))
        lived.remote.put(theirs)
        await lived.caught_up()
    await _wait_checked(lived)
    assert _namespace(lived)
    assert not lived.remote.requests("DELETE", f"/api/v1/namespaces/{REMOTE_NAMESPACE}")


async def test_resource_that_cannot_be_listed_keeps_the_namespace(lived: EngineHarness) -> None:
    await lived.start()
    lived.remote.fail(Fault("GET", "*/leases", code=403, times=None))
    lived.remote.fail(Fault("GET", "/apis/example.com/*", code=403, times=None))
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert _namespace(lived)


@pytest.mark.parametrize("owned", [False, True], ids=["foreign", "ours by then"])
async def test_granted_namespace_stays(lived: EngineHarness, owned: bool) -> None:
    meta: Object = {"name": REMOTE_NAMESPACE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    if owned:
        meta["labels"] = owner_labels(lived.identity)
        meta["annotations"][ANNOTATION_HOME_NAMESPACE] = "default"
    lived.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await lived.start()
    await _pod_comes_and_goes(lived)
    await _wait_checked(lived)
    assert _namespace(lived)


async def test_failed_check_is_retried(lived: EngineHarness) -> None:
    await lived.start()
    fault = lived.remote.fail(Fault("DELETE", "/api/v1/namespaces/" + REMOTE_NAMESPACE, code=500))
    await _pod_comes_and_goes(lived)
    await lived.remote.until(lambda: not _namespace(lived))
    assert fault.hits == 1


async def test_pod_arriving_during_the_deletion_starts_after_it(lived: EngineHarness) -> None:
    lived.namespace_linger = 60.0  # The test deletes it, not the bridge.
    await lived.start()
    lived.pod()
    await lived.settle()
    held = config_map("held", REMOTE_NAMESPACE)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    held["metadata"]["labels"] = owner_labels(lived.identity)
    await _pod_comes_and_goes(lived)
    lived.remote.put(held)
    first = _namespace(lived)
    assert first
    lived.remote.delete(NAMESPACES, REMOTE_NAMESPACE)
    await lived.settle()
    lived.pod("b")
    await lived.events_with_reason("RemoteNamespaceTerminating")
    await lived.settle(waiting=True)
    assert lived.status("b")["reason"] == "RemoteNamespaceTerminating"
    lived.remote.remove(CONFIG_MAPS, "held", REMOTE_NAMESPACE)
    await lived.settle()
    assert lived.remote_pod("b")
    conditions = lived.status("b").get("conditions") or []
    assert "cluster-bridge.io/Accepted" not in {c["type"] for c in conditions}
