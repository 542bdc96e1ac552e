"""The history of pods, from a watch of each cluster: restarts that are not allowed, and reversals.

A broken watch loses changes; what a later state shows of them (restart counts, container IDs) still
counts.
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

#: Reason at home of a run-once pod whose end in the remote is unknown.
_LOST = "RemotePodLost"
_STATUSES = ("initContainerStatuses", "containerStatuses")


@dataclass(slots=True)
class _Runs:
    """All remote pods of one home pod."""

    name: str
    never: bool
    pods: set[str] = field(default_factory=set)
    """Pods that could run, since their scheduling gate was removed."""
    containers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    restarts: int = 0
    ended: str = ""
    removed: bool = False
    """Whether the last pod ended during its deletion, so that its end may be unobserved."""


@dataclass(slots=True)
class _HomeState:
    """The observed states of one home pod."""

    name: str
    ended: str = ""
    reason: str = ""
    reversal: str = ""


class History:
    """Takes the states of pods in the order of their cluster, and returns `findings`."""

    def __init__(self) -> None:
        self._runs: dict[str, _Runs] = {}
        self._home: dict[str, _HomeState] = {}
        self._seen: set[str] = set()

    def saw_remote(self, pod: Json) -> None:
        """Observes a state of a remote pod of the node."""
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
        """Observes a state of a home pod on the node."""
        self._seen.add(uid(pod))
        state = self._home.setdefault(uid(pod), _HomeState(subject_of(pod)))
        if state.ended and phase(pod) != state.ended:
            state.reversal = f"{state.ended}, then {phase(pod)}"
        if phase(pod) in TERMINAL:
            state.ended = phase(pod)
            state.reason = str((pod.get("status") or {}).get("reason") or "")

    def counts(self) -> dict[str, int]:
        """Numbers of observed objects, for a line of progress."""
        return {
            "home pods": len(self._home),
            "remote pods": sum(len(runs.pods) for runs in self._runs.values()),
            "containers": sum(
                len(ids) for runs in self._runs.values() for ids in runs.containers.values()
            ),
        }

    def unseen(self, pods: Iterable[Json]) -> Iterator[Finding]:
        """Existing pods of either cluster that were never observed."""
        for pod in pods:
            if uid(pod) not in self._seen:
                yield Finding(Kind.UNSEEN, subject_of(pod), "the audit's watch missed it")

    def findings(self) -> Iterator[Finding]:
        """Run-once pods that were created or started again; ends that were reversed or differ from
        the remote's."""
        for home_uid, runs in self._runs.items():
            if runs.never:
                yield from _once(f"{runs.name} ({home_uid})", runs)
        for home_uid, state in self._home.items():
            subject = f"{state.name} ({home_uid})"
            if state.reversal:
                yield Finding(Kind.DISAGREES, subject, f"an end was reversed: {state.reversal}")
            there = self._runs.get(home_uid)
            # Deleted manually in the remote while the bridge was stopped: its end cannot be known.
            unknown = there is not None and there.removed and state.reason == _LOST
            if there and state.ended and there.ended not in ("", state.ended) and not unknown:
                yield Finding(
                    Kind.DISAGREES,
                    subject,
                    f"ended {there.ended} in the remote, and {state.ended} {state.reason} at home",
                )


def _once(subject: str, runs: _Runs) -> Iterator[Finding]:
    if len(runs.pods) > 1:
        detail = f"restartPolicy Never, and {len(runs.pods)} remote pods could run"
        yield Finding(Kind.DUPLICATED, subject, detail)
    for name, ids in runs.containers.items():
        if len(ids) > 1:
            yield Finding(Kind.TWICE_RUN, subject, f"{name} was started {len(ids)} times")
    if runs.restarts:
        yield Finding(Kind.TWICE_RUN, subject, f"restartCount {runs.restarts} under Never")
