"""What the remote's scheduler and kubelet say of a pod is what `kubectl describe` says at home."""

from __future__ import annotations

import time

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, versions, wait_for
from e2e.workload_manifests import busybox

#: What every pod that starts is said to be.
STARTS = {"Scheduled", "Pulled", "Created", "Started"}
#: Seconds until a container that crashes at once has been backed off from twice.
BACK_OFF_SECONDS = 120.0
#: Seconds for which nothing may be written after a restart.
QUIET = 5.0


def test_events_of_a_remote_pod_are_at_home_with_their_counts(bridged: Bridged) -> None:
    """One pod that lives and is deleted, and three to which something happens."""
    bridged.apply(busybox(bridged.node, "lives", "sleep 3600"))
    bridged.apply(busybox(bridged.node, "crashes", "exit 3"))
    probe = "      readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}\n"
    bridged.apply(busybox(bridged.node, "unready", "sleep 3600") + probe)
    # A kubelet sets up what a container mounts.
    mount = "      volumeMounts: [{name: v, mountPath: /v}]\n"
    volume = mount + "  volumes: [{name: v, configMap: {name: not-there}}]\n"
    bridged.apply(busybox(bridged.node, "lacks", "sleep 3600") + volume)

    wait_for(lambda: _reasons(bridged, "lives") >= STARTS, "the pod's start is told")
    pod = get_one(bridged.home, "pod", "lives", namespace=bridged.namespace)
    for event in _told(bridged, "lives"):
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

    wait_for(lambda: "Unhealthy" in _reasons(bridged, "unready"), "a probe that fails is told")
    wait_for(lambda: "FailedMount" in _reasons(bridged, "lacks"), "what is missing is told")
    bridged.kubectl("delete", "pod", "lives")
    wait_for(lambda: "Killing" in _reasons(bridged, "lives"), "the last words are told")
    wait_for(
        lambda: _count(bridged, "crashes", "BackOff") >= 2,
        "the count of a crashing container's back-off grows",
        seconds=BACK_OFF_SECONDS,
    )


def test_restart_duplicates_no_event(bridged: Bridged) -> None:
    """A bridge that was killed finds at home what it has told."""
    bridged.apply(busybox(bridged.node, "lives", "sleep 3600"))
    wait_for(lambda: _reasons(bridged, "lives") >= STARTS, "the pod's start is told")
    before = versions(_told(bridged, "lives"))
    bridged.bridge.kill()
    bridged.bridge.start()
    time.sleep(QUIET)
    assert versions(_told(bridged, "lives")) == before
    bridged.kubectl("delete", "pod", "lives")
    wait_for(lambda: "Killing" in _reasons(bridged, "lives"), "what is new is told")


def _told(bridged: Bridged, name: str) -> list[Json]:
    """The Events at home about the pod that come from the remote."""
    ours = f"cluster-bridge.io/node={bridged.node}"
    events = get(bridged.home, "events", namespace=bridged.namespace, selector=ours)
    return [event for event in events if event["involvedObject"]["name"] == name]


def _reasons(bridged: Bridged, name: str) -> set[str]:
    return {event["reason"] for event in _told(bridged, name)}


def _count(bridged: Bridged, name: str, reason: str) -> int:
    return max(
        (e.get("count", 0) for e in _told(bridged, name) if e["reason"] == reason), default=0
    )
