"""`bridge cordon`, `uncordon` and `drain`: our nodes alone, and nothing where nothing is to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bridge import cordon, drain
from bridge.node import leaver
from bridge.preflight.checks import PreflightError
from sync.kube.client import KubeClient
from sync.kube.resources import NODES, PODS
from tests import objects
from tests.bridge.clusters import Clusters
from tests.bridge.joined import SOON
from tests.bridge.status import examples
from tests.fakeapi.credentials import access_to


@pytest.fixture
async def home(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """Home, for a person, with one virtual node that is served, and another."""

    async def served(_: KubeClient, node: str) -> str:
        return "host (pid 1)" if node == "remote" else ""

    monkeypatch.setattr(leaver, "served_by", served)
    monkeypatch.setattr(drain, "RETRY", 0.01)
    monkeypatch.setattr(drain, "POLL", 0.01)
    two.home.put(examples.node())
    two.home.put(objects.node("real"))
    async with KubeClient(access_to(two.home, "home")) as client:
        two.home.clear_log()
        yield client


def unschedulable(two: Clusters, name: str = "remote") -> object:
    return two.home.get(NODES, name)["spec"].get("unschedulable")


async def test_there_and_back_each_once(two: Clusters, home: KubeClient) -> None:
    for wanted in (True, False):
        assert await cordon.cordon(home, "remote", wanted=wanted, dry_run=False)
        assert bool(unschedulable(two)) == wanted
        assert not await cordon.cordon(home, "remote", wanted=wanted, dry_run=False)
    assert len(two.home.writes()) == 2


async def test_a_dry_run_changes_nothing(two: Clusters, home: KubeClient) -> None:
    two.home.put(objects.pod("web", "shop", node="remote"))
    before = two.home.store.history.revision
    assert await cordon.cordon(home, "remote", wanted=True, dry_run=True)
    done = await cordon.drain(home, "remote", timeout=1, dry_run=True, told=pytest.fail)
    assert cordon.named(done.evicted) == [{"namespace": "shop", "name": "web"}]
    assert two.home.store.history.revision == before
    assert {it.query.get("dryRun") for it in two.home.writes()} == {"All"}


async def test_nodes_of_others_are_left_alone(two: Clusters, home: KubeClient) -> None:
    for name, why in (("real", "is not a bridge's virtual node"), ("other", "there is no node")):
        with pytest.raises(PreflightError, match=why):
            await cordon.cordon(home, name, wanted=True, dry_run=False)
        with pytest.raises(PreflightError, match=why):
            await cordon.drain(home, name, timeout=1, dry_run=False, told=pytest.fail)
    assert not two.home.writes()


async def test_a_drain_evicts_all_but_daemons(two: Clusters, home: KubeClient) -> None:
    told: list[str] = []
    two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.put(objects.pod("other", "shop", node="real"))
    daemon = objects.pod("agent", "shop", node="remote")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a", "uid": "u"}
    daemon["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    two.home.put(daemon)

    async def ends() -> None:
        """As the bridge does when it sees that the pod is to go."""
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
        done = await cordon.drain(home, "remote", timeout=SOON, dry_run=False, told=told.append)
    assert done.changed
    assert cordon.named(done.evicted) == [{"namespace": "shop", "name": "web"}]
    assert cordon.named(done.stay) == [{"namespace": "shop", "name": "agent"}]
    assert unschedulable(two)
    assert two.home.find(PODS, "agent", "shop")
    assert two.home.find(PODS, "other", "shop")
    assert told == [
        "home: node remote takes no new pods",
        "home: 1 of 1 pod(s) are off the node",
    ]


async def test_a_drain_that_a_budget_holds_up_says_what_one_can_do(
    two: Clusters, home: KubeClient
) -> None:
    two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.api.budget = lambda _: "the budget says no"
    with pytest.raises(PreflightError) as raised:
        await cordon.drain(home, "remote", timeout=0.2, dry_run=False, told=lambda _: None)
    assert "shop/web: the budget says no" in str(raised.value)
    assert "`bridge uncordon` takes the node back into use" in str(raised.value)
    assert unschedulable(two)


async def test_a_drain_needs_the_bridge(
    two: Clusters, home: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(_: KubeClient, __: str) -> str | None:
        return ""

    monkeypatch.setattr(leaver, "served_by", nobody)
    with pytest.raises(PreflightError, match="no bridge serves node remote"):
        await cordon.drain(home, "remote", timeout=1, dry_run=False, told=pytest.fail)
    assert not two.home.writes()
