"""Events of the remote's scheduler and kubelet appear at home in `kubectl describe pod`."""

from __future__ import annotations

import time

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, versions, wait_for
from e2e.workload_manifests import busybox

#: Event reasons of every pod that starts.
STARTS = {"Scheduled", "Pulled", "Created", "Started"}
#: Seconds until a container that crashes at once has had two back-offs.
BACK_OFF_SECONDS = 120.0
#: Seconds after a restart in which nothing may be written.
QUIET = 5.0


@pytest.mark.core
def test_events_of_a_remote_pod_are_at_home_with_their_counts(bridged: Bridged) -> None:
    """One pod that runs and is deleted, and three that have problems."""
    bridged.apply(busybox(bridged.node, "lives", "sleep 3600"))
    bridged.apply(busybox(bridged.node, "crashes", "exit 3"))
    probe = "      readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}\n"
    bridged.apply(busybox(bridged.node, "unready", "sleep 3600") + probe)
    # A missing ConfigMap makes the kubelet's mount fail.
    mount = "      volumeMounts: [{name: v, mountPath: /v}]\n"
    volume = mount + "  volumes: [{name: v, configMap: {name: not-there}}]\n"
    bridged.apply(busybox(bridged.node, "lacks", "sleep 3600") + volume)

    wait_for(lambda: _reasons(bridged, "lives") >= STARTS, "Events show the pod's start")
    pod = get_one(bridged.home, "pod", "lives", namespace=bridged.namespace)
    for event in _mirrored_events(bridged, "lives"):
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    selected = bridged.kubectl(
        *("get", "events", "-o", "name", "--field-selector"),
        f"involvedObject.name=lives,involvedObject.uid={pod['metadata']['uid']},source=kubelet",
    )
    assert len(selected.split()) >= 3
    assert f"Successfully assigned {bridged.namespace}/lives" in bridged.kubectl(
        "describe", "pod", "lives"
    )
    assert "Started" in bridged.kubectl("events", "--for", "pod/lives")

    wait_for(lambda: "Unhealthy" in _reasons(bridged, "unready"), "an Event shows the failed probe")
    wait_for(
        lambda: "FailedMount" in _reasons(bridged, "lacks"), "an Event names the missing object"
    )
    bridged.kubectl("delete", "pod", "lives")
    wait_for(lambda: "Killing" in _reasons(bridged, "lives"), "an Event shows the deletion")
    wait_for(
        lambda: _count(bridged, "crashes", "BackOff") >= 2,
        "the count of a crashing container's back-off grows",
        seconds=BACK_OFF_SECONDS,
    )


def test_restart_duplicates_no_event(bridged: Bridged) -> None:
    """A bridge that was killed finds its earlier Events at home."""
    bridged.apply(busybox(bridged.node, "lives", "sleep 3600"))
    wait_for(lambda: _reasons(bridged, "lives") >= STARTS, "Events show the pod's start")
    before = versions(_mirrored_events(bridged, "lives"))
    bridged.bridge.kill()
    bridged.bridge.start()
    time.sleep(QUIET)
    assert versions(_mirrored_events(bridged, "lives")) == before
    bridged.kubectl("delete", "pod", "lives")
    wait_for(lambda: "Killing" in _reasons(bridged, "lives"), "new Events appear")


def _mirrored_events(bridged: Bridged, name: str) -> list[Json]:
    """Home's Events about the pod that come from the remote."""
    ours = f"cluster-bridge.io/node={bridged.node}"
    events = get(bridged.home, "events", namespace=bridged.namespace, selector=ours)
    return [event for event in events if event["involvedObject"]["name"] == name]


def _reasons(bridged: Bridged, name: str) -> set[str]:
    return {event["reason"] for event in _mirrored_events(bridged, name)}


def _count(bridged: Bridged, name: str, reason: str) -> int:
    return max(
        (e.get("count", 0) for e in _mirrored_events(bridged, name) if e["reason"] == reason),
        default=0,
    )
