"""Pods that nobody touches: what befalls the bridge or a network may not touch them either.

One is started again when it ends, and one is not. What they are in the remote is noted when they
run, and compared later: the same pods, the same containers, no restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.audit import Finding, Kind
from e2e.conftest import Bridged
from e2e.kubectl import Json, wait_for
from e2e.workload_manifests import busybox

NAMES = ("witness-always", "witness-never")
#: Seconds until new ones run: a namespace that was deleted must be gone first.
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Run:
    """What a remote pod runs as."""

    uid: str
    phase: str
    containers: tuple[tuple[str, int], ...]
    """ID and restarts of each."""


class Witnesses:
    """Those of one virtual node."""

    def __init__(self, bridged: Bridged) -> None:
        self._bridged = bridged
        self._noted: dict[str, _Run] = {}

    def make(self) -> None:
        """New ones, in place of those that are there; returns when they run."""
        bridged = self._bridged
        bridged.kubectl("delete", "pod", *NAMES, "--ignore-not-found", "--timeout=60s")
        for name, restart in zip(NAMES, ("Always", "Never"), strict=True):
            bridged.apply(busybox(bridged.node, name, "sleep 36000", restart=restart))
        wait_for(self._all_run, "the witnesses run", seconds=START_SECONDS)
        self._noted = runs(bridged.remote_pods())

    def _all_run(self) -> bool:
        found = [*runs(self._bridged.remote_pods()).values()]
        there = [*runs(self._bridged.home_pods()).values()]
        return [one.phase for one in (*found, *there)] == ["Running"] * 2 * len(NAMES)

    def findings(self) -> list[Finding]:
        """What happened to them."""
        return compare(self._noted, runs(self._bridged.remote_pods()))


def runs(pods: list[Json]) -> dict[str, _Run]:
    """The witnesses among pods of one cluster."""
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
    """A finding for each that is not as it was."""
    return [
        Finding(Kind.HARMED, f"Pod {name}", f"was {run}, is {now.get(name)}")
        for name, run in sorted(before.items())
        if now.get(name) != run
    ]
