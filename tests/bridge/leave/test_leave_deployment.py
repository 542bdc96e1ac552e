"""`bridge leave --deployment`: the node's bridges stop between the evictions and the removal, and
another tool removes their Deployment."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.install import uninstall
from sync.kube.api_resources import DEPLOYMENTS, NODES, PODS
from tests.bridge.leave.test_leave_procedure import World, lease, marked, often
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.engine_harness import NODE
from translators.object_accessors import Object

pytestmark = pytest.mark.usefixtures("soon", "often")

__all__ = ["often"]

PLACE, NAME = "bridges", f"cluster-bridge-{NODE}"
LABELS = {"app.kubernetes.io/instance": NAME}
#: Path of the subresource that scales the Deployment.
SCALE = f"{DEPLOYMENTS.path(NAME, namespace=PLACE)}/scale"


def deployment(**annotations: str) -> Object:
    """The Deployment of the node's bridges."""
    found = annotations or {"cluster-bridge.io/node": NODE}
    meta = {"name": NAME, "namespace": PLACE, "annotations": found}
    return DEPLOYMENTS.manifest(meta, spec={"replicas": 2, "selector": {"matchLabels": LABELS}})


def bridge() -> Object:
    """A pod of the Deployment."""
    made = pod("bridge-1", PLACE)
    made["metadata"]["labels"] = LABELS
    return made


@pytest.fixture
def world(two: Clusters) -> World:
    """A node without pods, whose bridge is a pod of the home cluster that serves it."""
    made = World(two)
    two.home.put(deployment())
    two.home.put(bridge())
    two.home.put(lease(holder=NODE))
    made.settings = replace(made.settings, deployment=(PLACE, NAME))
    return made


async def end_bridge(world: World) -> list[str]:
    """Ends the bridge's pod once the Deployment is scaled to 0; the names of the pods that are on
    the node then."""
    home = world.two.home
    await home.until(lambda: home.writes(SCALE))
    on_node = [found for found in home.objects(PODS) if found["spec"].get("nodeName") == NODE]
    assert home.find(NODES, NODE), "the removal has not begun"
    home.put(lease())
    home.remove(PODS, "bridge-1", PLACE)
    return [found["metadata"]["name"] for found in on_node]


@pytest.mark.parametrize("drained", [True, False])
async def test_bridges_stop_after_evictions_and_before_the_removal(
    world: World, drained: bool
) -> None:
    home = world.two.home
    world.workload()
    leaving = asyncio.create_task(world.leave(replace(world.settings, drain=drained)))
    if drained:
        await home.until(
            lambda: "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"]
        )
        assert home.writes(SCALE) == [], "the bridge ends the evicted pod"
        home.remove(PODS, "web", "default")
    assert await end_bridge(world) == ([] if drained else ["web"])
    assert await leaving
    assert f"home:   Deployment {PLACE}/{NAME} is scaled to 0" in world.confirmations[0]
    assert home.find(NODES, NODE) is None
    assert marked(world.two.remote) == []
    kept = home.get(DEPLOYMENTS, NAME, PLACE)
    assert kept["spec"] == {**deployment()["spec"], "replicas": 0}
    (scaled,) = home.writes(f"*/deployments/{NAME}*")
    assert (scaled.method, scaled.path) == ("PATCH", SCALE)


async def test_bridges_that_do_not_end_are_named_and_leaving_again_continues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "TERMINATION_SECONDS", 0.05)
    with pytest.raises(PreflightError, match=f"pods of Deployment {PLACE}/{NAME} have not"):
        await world.leave()
    home = world.two.home
    assert home.find(NODES, NODE)
    assert home.get(DEPLOYMENTS, NAME, PLACE)["spec"]["replicas"] == 0
    leaving = asyncio.create_task(world.leave())
    await end_bridge(world)
    assert await leaving


async def test_deployment_of_another_node_is_rejected_before_any_change(world: World) -> None:
    home = world.two.home
    for found, value in (({"cluster-bridge.io/node": "other"}, "other"), ({"x": "y"}, "missing")):
        home.remove(DEPLOYMENTS, NAME, PLACE)
        home.put(deployment(**found))
        home.clear_log()
        error = await world.refused(world.settings)
        assert f"home: Deployment {PLACE}/{NAME} does not run the bridges of node {NODE}" in error
        assert f"cluster-bridge.io/node is {value}; nothing was changed" in error


async def test_deployment_that_does_not_exist_is_reported(world: World) -> None:
    """A bridge that still serves the node is an error, as without the option."""
    home = world.two.home
    home.remove(DEPLOYMENTS, NAME, PLACE)
    home.clear_log()
    assert "a bridge serves node" in await world.refused(world.settings)
    home.put(lease())
    assert await world.leave()
    warning = f"home: Deployment {PLACE}/{NAME} does not exist, so no bridge is stopped"
    assert warning in world.notified
    assert home.find(NODES, NODE) is None


async def test_forbidden_deployment_changes_nothing(world: World) -> None:
    world.two.home.fail(Fault("GET", f"*/deployments/{NAME}", code=403))
    assert "403" in await world.refused(world.settings)


async def test_node_that_a_bridge_created_before_it_stopped_is_removed(world: World) -> None:
    home = world.two.home
    home.remove(NODES, NODE)
    settings = replace(world.settings, remote=world.two.settings.remote)
    leaving = asyncio.create_task(world.leave(settings))
    await home.until(lambda: home.writes(SCALE))
    home.put(world.node)
    await end_bridge(world)
    assert await leaving
    assert home.find(NODES, NODE) is None
