"""Objects for which the bridge has no memory are neither absent nor forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sync.cache import cache_share
from sync.cache.store import Key
from sync.kube.api_resources import CONFIG_MAPS, ENDPOINT_SLICES, PODS, SECRETS, SERVICES, Object
from sync.kube.response_limits import CACHE_LIMIT, ResponseLimits
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.mirror import endpoint_slice

LARGE = "x" * 60_000


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves room for small objects, and for no `LARGE` one."""
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", 2**16)


@pytest.mark.parametrize(("memory", "mib"), [(2**29, 63), (2**30, 207), (2**34, 512)])
def test_limit_follows_from_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, mib: int
) -> None:
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", CACHE_LIMIT)
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: memory)
    limits = ResponseLimits("remote")
    share = cache_share.RemoteShare(limits)
    assert not share.take("all", mib * 2**20)
    assert share.take("three quarters, without the memory for stubs", mib * 21 * 2**15 - 2**10)
    assert not share.take("more than that", 2**10)
    assert cache_share.RemoteShare(limits).take("another store's", mib * 7 * 2**15 - 2**11)
    assert not share.take("all for stubs", mib * 2**17 + 2**11, is_stub=True)
    assert share.take("for stubs", mib * 2**17 - 2**11, is_stub=True)


def large_pod(harness: EngineHarness, **spec: Any) -> None:
    env = [{"name": "A", "value": LARGE}]
    container = {"name": "main", "image": "busybox:1", "env": env}
    harness.pod(containers=[container], **spec)


@pytest.fixture
async def running(harness: EngineHarness) -> EngineHarness:
    """An engine with a running pod that its cache does not hold."""
    await harness.start()
    large_pod(harness)
    await harness.settle()
    harness.report_running()
    await harness.settle()
    return harness


async def test_status_of_a_pod_is_written(running: EngineHarness) -> None:
    assert running.status()["phase"] == "Running"
    cached = running.engine.remote_pods.store.get(Key(REMOTE_NAMESPACE, "a")) or {}
    assert "containers" not in (cached.get("spec") or {})
    running.report_terminated("Failed")
    await running.settle()
    assert running.status()["phase"] == "Failed"


async def test_pod_that_runs_once_starts(harness: EngineHarness) -> None:
    await harness.start()
    large_pod(harness, restartPolicy="Never")
    await harness.settle()
    assert not (harness.remote_pod() or {})["spec"].get("schedulingGates")


async def test_update_of_a_pod_is_sent_once(running: EngineHarness) -> None:
    running.clear_logs()
    running.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await running.settle()
    assert (running.remote_pod() or {})["metadata"]["labels"]["x"] == "y"
    assert len(running.remote.writes()) == 1


async def test_home_pod_outlives_its_remote_pod(running: EngineHarness) -> None:
    running.home.delete(PODS, "a", "default")
    await running.settle()
    assert "deletionTimestamp" in (running.remote_pod() or {})["metadata"]
    assert running.home_pod()
    running.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await running.settle()
    assert running.home.find(PODS, "a", "default") is None


async def test_restarted_bridge_adopts_the_pod(running: EngineHarness) -> None:
    await running.restart()
    assert running.writes() == []
    running.home.delete(PODS, "a", "default")
    await running.settle()
    assert "deletionTimestamp" in (running.remote_pod() or {})["metadata"]
    assert running.home_pod()


async def test_orphan_is_deleted(running: EngineHarness) -> None:
    running.home.remove(PODS, "a", "default")
    await running.settle()
    assert "deletionTimestamp" in (running.remote_pod() or {})["metadata"]


async def test_pod_that_cannot_be_cached_at_all_is_not_forgotten(harness: EngineHarness) -> None:
    await harness.start_running(name="first")
    harness.engine.remote_pods.client.limits.cached = 2**62
    harness.pod()
    await harness.remote.until(lambda: harness.status().get("reason") == "RemoteNotCached")
    for _ in range(100):
        await harness.caught_up()
    assert harness.remote_pod()
    assert len(harness.remote.writes("*/pods")) <= 6, "a repeated request backs off"
    harness.report_running()
    harness.home.delete(PODS, "a", "default")
    await harness.remote.until(
        lambda: "deletionTimestamp" in (harness.remote_pod() or {}).get("metadata", {})
    )
    assert harness.home_pod()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.home.until(lambda: harness.home.find(PODS, "a", "default") is None)


async def test_home_pod_outlives_a_remote_pod_that_cannot_be_read(harness: EngineHarness) -> None:
    """A pod with a malformed status is not in the cache of a new bridge."""
    await harness.start()
    harness.pod("a")
    await harness.settle()
    await harness.stop()
    harness.remote.update(PODS, "a", {"status": {"phase": 5}}, REMOTE_NAMESPACE)
    await harness.start(settle=False)
    harness.home.delete(PODS, "a", "default")
    await harness.remote.until(lambda: harness.remote.requests("GET", "*/pods/a"))
    assert harness.home_pod()
    harness.remote.update(PODS, "a", {"status": {"phase": "Pending"}}, REMOTE_NAMESPACE)
    await harness.home.until(lambda: harness.home.find(PODS, "a", "default") is None)
    assert harness.remote_pod() is None


def originals(value: str) -> list[Object]:
    """Objects whose copies do not fit."""
    labels = {f"label{number}": "v" * 60 for number in range(600)} | {"value": value}
    port = {"port": 80, "protocol": "TCP", "targetPort": 80}
    service: Object = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [port]}}
    service["metadata"] = {"name": "web", "namespace": "default", "labels": labels}
    key = secret("key", data={"k": "MQ=="})
    key["metadata"]["labels"] = labels
    return [config_map("conf", labels=labels, data={"k": value}), key, service]


async def test_copies_follow_their_originals(harness: EngineHarness) -> None:
    for original in originals("1"):
        harness.home.put(original)
    await harness.start()
    harness.pod(uses=["cm/conf", "secret/key"])
    await harness.settle()
    assert harness.remote_pod()
    harness.clear_logs()
    for original in originals("2"):
        harness.home.put(original)
    await harness.settle()
    for resource, name in ((CONFIG_MAPS, "conf"), (SECRETS, "key"), (SERVICES, "web")):
        copy = harness.remote.get(resource, name, REMOTE_NAMESPACE)
        assert copy["metadata"]["labels"]["value"] == "2"
    assert [entry.method for entry in harness.remote.writes()] == ["PATCH"] * 3


async def test_copy_that_lost_its_label_is_not_created_again_and_again(
    harness: EngineHarness,
) -> None:
    """The cache of copied slices does not select such a copy."""
    harness.policy = replace(harness.policy, network="flat")
    service, slice_ = _service_with_endpoints()
    harness.home.put(service)
    harness.home.put(slice_)
    await harness.start_running()
    (copy,) = harness.remote.objects(ENDPOINT_SLICES)
    harness.clear_logs()
    harness.remote.update(
        ENDPOINT_SLICES,
        copy["metadata"]["name"],
        {"metadata": {"labels": {endpoint_slice.LABEL_MANAGED_BY: None}}},
        REMOTE_NAMESPACE,
    )
    await harness.remote.until(harness.remote.writes)
    for _ in range(100):
        await harness.caught_up()
    assert len(harness.remote.writes()) <= 4


def _service_with_endpoints() -> tuple[Object, Object]:
    meta = {"name": "web", "namespace": "default"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
    service["spec"] = {"ports": [{"port": 80}]}
    labels = {endpoint_slice.LABEL_SERVICE: "web"}
    return service, {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"], "nodeName": "other"}],
    }
