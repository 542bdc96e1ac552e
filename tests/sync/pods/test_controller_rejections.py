"""Pods that the remote does not create, for now or for good, and what home shows meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.resources import NODES, PODS
from tests import objects
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.world import THERE, World
from translators.identity import LABEL_HOME, has_home_uid, remote_metadata


def conditions(world: World) -> dict[str, str]:
    """The home pod's conditions."""
    return {c["type"]: c["status"] for c in world.status()["conditions"]}


@pytest.mark.parametrize(("code", "reason"), [(403, "RemoteForbidden"), (500, "RemoteServerError")])
@pytest.mark.parametrize("graceful", [True, False])
async def test_pod_that_ran_and_cannot_be_created_again_is_not_ready_and_has_no_address(
    world: World, code: int, reason: str, graceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await world.start_running()
    assert world.status()["podIP"]
    fault = world.remote.fail(
        Fault("POST", "*/pods", code=code, message='webhook "x.example.com" denied', times=None)
    )
    if graceful:
        world.remote.delete(PODS, "a", THERE, grace_seconds=1)
        await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.remote.until(lambda: fault.hits >= 4)

    status = world.status()
    assert (status["phase"], status["reason"]) == ("Pending", reason)
    assert 'webhook "x.example.com" denied' in status["message"]
    assert conditions(world)["Ready"] == "False"
    assert not {"podIP", "podIPs"} & status.keys()
    (container,) = status["containerStatuses"]
    assert container["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert not container["ready"]
    assert len(await world.events_with_reason(reason)) == 1

    world.remote.heal()
    await world.settle()
    world.runs()
    await world.settle()
    assert "reason" not in world.status()
    assert conditions(world)["Ready"] == "True"
    assert world.status()["podIP"]


async def test_pod_that_ran_is_not_ready_before_its_creation_is_answered(world: World) -> None:
    await world.start_running()
    world.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    world.remote.remove(PODS, "a", THERE)
    await world.home.until(lambda: conditions(world)["Ready"] == "False")
    assert "podIP" not in world.status()


async def test_server_error_is_reported_from_the_second_on_and_its_event_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages may differ each time: the status follows, the Event does not."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await world.start()
    for number in range(4):
        world.remote.fail(Fault("POST", "*/pods", code=500, message=f"attempt {number} failed"))
    world.remote.fail(Fault("POST", "*/pods", code=503, message="no endpoints", times=None))
    world.pod()
    await world.home.until(lambda: "no endpoints" in world.status().get("message", ""))
    (event,) = await world.events_with_reason("RemoteServerError")
    assert event["message"].startswith("remote: creating the pod failed: attempt ")
    assert event["count"] == 1
    assert conditions(world) == {"cluster-bridge.io/Accepted": "False"}


async def test_pod_that_moves_between_virtual_nodes_takes_its_name_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A StatefulSet's, which was force-deleted at home: the other bridge deletes the remote pod."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_FIRST", 60.0)
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 60.0)
    await world.start()
    namespace = {"labels": {LABEL_HOME: world.identity.home_id}}
    world.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THERE, **namespace}}
    )
    former = pod("a", THERE)
    former["metadata"] |= remote_metadata(
        pod("a") | {"metadata": {"name": "a", "namespace": "default", "uid": "former"}},
        replace(world.identity, node="other"),
    )
    former["metadata"] |= {"name": "a", "namespace": THERE}
    world.remote.put(former)
    world.pod()
    (event,) = await world.events_with_reason("RemotePodTerminating")
    assert "of virtual node other" in event["message"]
    await world.settle(waiting=True)
    assert world.status()["reason"] == "RemotePodTerminating"

    world.remote.remove(PODS, "a", THERE)
    await world.remote.until(
        lambda: has_home_uid(world.remote_pod() or {}, world.home_pod()["metadata"]["uid"])
    )


# -- admission -----------------------------------------------------------------------------


async def test_pod_bound_by_hand_that_selects_other_nodes_is_rejected(world: World) -> None:
    await world.start()
    node = world.home.put(objects.node("virtual"))
    world.engine.pods.admission.cached_node = lambda: node
    world.pod(nodeSelector={"zone": "a"})
    await world.settle()
    assert (world.status()["phase"], world.status()["reason"]) == ("Failed", "NodeAffinity")
    assert world.remote_pod() is None


async def test_label_added_just_before_the_pod_counts(world: World) -> None:
    """The cache of the Node lags behind that of the pods."""
    await world.start()
    stale = world.home.put(objects.node("virtual"))
    world.engine.pods.admission.cached_node = lambda: stale
    world.home.update(NODES, "virtual", {"metadata": {"labels": {"zone": "a"}}})
    world.pod(nodeSelector={"zone": "a"})
    await world.settle()
    assert world.remote_pod() is not None


@pytest.mark.parametrize("code", [403, 500])
async def test_deadline_of_a_blocked_pod_passes(world: World, code: int) -> None:
    fault = world.remote.fail(Fault("POST", "*/pods", code=code, times=None))
    await world.start()
    world.pod(activeDeadlineSeconds=60)
    await world.remote.until(lambda: fault.hits >= 3)
    world.now = "2030-01-01T00:02:00Z"
    await world.home.until(lambda: world.status().get("phase") == "Failed")
    assert world.status()["reason"] == "DeadlineExceeded"
    assert len(await world.events_with_reason("DeadlineExceeded")) == 1
