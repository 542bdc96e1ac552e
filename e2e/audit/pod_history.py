"""What pods went through, from a watch of each cluster: what ran twice, what went back.

A watch that breaks loses what happened meanwhile; what a later state tells of it (restart counts,
containers' IDs) still counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from e2e.audit.findings import (
    GATE,
    HOME_UID,
    TERMINAL,
    Finding,
    Json,
    Kind,
    annotations_of,
    is_deleting,
    phase,
    subject_of,
    uid,
)

#: What home is told of a pod that must not run again and whose end was not seen.
_LOST = "RemotePodLost"
_STATUSES = ("initContainerStatuses", "containerStatuses")


@dataclass(slots=True)
class _Runs:
    """All remote pods that stood for one home pod."""

    name: str
    never: bool
    pods: set[str] = field(default_factory=set)
    """Those that could run: their scheduling gate was gone."""
    containers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    restarts: int = 0
    ended: str = ""
    removed: bool = False
    """Whether the last one ended as it was being deleted: it may be gone before anybody looks."""


@dataclass(slots=True)
class _Told:
    """What home was told of one pod."""

    name: str
    ended: str = ""
    reason: str = ""
    back: str = ""


class History:
    """Give it each state of each pod, in the order of its cluster; ask for `findings`."""

    def __init__(self) -> None:
        self._runs: dict[str, _Runs] = {}
        self._told: dict[str, _Told] = {}
        self._seen: set[str] = set()

    def saw_remote(self, pod: Json) -> None:
        """A remote pod that stands for one of home, in some state."""
        self._seen.add(uid(pod))
        home_uid = annotations_of(pod).get(HOME_UID)
        if home_uid is None:
            return
        never = pod["spec"].get("restartPolicy") == "Never"
        runs = self._runs.setdefault(home_uid, _Runs(subject_of(pod), never))
        if {"name": GATE} not in (pod["spec"].get("schedulingGates") or ()):
            runs.pods.add(uid(pod))
        status = pod.get("status") or {}
        if phase(pod) in TERMINAL:
            runs.ended = phase(pod)
            runs.removed = is_deleting(pod)
        for name, container in (
            (f"{kind} {c['name']}", c) for kind in _STATUSES for c in status.get(kind) or ()
        ):
            if container.get("containerID"):
                runs.containers[name].add(container["containerID"])
            runs.restarts = max(runs.restarts, int(container.get("restartCount") or 0))

    def saw_home(self, pod: Json) -> None:
        """A home pod that is bound to the node, in some state."""
        self._seen.add(uid(pod))
        told = self._told.setdefault(uid(pod), _Told(subject_of(pod)))
        if told.ended and phase(pod) != told.ended:
            told.back = f"{told.ended}, then {phase(pod)}"
        if phase(pod) in TERMINAL:
            told.ended = phase(pod)
            told.reason = str((pod.get("status") or {}).get("reason") or "")

    def counts(self) -> dict[str, int]:
        """How much was seen, for a line of progress."""
        return {
            "home pods": len(self._told),
            "remote pods": sum(len(runs.pods) for runs in self._runs.values()),
            "containers": sum(
                len(ids) for runs in self._runs.values() for ids in runs.containers.values()
            ),
        }

    def unseen(self, pods: Iterable[Json]) -> Iterator[Finding]:
        """Pods of either cluster that are there and of which nothing was ever seen."""
        for pod in pods:
            if uid(pod) not in self._seen:
                yield Finding(Kind.UNSEEN, subject_of(pod), "the audit's watch has missed it")

    def findings(self) -> Iterator[Finding]:
        """Pods that may run once and were made or started again; ends that were taken back or
        are not those of the remote."""
        for home_uid, runs in self._runs.items():
            if runs.never:
                yield from _once(f"{runs.name} ({home_uid})", runs)
        for home_uid, told in self._told.items():
            subject = f"{told.name} ({home_uid})"
            if told.back:
                yield Finding(Kind.DISAGREES, subject, f"an end was taken back: {told.back}")
            there = self._runs.get(home_uid)
            # Deleted there, by hand, and gone while the bridge was away: nobody could know its end.
            unknown = there is not None and there.removed and told.reason == _LOST
            if there and told.ended and there.ended not in ("", told.ended) and not unknown:
                yield Finding(
                    Kind.DISAGREES,
                    subject,
                    f"ended {there.ended} in the remote, and {told.ended} {told.reason} at home",
                )


def _once(subject: str, runs: _Runs) -> Iterator[Finding]:
    if len(runs.pods) > 1:
        detail = f"restartPolicy Never, and {len(runs.pods)} remote pods were let run"
        yield Finding(Kind.DUPLICATED, subject, detail)
    for name, ids in runs.containers.items():
        if len(ids) > 1:
            yield Finding(Kind.TWICE_RUN, subject, f"{name} was started {len(ids)} times")
    if runs.restarts:
        yield Finding(Kind.TWICE_RUN, subject, f"restartCount {runs.restarts} under Never")
