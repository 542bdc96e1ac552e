"""Pods that the remote rejects, temporarily or permanently, and their status at home."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.api_resources import NODES, PODS
from tests import objects
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import LABEL_HOME, has_home_uid, remote_metadata


def conditions(harness: EngineHarness) -> dict[str, str]:
    """The home pod's conditions."""
    return {c["type"]: c["status"] for c in harness.status()["conditions"]}


@pytest.mark.parametrize(("code", "reason"), [(403, "RemoteForbidden"), (500, "RemoteServerError")])
@pytest.mark.parametrize("graceful", [True, False])
async def test_pod_that_ran_and_cannot_be_created_again_is_not_ready_and_has_no_address(
    harness: EngineHarness, code: int, reason: str, graceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await harness.start_running()
    assert harness.status()["podIP"]
    fault = harness.remote.fail(
        Fault("POST", "*/pods", code=code, message='webhook "x.example.com" denied', times=None)
    )
    if graceful:
        harness.remote.delete(PODS, "a", REMOTE_NAMESPACE, grace_seconds=1)
        await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.remote.until(lambda: fault.hits >= 4)

    status = harness.status()
    assert (status["phase"], status["reason"]) == ("Pending", reason)
    assert 'webhook "x.example.com" denied' in status["message"]
    assert conditions(harness)["Ready"] == "False"
    assert not {"podIP", "podIPs"} & status.keys()
    (container,) = status["containerStatuses"]
    assert container["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert not container["ready"]
    assert len(await harness.events_with_reason(reason)) == 1

    harness.remote.heal()
    await harness.settle()
    harness.report_running()
    await harness.settle()
    assert "reason" not in harness.status()
    assert conditions(harness)["Ready"] == "True"
    assert harness.status()["podIP"]


async def test_pod_that_ran_is_not_ready_before_its_creation_is_answered(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    harness.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.home.until(lambda: conditions(harness)["Ready"] == "False")
    assert "podIP" not in harness.status()


async def test_server_error_is_reported_from_the_second_on_and_its_event_is_not_repeated(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages may differ each time: the status follows, the Event does not."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await harness.start()
    for number in range(4):
        harness.remote.fail(Fault("POST", "*/pods", code=500, message=f"attempt {number} failed"))
    harness.remote.fail(Fault("POST", "*/pods", code=503, message="no endpoints", times=None))
    harness.pod()
    await harness.home.until(lambda: "no endpoints" in harness.status().get("message", ""))
    (event,) = await harness.events_with_reason("RemoteServerError")
    assert event["message"].startswith("remote: creating the pod failed: attempt ")
    assert event["count"] == 1
    assert conditions(harness) == {"cluster-bridge.io/Accepted": "False"}


async def test_pod_that_moves_between_virtual_nodes_takes_its_name_at_once(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A StatefulSet's pod that was force-deleted at home: the other bridge deletes its remote
    pod."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_FIRST", 60.0)
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 60.0)
    await harness.start()
    namespace = {"labels": {LABEL_HOME: harness.identity.home_id}}
    harness.remote.put(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": REMOTE_NAMESPACE, **namespace},
        }
    )
    former = pod("a", REMOTE_NAMESPACE)
    former["metadata"] |= remote_metadata(
        pod("a") | {"metadata": {"name": "a", "namespace": "default", "uid": "previous"}},
        replace(harness.identity, node="other"),
    )
    former["metadata"] |= {"name": "a", "namespace": REMOTE_NAMESPACE}
    harness.remote.put(former)
    harness.pod()
    (event,) = await harness.events_with_reason("RemotePodTerminating")
    assert "of virtual node other" in event["message"]
    await harness.settle(waiting=True)
    assert harness.status()["reason"] == "RemotePodTerminating"

    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.remote.until(
        lambda: has_home_uid(harness.remote_pod() or {}, harness.home_pod()["metadata"]["uid"])
    )


async def test_pod_bound_by_hand_that_selects_other_nodes_is_rejected(
    harness: EngineHarness,
) -> None:
    await harness.start()
    node = harness.home.put(objects.node("virtual"))
    harness.engine.pods.admission.cached_node = lambda: node
    harness.pod(nodeSelector={"zone": "a"})
    await harness.settle()
    assert (harness.status()["phase"], harness.status()["reason"]) == ("Failed", "NodeAffinity")
    assert harness.remote_pod() is None


async def test_label_added_just_before_the_pod_counts(harness: EngineHarness) -> None:
    """The cache of the Node lags behind that of the pods."""
    await harness.start()
    stale = harness.home.put(objects.node("virtual"))
    harness.engine.pods.admission.cached_node = lambda: stale
    harness.home.update(NODES, "virtual", {"metadata": {"labels": {"zone": "a"}}})
    harness.pod(nodeSelector={"zone": "a"})
    await harness.settle()
    assert harness.remote_pod() is not None


@pytest.mark.parametrize("code", [403, 500])
async def test_deadline_of_a_blocked_pod_passes(harness: EngineHarness, code: int) -> None:
    fault = harness.remote.fail(Fault("POST", "*/pods", code=code, times=None))
    await harness.start()
    harness.pod(activeDeadlineSeconds=60)
    await harness.remote.until(lambda: fault.hits >= 3)
    harness.now = "2030-01-01T00:02:00Z"
    await harness.home.until(lambda: harness.status().get("phase") == "Failed")
    assert harness.status()["reason"] == "DeadlineExceeded"
    assert len(await harness.events_with_reason("DeadlineExceeded")) == 1
