"""Pods that no user changes: faults of the bridge or a network must not affect them.

One restarts when it ends, one does not. The remote pods are recorded when they run, and compared
later: the same pods and containers, without restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.audit import Finding, Kind
from e2e.conftest import Bridged
from e2e.kubectl import Json, wait_for
from e2e.workload_manifests import busybox

NAMES = ("witness-always", "witness-never")
#: Seconds until new pods run, even if their namespace must be deleted first.
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Run:
    """The recorded state of a remote pod."""

    uid: str
    phase: str
    containers: tuple[tuple[str, int], ...]
    """ID and restarts of each."""


class UntouchedPods:
    """The untouched pods of one virtual node."""

    def __init__(self, bridged: Bridged) -> None:
        self._bridged = bridged
        self._noted: dict[str, _Run] = {}

    def make(self) -> None:
        """Re-creates the pods; returns when they run."""
        bridged = self._bridged
        bridged.kubectl("delete", "pod", *NAMES, "--ignore-not-found", "--timeout=60s")
        for name, restart in zip(NAMES, ("Always", "Never"), strict=True):
            bridged.apply(busybox(bridged.node, name, "sleep 36000", restart=restart))
        wait_for(self._all_run, "the untouched pods run", seconds=START_SECONDS)
        self._noted = runs(bridged.remote_pods())

    def _all_run(self) -> bool:
        found = [*runs(self._bridged.remote_pods()).values()]
        there = [*runs(self._bridged.home_pods()).values()]
        return [one.phase for one in (*found, *there)] == ["Running"] * 2 * len(NAMES)

    def findings(self) -> list[Finding]:
        """The differences to the recorded state."""
        return compare(self._noted, runs(self._bridged.remote_pods()))


def runs(pods: list[Json]) -> dict[str, _Run]:
    """The untouched pods among pods of one cluster."""
    found = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        if name in NAMES:
            status = pod.get("status") or {}
            containers = tuple(
                (str(one.get("containerID")), int(one.get("restartCount") or 0))
                for one in status.get("containerStatuses") or ()
            )
            found[name] = _Run(pod["metadata"]["uid"], str(status.get("phase")), containers)
    return found


def compare(before: dict[str, _Run], now: dict[str, _Run]) -> list[Finding]:
    """A finding for each pod that has changed."""
    return [
        Finding(Kind.HARMED, f"Pod {name}", f"was {run}, is {now.get(name)}")
        for name, run in sorted(before.items())
        if now.get(name) != run
    ]
