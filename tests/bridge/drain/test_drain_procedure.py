"""`bridge cordon`, `uncordon` and `drain`: only virtual nodes, and only necessary writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from bridge.base.command_error import PreflightError
from bridge.drain import drain_procedure, eviction, pod_filters
from bridge.drain.pod_filters import EVICT_ALL, DrainOptions
from bridge.election import serving_bridge_lookup
from sync.kube.api_resources import NODES, PODS, Object
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.running_join import SOON
from tests.bridge.status import examples
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.fakeapi.client_config import client_config_for


@pytest.fixture
async def home(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """A client of home, which has a served virtual node and a real node."""

    async def served(_: KubeClient, node: str) -> str:
        return "host (pid 1)" if node == "remote" else ""

    monkeypatch.setattr(serving_bridge_lookup, "find_serving_bridge", served)
    monkeypatch.setattr(eviction, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(eviction, "POLL_SECONDS", 0.01)
    two.home.put(examples.node())
    two.home.put(objects.node("real"))
    async with KubeClient(client_config_for(two.home, "home")) as client:
        two.home.clear_log()
        yield client


def daemon_set(name: str, namespace: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": {}}


def unschedulable(two: Clusters, name: str = "remote") -> object:
    return two.home.get(NODES, name)["spec"].get("unschedulable")


async def test_cordon_and_uncordon_write_only_changes(two: Clusters, home: KubeClient) -> None:
    for wanted in (True, False):
        assert await drain_procedure.cordon(home, "remote", unschedulable=wanted, dry_run=False)
        assert bool(unschedulable(two)) == wanted
        assert not await drain_procedure.cordon(home, "remote", unschedulable=wanted, dry_run=False)
    assert len(two.home.writes()) == 2


async def test_dry_run_of_cordon_and_drain_changes_nothing(two: Clusters, home: KubeClient) -> None:
    two.home.put(objects.pod("web", "shop", node="remote"))
    before = two.home.store.history.revision
    assert await drain_procedure.cordon(home, "remote", unschedulable=True, dry_run=True)
    done = await drain_procedure.drain(
        home, "remote", options=EVICT_ALL, timeout=1, dry_run=True, notify=pytest.fail
    )
    assert drain_procedure.pod_references(done.evicted) == [{"namespace": "shop", "name": "web"}]
    assert two.home.store.history.revision == before
    assert {it.query.get("dryRun") for it in two.home.writes()} == {"All"}


async def test_unmanaged_and_unknown_nodes_are_rejected(two: Clusters, home: KubeClient) -> None:
    for name, why in (("real", "is not a bridge's virtual node"), ("other", "there is no node")):
        with pytest.raises(PreflightError, match=why):
            await drain_procedure.cordon(home, name, unschedulable=True, dry_run=False)
        with pytest.raises(PreflightError, match=why):
            await drain_procedure.drain(
                home, name, options=EVICT_ALL, timeout=1, dry_run=False, notify=pytest.fail
            )
    assert not two.home.writes()


async def test_drain_evicts_all_but_daemonset_pods(two: Clusters, home: KubeClient) -> None:
    notified: list[str] = []
    two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.put(objects.pod("other", "shop", node="real"))
    daemon = objects.pod("agent", "shop", node="remote")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a", "uid": "u"}
    daemon["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    two.home.put(daemon)
    two.home.put(daemon_set("a", "shop"))

    async def ends() -> None:
        """Terminates the evicted pod as the bridge does."""
        await two.home.until(lambda: two.home.requests("POST", "*/web/eviction"))
        await two.home.until(
            lambda: (
                not (pod := two.home.find(PODS, "web", "shop"))
                or "deletionTimestamp" in pod["metadata"]
            )
        )
        if two.home.find(PODS, "web", "shop"):
            two.home.remove(PODS, "web", "shop")

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        group.create_task(ends())
        done = await drain_procedure.drain(
            home, "remote", options=EVICT_ALL, timeout=SOON, dry_run=False, notify=notified.append
        )
    assert done.newly_cordoned
    assert drain_procedure.pod_references(done.evicted) == [{"namespace": "shop", "name": "web"}]
    assert drain_procedure.pod_references(done.skipped) == [{"namespace": "shop", "name": "agent"}]
    assert unschedulable(two)
    assert two.home.find(PODS, "agent", "shop")
    assert two.home.find(PODS, "other", "shop")
    assert notified == [
        "home: node remote is cordoned",
        "home: 1 of 1 pod(s) evicted",
    ]


async def test_drain_blocked_by_a_budget_names_the_alternative(
    two: Clusters, home: KubeClient
) -> None:
    two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.api.budget = lambda _: "the budget allows no eviction"
    with pytest.raises(PreflightError) as raised:
        await drain_procedure.drain(
            home, "remote", options=EVICT_ALL, timeout=0.2, dry_run=False, notify=lambda _: None
        )
    assert "shop/web: the budget allows no eviction" in str(raised.value)
    assert "run `bridge uncordon` to use the node again" in str(raised.value)
    assert unschedulable(two)


async def test_drain_requires_a_serving_bridge(
    two: Clusters, home: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(_: KubeClient, __: str) -> str | None:
        return ""

    monkeypatch.setattr(serving_bridge_lookup, "find_serving_bridge", nobody)
    with pytest.raises(PreflightError, match="no bridge serves node remote"):
        await drain_procedure.drain(
            home, "remote", options=EVICT_ALL, timeout=1, dry_run=False, notify=pytest.fail
        )
    assert not two.home.writes()


# -- pods that take an option ------------------------------------------------------------


def owned_by(kind: str, owner_name: str = "a", *, name: str = "web") -> Object:
    """A pod of the virtual node that a controller created."""
    made = objects.pod(name, "shop", node="remote")
    owner: Object = {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "uid": "u"}
    owner["controller"] = True
    made["metadata"]["ownerReferences"] = [owner]
    return made


def with_empty_dir(pod: Object) -> Object:
    pod["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    return pod


def finished(pod: Object) -> Object:
    return pod | {"status": {"phase": "Succeeded"}}


@pytest.mark.parametrize(
    ("pod", "options", "flag"),
    [
        (objects.pod("web", "shop", node="remote"), DrainOptions(), "--force evicts them"),
        (with_empty_dir(owned_by("ReplicaSet")), DrainOptions(), "--delete-emptydir-data evicts"),
        (owned_by("DaemonSet"), DrainOptions(ignore_daemonsets=False), "--ignore-daemonsets"),
        (owned_by("DaemonSet", "gone"), DrainOptions(), "no longer exists (--force evicts them)"),
    ],
    ids=["no controller", "emptyDir", "DaemonSet", "deleted DaemonSet"],
)
async def test_blocking_pods_prevent_the_drain_before_any_write(
    two: Clusters, home: KubeClient, pod: Object, options: DrainOptions, flag: str
) -> None:
    two.home.put(pod)
    two.home.put(owned_by("ReplicaSet", name="may-go"))
    two.home.put(daemon_set("a", "shop"))
    with pytest.raises(PreflightError) as raised:
        await drain_procedure.drain(
            home, "remote", options=options, timeout=1, dry_run=False, notify=pytest.fail
        )
    assert "no pod was evicted" in str(raised.value)
    assert flag in str(raised.value)
    assert "shop/web" in str(raised.value)
    assert "may-go" not in str(raised.value)
    assert not two.home.writes()


async def test_filters_evict_finished_and_allowed_pods_and_skip_mirror_pods() -> None:
    mirror = objects.pod("static", "shop", node="remote")
    mirror["metadata"]["annotations"] = {pod_filters.MIRROR: "x"}
    orphan = owned_by("DaemonSet", "gone", name="orphan")
    orphan["metadata"]["uid"] = "orphan"
    pods = [
        finished(objects.pod("done", "shop")),
        finished(with_empty_dir(owned_by("DaemonSet", name="done-daemon"))),
        owned_by("ReplicaSet", name="controlled"),
    ]
    found = pod_filters.plan_drain([*pods, mirror], DrainOptions())
    assert (found.evict, found.skipped, found.blocking) == (pods, [mirror], {})
    all_pods = [*pods, orphan, with_empty_dir(objects.pod("bare", "shop"))]
    found = pod_filters.plan_drain(all_pods, EVICT_ALL, orphans={"orphan"})
    assert (found.evict, found.blocking) == (all_pods, {})


# -- evictions that fail -----------------------------------------------------------------


class Draining:
    """A drain of two pods; a simulated bridge terminates evicted pods."""

    def __init__(self, two: Clusters, home: KubeClient) -> None:
        self.two = two
        self._home = home
        self.notified: list[str] = []
        for name in ("bad", "good"):
            two.home.put(objects.pod(name, "shop", node="remote"))

    async def run(self, *, timeout: float = SOON, grace: int | None = None) -> str:
        """Drains, and returns the error; "" for none."""
        serving = asyncio.create_task(self._serve())
        options = DrainOptions(force=True, grace_period=grace)
        try:
            await drain_procedure.drain(
                self._home,
                "remote",
                options=options,
                timeout=timeout,
                dry_run=False,
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


async def test_conflict_on_a_re_created_pod_counts_as_deletion(
    draining: Draining,
) -> None:
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


async def test_grace_period_is_sent_with_the_eviction(draining: Draining) -> None:
    assert await draining.run(grace=7) == ""
    (request,) = draining.two.home.requests("POST", "*/bad/eviction")
    assert request.body["deleteOptions"]["gracePeriodSeconds"] == 7
