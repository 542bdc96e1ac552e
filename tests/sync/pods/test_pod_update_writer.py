"""Updates of a running pod by patch, resize and ephemeral containers, and the remote's
responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sync.base.background_task import background_task
from sync.kube.api_resources import EVENTS, PODS, PRIORITY_CLASSES, Object
from tests.fakeapi import Fault
from tests.objects import config_map
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from tests.sync.kept_writes import kept_bytes

_DEBUGGER = {
    "name": "debugger",
    "image": "busybox:1",
    "envFrom": [{"configMapRef": {"name": "tools"}}],
}


async def _running(harness: EngineHarness, **spec: Any) -> None:
    await harness.start()
    harness.pod(**spec)
    await harness.settle()
    harness.report_running()
    await harness.settle()
    harness.clear_logs()


def _change(harness: EngineHarness, **container: object) -> None:
    before = harness.home_pod()["spec"]["containers"][0]
    harness.home.update(PODS, "a", {"spec": {"containers": [{**before, **container}]}}, "default")


def _remote_writes(harness: EngineHarness) -> list[str]:
    return [write for write in harness.writes() if write.startswith("remote")]


async def test_label_of_remote_admission_stays_on_a_pod(harness: EngineHarness) -> None:
    """A NetworkPolicy of the remote may select by it; without it, the pod would be reachable."""
    await harness.start_running(labels={"app": "web"})
    theirs: Object = {"labels": {"network-zone": "restricted"}, "annotations": {"zone": "a"}}
    harness.clear_logs()
    harness.remote.update(PODS, "a", {"metadata": theirs}, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote.writes() == []
    harness.home.update(PODS, "a", {"metadata": {"labels": {"app": None, "b": "c"}}}, "default")
    await harness.settle()
    labels = (harness.remote_pod() or {})["metadata"]["labels"]
    assert labels["network-zone"] == "restricted"
    assert "app" not in labels


async def test_ephemeral_container_is_added_after_its_references(harness: EngineHarness) -> None:
    harness.home.put(config_map("tools"))
    await _running(harness)
    harness.home.update(PODS, "a", {"spec": {"ephemeralContainers": [_DEBUGGER]}}, "default")
    await harness.settle()
    pods = f"remote PATCH /api/v1/namespaces/{REMOTE_NAMESPACE}/pods/a"
    assert _remote_writes(harness) == [
        f"remote POST /api/v1/namespaces/{REMOTE_NAMESPACE}/configmaps",
        f"{pods}/ephemeralcontainers",
    ]
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["ephemeralContainers"][0]["name"] == "debugger"
    await harness.restart()
    assert harness.writes() == []


async def test_fields_of_an_ephemeral_container_that_the_remote_drops_are_an_event(
    harness: EngineHarness,
) -> None:
    await _running(harness)

    def drop(obj: Object) -> None:
        for container in obj.get("spec", {}).get("ephemeralContainers") or ():
            container.pop("securityContext", None)

    harness.remote.store.webhook = drop
    debugger = {"name": "debugger", "image": "busybox:1", "securityContext": {"runAsUser": 7}}
    harness.home.update(PODS, "a", {"spec": {"ephemeralContainers": [debugger]}}, "default")
    (event,) = await harness.events_with_reason("FieldDropped")
    assert "spec.ephemeralContainers[debugger].securityContext" in event["message"]


async def test_recreated_pod_gets_its_ephemeral_container(harness: EngineHarness) -> None:
    harness.pod()
    harness.home.update(PODS, "a", {"spec": {"ephemeralContainers": [_DEBUGGER]}}, "default")
    await harness.start()
    remote = harness.remote_pod()
    assert remote
    assert [it["name"] for it in remote["spec"]["ephemeralContainers"]] == ["debugger"]


async def test_resize_uses_its_subresource_and_keeps_remote_defaults(
    harness: EngineHarness,
) -> None:
    def limit_ranger(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["resources"].setdefault("limits", {"memory": "1Gi"})

    harness.remote.store.webhook = limit_ranger
    await _running(harness)
    _change(harness, resources={"requests": {"cpu": "2"}})
    await harness.settle()
    pods = f"remote PATCH /api/v1/namespaces/{REMOTE_NAMESPACE}/pods/a"
    assert _remote_writes(harness) == [f"{pods}/resize", pods], "which is recorded"
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }


def _resizes(harness: EngineHarness) -> list[str]:
    return [write for write in _remote_writes(harness) if write.endswith("/resize")]


async def test_requests_that_the_remotes_admission_changes_are_not_resized_back(
    harness: EngineHarness,
) -> None:
    """Neither after a restart, nor where the QoS class differs; home's own resize follows."""

    def guaranteed(obj: Object) -> None:
        if obj["kind"] == "Pod":
            amounts = {"cpu": "1", "memory": "1Gi"}
            obj["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}

    harness.remote.store.webhook = guaranteed
    await harness.start()
    resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    harness.pod(containers=[{"name": "main", "image": "busybox:1", "resources": resources}])
    await harness.settle()
    harness.remote.store.webhook = None
    harness.report_running()
    await harness.settle()
    await harness.restart()
    assert _remote_writes(harness) == []
    assert not [it for it in harness.home.objects(EVENTS) if it["reason"] == "UpdateRefused"]
    status = harness.status()
    assert status["observedGeneration"] == harness.home_pod()["metadata"]["generation"]
    _change(harness, resources={"requests": {"cpu": "500m"}, "limits": {"cpu": "200m"}})
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    }
    assert len(_resizes(harness)) == 1
    await harness.restart()
    assert harness.writes() == []


async def test_reverted_update_counts_as_observed(harness: EngineHarness) -> None:
    await _running(harness)

    def relabelled(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["metadata"].setdefault("labels", {})["team"] = "theirs"

    harness.remote.store.webhook = relabelled
    harness.home.update(PODS, "a", {"metadata": {"labels": {"team": "ours"}}}, "default")
    _change(harness, image="busybox:2")
    await harness.settle()
    harness.report_running()
    await harness.settle()
    assert harness.status()["observedGeneration"] == harness.home_pod()["metadata"]["generation"]


def _pending(harness: EngineHarness) -> Object | None:
    found = [it for it in harness.status()["conditions"] if it["type"] == "PodResizePending"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("spec.containers[0]: node has 4 cpu allocatable", "Infeasible"),
        ('pods "a" is forbidden: exceeded quota: small', "Deferred"),
    ],
)
async def test_rejected_resize_sets_the_condition_of_a_kubelet(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, words: str, reason: str
) -> None:
    """The condition stays, also after a restart, until the remote accepts another resize."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(harness)
    fault = harness.remote.fail(
        Fault("PATCH", "*/pods/a/resize", code=403, message=words, times=None)
    )
    _change(harness, resources={"requests": {"cpu": "2000"}})
    await harness.home.until(lambda: _pending(harness))
    condition = _pending(harness)
    assert condition
    assert (condition["status"], condition["reason"]) == ("True", reason)
    assert words in condition["message"]
    assert condition["lastTransitionTime"]
    hits = fault.hits
    await harness.remote.until(lambda: fault.hits > hits + 2)
    assert _pending(harness) == condition, "it does not flap"
    await harness.stop()
    harness.clear_logs()
    await harness.start(settle=False)
    hits = fault.hits
    await harness.remote.until(lambda: fault.hits > hits)
    assert _pending(harness) == condition
    assert not [it for it in harness.home.writes() if it.path.endswith("/status")], "nor then"
    _change(harness, resources={"requests": {"cpu": "1"}})
    hits = fault.hits
    await harness.remote.until(lambda: fault.hits > hits + 1)
    assert _pending(harness), "another that is refused"
    harness.remote.heal()
    await harness.settle()
    assert _pending(harness) is None
    assert len(await harness.events_with_reason("UpdateRefused")) == 1


async def test_reverted_resize_is_no_longer_pending(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(harness)
    before = harness.home_pod()["spec"]["containers"][0].get("resources") or {}
    harness.remote.fail(Fault("PATCH", "*/pods/a/resize", code=422, message="no", times=None))
    _change(harness, resources={"requests": {"cpu": "2000"}})
    await harness.home.until(lambda: _pending(harness))
    _change(harness, resources=before)
    await harness.home.until(lambda: _pending(harness) is None)


async def test_an_image_that_a_webhook_chose_stays_until_home_changes_its_own(
    harness: EngineHarness,
) -> None:
    def mirrored(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["image"] = "mirror/busybox:1"

    harness.remote.store.webhook = mirrored
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.remote.store.webhook = None
    harness.report_running()
    await harness.settle()
    await harness.restart()
    assert _remote_writes(harness) == []
    _change(harness, image="busybox:2")
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["image"] == "busybox:2"


async def test_update_reverted_by_a_webhook_is_not_repeated(harness: EngineHarness) -> None:
    await _running(harness)

    def small(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}

    harness.remote.store.webhook = small
    _change(harness, resources={"requests": {"cpu": "2"}})
    await harness.settle()
    for number in range(3):
        harness.report_running(message=f"status {number}")
        await harness.settle()
    assert len(_resizes(harness)) == 1
    _change(harness, resources={"requests": {"cpu": "3"}})
    await harness.settle()
    assert len(_resizes(harness)) == 2, "another change is another try"
    harness.clear_logs()
    harness.remote.store.webhook = None
    harness.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["metadata"]["labels"]["x"] == "y"
    assert len(_remote_writes(harness)) == 1, "what is futile keeps nothing else back"


async def test_rejected_update_does_not_hold_up_others(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(harness)
    fault = harness.remote.fail(Fault("PATCH", "*/pods/a", code=422, message="no", times=None))
    _change(harness, image="busybox:2", resources={"requests": {"cpu": "2"}})
    await harness.events_with_reason("UpdateRefused")
    await harness.remote.until(lambda: fault.hits >= 2)
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    harness.remote.heal()
    await harness.settle()
    assert len(await harness.events_with_reason("UpdateRefused")) == 1


async def test_dropped_fields_are_reported_in_one_event(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(schedulerName="mine", priorityClassName="urgent")
    (event,) = await harness.events_with_reason("FieldDropped")
    await harness.settle()
    assert "spec.schedulerName: names a scheduler of home" in event["message"]
    assert "; spec.priorityClassName: urgent is not a PriorityClass" in event["message"]
    assert len(harness.home.objects(EVENTS)) == 1


async def test_priority_class_that_the_remote_has_is_kept(harness: EngineHarness) -> None:
    meta = {"name": "urgent"}
    harness.remote.put({**_CLASS, "metadata": meta})
    await harness.start()
    harness.pod(priorityClassName="urgent", priority=7)
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["priorityClassName"] == "urgent"
    assert harness.home.objects(EVENTS) == []


_CLASS = {"apiVersion": PRIORITY_CLASSES.api_version, "kind": "PriorityClass", "value": 7}


async def test_rejected_pod_is_reported_once_and_nothing_is_copied_for_it(
    harness: EngineHarness,
) -> None:
    harness.home.put(config_map("conf"))
    await harness.start()
    harness.pod(uses=["cm/conf"], hostNetwork=True)
    await harness.events_with_reason("FieldRefused")
    await harness.settle()
    assert harness.status()["reason"] == "FieldRefused"
    assert harness.status()["message"].startswith("spec.hostNetwork: ")
    assert harness.remote.writes() == []
    assert not harness.home.requests("GET", "/api/v1/namespaces/default/*")
    await harness.restart()
    assert harness.writes() == []
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    assert harness.home.find(PODS, "a", "default") is None
    assert len(harness.home.objects(EVENTS)) == 1


async def test_update_that_a_controller_sets_back_is_repeated_at_growing_intervals(
    harness: EngineHarness,
) -> None:
    await _running(harness, labels={"tier": "ours"})

    def tier() -> str:
        labels: dict[str, str] = (harness.remote_pod() or {})["metadata"]["labels"]
        return labels["tier"]

    async def set_back() -> None:
        while True:
            theirs = {"metadata": {"labels": {"tier": "theirs"}}}
            harness.remote.update(PODS, "a", theirs, REMOTE_NAMESPACE)
            await harness.remote.until(lambda: tier() == "ours", timeout=1e6)

    async with background_task(set_back(), name="controller"):
        await harness.events_with_reason("RemoteOverwrites")
        await asyncio.sleep(120)
        assert len(harness.remote.writes("*/pods/a")) <= 8
        # The remote's controller has decided: the rest of the status follows meanwhile.
        harness.report_running(conditions=[{"type": "Ready", "status": "False"}])
        await harness.home.until(
            lambda: (
                [
                    each["status"]
                    for each in harness.status()["conditions"]
                    if each["type"] == "Ready"
                ]
                == ["False"]
            )
        )
    await harness.remote.until(lambda: tier() == "ours", timeout=900)
    assert len(await harness.events_with_reason("RemoteOverwrites")) == 1


async def test_large_update_is_not_kept_and_a_deleted_pod_is_forgotten(
    harness: EngineHarness,
) -> None:
    await _running(harness)
    before = kept_bytes()
    text = {"text": "x" * 200_000}
    harness.home.update(PODS, "a", {"metadata": {"annotations": text}}, "default")
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["metadata"]["annotations"]["text"] == text["text"]
    assert kept_bytes() < before + 2000
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert kept_bytes() <= before


async def test_resize_on_a_remote_without_the_subresource_is_reported_once(
    harness: EngineHarness,
) -> None:
    """Kubernetes before 1.33, or with the feature gate disabled."""
    requests = {"requests": {"cpu": "1"}}
    container = {"name": "main", "image": "busybox:1", "resources": requests}
    await _running(harness, containers=[container])
    missing = Fault(
        "PATCH",
        "*/pods/a/resize",
        code=404,
        message="the server could not find the requested resource",
        times=None,
    )
    harness.remote.fail(missing)
    harness.home.update(
        PODS,
        "a",
        {
            "metadata": {"generation": 2},
            "spec": {"containers": [{**container, "resources": {"requests": {"cpu": "2"}}}]},
        },
        "default",
    )
    (event,) = await harness.events_with_reason("UpdateRefused")
    assert "no subresource resize" in event["message"]
    await harness.home.until(lambda: (_pending(harness) or {}).get("reason") == "Infeasible")
    assert len(await harness.events_with_reason("UpdateRefused")) == 1


async def test_blocked_ephemeral_container_is_reported_and_blocks_no_resize(
    harness: EngineHarness,
) -> None:
    requests = {"requests": {"cpu": "1"}}
    container = {"name": "main", "image": "busybox:1", "resources": requests}
    await _running(harness, containers=[container])
    harness.home.put(config_map("tools"))
    harness.remote.put(config_map("tools", REMOTE_NAMESPACE))
    spec = {
        "ephemeralContainers": [_DEBUGGER],
        "containers": [{**container, "resources": {"requests": {"cpu": "2"}}}],
    }
    harness.home.update(PODS, "a", {"metadata": {"generation": 2}, "spec": spec}, "default")
    (event,) = await harness.events_with_reason("UpdateRefused")
    await harness.settle(waiting=True)
    assert "not managed by this bridge" in event["message"]
    (resized,) = (harness.remote_pod() or {})["spec"]["containers"]
    assert resized["resources"]["requests"]["cpu"] == "2"
