"""Home pods whose remote node is lost for good: deleted as the taint-eviction controller does."""

from __future__ import annotations

import pytest

from sync.cache.store import Key, Store
from sync.kube.api_resources import NODES, PODS
from sync.pods import pod_controller
from sync.pods.pod_controller import UnreachableNodeDeletions
from tests import objects
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from tests.sync.pod_states import remote
from translators.object_accessors import Object, is_deleting

_KEY = Key("shop", "web")


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shortens the timeout of an unreachable node."""
    monkeypatch.setattr(pod_controller, "UNREACHABLE_SECONDS", 0.1)
    return pod_controller.UNREACHABLE_SECONDS


def node(status: str) -> Object:
    """The node of the remote pods with this Ready."""
    return objects.node("worker") | {
        "status": {"conditions": [{"type": "Ready", "status": status}]}
    }


def set_node_ready(harness: EngineHarness, status: str) -> None:
    """Sets the node's Ready condition, as the remote's node lifecycle controller or its kubelet
    does."""
    harness.remote.update(NODES, "worker", node(status))


async def deleted_in_the_remote(harness: EngineHarness, *, ready: str) -> None:
    """A running pod is deleted in the remote while its node is in that state."""
    await harness.start_running()
    set_node_ready(harness, ready)
    harness.remote.delete(PODS, "a", REMOTE_NAMESPACE, grace_seconds=1)
    await harness.settle()


def deletes(harness: EngineHarness) -> int:
    """How many deletions the bridge has sent to home."""
    return sum(entry.method == "DELETE" for entry in harness.home.writes("*/pods/a"))


async def test_pod_on_a_lost_node_is_deleted_at_home_and_stays_until_the_remote_pod_ends(
    harness: EngineHarness, short_timeout: float
) -> None:
    await deleted_in_the_remote(harness, ready="Unknown")
    await harness.home.until(lambda: is_deleting(harness.home_pod()))
    await harness.settle()
    assert harness.home_pod()["metadata"]["deletionGracePeriodSeconds"] == 30
    assert deletes(harness) == 1
    (event,) = await harness.events_with_reason("RemoteNodeLost")
    assert "node worker" in event["message"]

    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.home.find(PODS, "a", "default") is None
    assert harness.remote_pod() is None


async def test_pod_on_a_ready_node_is_never_deleted_at_home(
    harness: EngineHarness, short_timeout: float
) -> None:
    await deleted_in_the_remote(harness, ready="True")
    assert pod_controller.UNREACHABLE_SECONDS < 1
    assert not harness.engine.pods.controller.queue.delayed
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert not is_deleting(harness.home_pod())
    assert harness.remote_pod() is not None


async def test_node_lost_after_the_deletion_counts(
    harness: EngineHarness, short_timeout: float
) -> None:
    await deleted_in_the_remote(harness, ready="True")
    set_node_ready(harness, "Unknown")
    await harness.home.until(lambda: is_deleting(harness.home_pod()))


async def test_pod_is_recreated_in_place_if_its_node_comes_back(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_controller, "UNREACHABLE_SECONDS", 0.5)
    await deleted_in_the_remote(harness, ready="Unknown")
    set_node_ready(harness, "True")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod() is not None
    assert deletes(harness) == 0


async def test_restarted_bridge_deletes_the_home_pod_of_a_lost_node(
    harness: EngineHarness, short_timeout: float
) -> None:
    await harness.start_running()
    await harness.stop()
    set_node_ready(harness, "Unknown")
    harness.remote.delete(PODS, "a", REMOTE_NAMESPACE, grace_seconds=1)
    await harness.start()
    await harness.home.until(lambda: is_deleting(harness.home_pod()))


async def test_pod_that_no_longer_exists_is_not_deleted_at_home(
    harness: EngineHarness, short_timeout: float
) -> None:
    """The watch lags: only the API server knows that the kubelet has confirmed the end."""
    await deleted_in_the_remote(harness, ready="Unknown")
    harness.remote.mute_watches()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    confirmation = harness.remote.fail(Fault("GET", "*/pods/a", code=404, times=None))
    await harness.remote.until(lambda: confirmation.hits)
    assert deletes(harness) == 0


def deletion(nodes: Store | None, **state: object) -> tuple[UnreachableNodeDeletions, Object]:
    """The deletion of a remote pod that was seen just now."""
    pod = remote(deleting=int(str(state.get("grace", 30))))
    found = UnreachableNodeDeletions(nodes)
    found.pod_changed(None, pod)
    return found, pod


def test_deleted_node_gets_the_pods_own_grace() -> None:
    """The node may have left the selection only, and still run the pod."""
    found, pod = deletion(Store(), grace=600)
    left = found.seconds_left(pod)
    assert left is not None
    assert 590 < left <= 600


def test_pods_stay_where_the_nodes_are_unknown() -> None:
    found, pod = deletion(None, grace=0)
    assert found.seconds_left(pod) is None


def test_long_grace_does_not_keep_a_pod_on_a_node_that_is_not_ready() -> None:
    nodes = Store()
    nodes.put(node("Unknown"))
    found, pod = deletion(nodes, grace=600)
    left = found.seconds_left(pod)
    assert left is not None
    assert 20 < left <= pod_controller.UNREACHABLE_SECONDS


def test_pods_are_requeued_only_when_node_readiness_changes() -> None:
    found, pod = deletion(Store())
    assert found.affected(node("True"), node("Unknown")) == [_KEY]
    assert found.affected(node("Unknown"), node("False")) == []
    assert found.affected(objects.node("other"), None) == []
    found.pod_changed(pod, None)
    assert found.affected(node("True"), node("Unknown")) == []
    assert found.seconds_left(pod) is None
