"""Evictions of `bridge leave --drain`: the pods that they are for, and those that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from bridge.base.command_error import PreflightError
from bridge.leave import eviction
from sync.kube.api_resources import PODS, Object
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.fakeapi.credentials import credentials_for


def owned_by(kind: str, *, name: str) -> Object:
    """A pod of the virtual node that a controller created."""
    made = objects.pod(name, "shop", node="remote")
    owner: Object = {"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "u"}
    owner["controller"] = True
    made["metadata"]["ownerReferences"] = [owner]
    return made


def finished(pod: Object) -> Object:
    return pod | {"status": {"phase": "Succeeded"}}


def test_pods_of_daemonsets_and_mirror_pods_are_not_evictable() -> None:
    mirror = objects.pod("static", "shop", node="remote")
    mirror["metadata"]["annotations"] = {eviction.MIRROR: "x"}
    scratch = objects.pod("bare", "shop", node="remote")
    scratch["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    pods = [
        finished(objects.pod("done", "shop")),
        finished(owned_by("DaemonSet", name="done-daemon")),
        owned_by("ReplicaSet", name="controlled"),
        scratch,
    ]
    stay = [owned_by("DaemonSet", name="daemon"), mirror]
    assert eviction.evictable_pods([*pods, *stay]) == pods


@pytest.fixture
async def home(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """A client of the home cluster."""
    monkeypatch.setattr(eviction, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(eviction, "POLL_SECONDS", 0.01)
    async with KubeClient(credentials_for(two.home, "home")) as client:
        yield client


class Draining:
    """A drain of two pods; a simulated bridge terminates evicted pods."""

    def __init__(self, two: Clusters, home: KubeClient) -> None:
        self.two = two
        self._home = home
        self.notified: list[str] = []
        for name in ("bad", "good"):
            two.home.put(objects.pod(name, "shop", node="remote"))

    async def run(self, *, timeout: float = SOON) -> str:
        """Drains, and returns the error; "" for none."""
        serving = asyncio.create_task(self._serve())
        try:
            await eviction.evict_pods(
                self._home,
                self.two.home.objects(PODS),
                end_pod=None,
                timeout=timeout,
                notify=self.notified.append,
            )
        except PreflightError as error:
            return str(error)
        finally:
            serving.cancel()
        return ""

    async def _serve(self) -> None:
        while True:
            for pod in self.two.home.objects(PODS):
                if "deletionTimestamp" in pod["metadata"]:
                    self.two.home.remove(PODS, pod["metadata"]["name"], "shop")
            await asyncio.sleep(0.005)

    @property
    def left(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.two.home.objects(PODS)]


@pytest.fixture
def draining(two: Clusters, home: KubeClient) -> Draining:
    """A virtual node with two pods."""
    return Draining(two, home)


def eviction_fault(
    code: int, *, times: int | None = None, message: str = "", raw: Object | None = None
) -> Fault:
    """A faulty answer to evictions of the pod ``bad``."""
    body = None if raw is None else json.dumps(raw).encode()
    return Fault("POST", "*/bad/eviction", code=code, message=message, times=times, raw=body)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_transient_eviction_errors_are_retried(draining: Draining, code: int) -> None:
    fault = draining.two.home.fail(eviction_fault(code, times=3))
    assert await draining.run() == ""
    assert fault.hits == 3
    assert draining.left == []


@pytest.mark.parametrize("code", [403, 422, 500])
async def test_permanent_eviction_error_is_reported_and_other_pods_are_evicted(
    draining: Draining, code: int
) -> None:
    """The API server also answers 500 if two PodDisruptionBudgets select the pod."""
    draining.two.home.fail(eviction_fault(code, message="two budgets"))
    error = await draining.run()
    assert "1 pod(s) could not be evicted (shop/bad: two budgets)" in error
    assert "the node stays cordoned" in error
    assert draining.left == ["bad"]


@pytest.mark.parametrize("code", [404, 409])
async def test_admission_404_and_409_do_not_count_as_deletion(
    draining: Draining, code: int
) -> None:
    fault = draining.two.home.fail(eviction_fault(code, times=2, message="denied by a webhook"))
    assert await draining.run() == ""
    assert fault.hits == 2
    assert len(draining.two.home.requests("POST", "*/bad/eviction")) == 3
    assert draining.left == []


async def test_conflict_on_a_re_created_pod_counts_as_deletion(draining: Draining) -> None:
    home = draining.two.home
    home.fail(Fault("POST", "*/bad/eviction", delay=0.1))
    running = asyncio.create_task(draining.run())
    await home.until(lambda: home.requests("POST", "*/good/eviction"))
    home.remove(PODS, "bad", "shop")
    new = home.put(objects.pod("bad", "shop", node="remote"))
    assert await running == ""
    assert home.get(PODS, "bad", "shop") == new


TERMINATING = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "code": 403,
    "reason": "Forbidden",
    "message": "namespace shop is being terminated",
    "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]},
}


async def test_pod_in_a_terminating_namespace_is_waited_for(draining: Draining) -> None:
    home = draining.two.home
    home.fail(eviction_fault(403, raw=TERMINATING))
    running = asyncio.create_task(draining.run())
    await home.until(lambda: len(home.requests("POST", "*/bad/eviction")) > 2)
    home.delete(PODS, "bad", "shop")
    assert await running == ""
    assert draining.left == []


async def test_timeout_names_blocked_and_failed_pods(draining: Draining) -> None:
    draining.two.home.put(objects.pod("worse", "shop", node="remote"))
    draining.two.home.fail(eviction_fault(429, message="the budget allows no eviction"))
    draining.two.home.fail(Fault("POST", "*/worse/eviction", code=422, message="invalid"))
    error = await draining.run(timeout=0.3)
    assert "1 pod(s) could not be evicted (shop/worse: invalid)" in error
    assert "1 pod(s) are still blocked (shop/bad: the budget allows no eviction) after" in error
    assert draining.left == ["bad", "worse"]
