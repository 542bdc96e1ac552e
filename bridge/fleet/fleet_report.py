"""The state of a fleet, as `bridge status` and the metrics show it. Holds no options."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object
from translators.timestamps import format_time

#: ``waiting``: for its predecessor to stop. ``joining``: the checks run. ``running``: the kubelet
#: API listens, and the bridge serves the node or stands by. ``retrying``: the last attempt failed.
#: ``stopping``: no longer desired. ``leaving``, ``left``: as by `bridge leave`.
RemoteState = Literal["waiting", "joining", "running", "retrying", "stopping", "leaving", "left"]
STATES: tuple[RemoteState, ...] = get_args(RemoteState)
#: The state of a remote that another replica runs (`bridge.sharding`).
ELSEWHERE = "elsewhere"
#: The part of this process in serving a remote. ``cold``: none. ``ready``: it stands by, with full
#: caches. ``lost``: it serves the node, and does not reach the remote. ``unable``: the last attempt
#: failed.
Standing = Literal["cold", "starting", "ready", "serving", "lost", "unable", "left"]
#: Longest error in a report, in characters.
MAX_ERROR_LENGTH = 500


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The pods and the resources of a virtual node."""

    pods: int
    """The pods of home that are bound to it."""
    allocatable: Mapping[str, str]
    """As in the Node's status."""


@dataclass(slots=True)
class RemoteReport:
    """One remote."""

    state: RemoteState
    home: KubeconfigRef
    """The home cluster that it is a node of."""
    error: str = ""
    """Why the last attempt failed; "" once another has succeeded."""
    standing: Callable[[], Standing] | None = None
    """That of a running remote."""
    use: Callable[[], NodeUse | None] = lambda: None
    """Returns the use of a running remote's node; None before it is registered."""


@dataclass(slots=True)
class FleetReport:
    """The remotes of one process; without a source, it is that of `bridge join`."""

    source: str = ""
    """The name of the source."""
    remotes: dict[str, RemoteReport] = field(default_factory=dict)
    """By key (`bridge.fleet.desired_state.by_key`)."""
    elsewhere: Mapping[str, tuple[KubeconfigRef, str]] = field(default_factory=dict)
    """Remotes that other replicas run: their home, and the replica's name, by key."""
    error: str = ""
    """Why the newest state of the source is not in effect; "" if it is."""
    loads: Counter[str] = field(default_factory=lambda: Counter(success=0, failure=0))
    """How often the source had a valid (``success``) or an invalid (``failure``) state."""
    loaded_at: float = 0.0
    """When the state in effect was read, in seconds since the epoch; 0 before the first."""
    on_change: Callable[[], None] = lambda: None
    """Called after the state of a remote has changed."""
    _labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _label_listeners: dict[str, Callable[[], None]] = field(default_factory=dict)

    def record_load(self, error: str = "") -> None:
        """Records a state of the source; ``error`` if it is invalid."""
        self.loads["failure" if error else "success"] += 1
        self.error = error[:MAX_ERROR_LENGTH]
        if not error:
            self.loaded_at = time.time()

    def add(self, key: str, state: RemoteState, home: KubeconfigRef) -> None:
        """Adds a remote, or replaces it."""
        self.remotes[key] = RemoteReport(state, home)
        self.on_change()

    def set_state(self, key: str, state: RemoteState, error: str | None = None) -> None:
        """Records the state of a remote; without ``error`` the last one stays."""
        remote = self.remotes[key]
        remote.state = state
        if error is not None:
            remote.error = error[:MAX_ERROR_LENGTH]
        self.on_change()

    def set_labels(self, key: str, labels: Mapping[str, str]) -> None:
        """Sets the labels of a remote's Node that change while the join runs."""
        if self._labels.get(key, {}) != labels:
            self._labels[key] = dict(labels)
            self._label_listeners.get(key, lambda: None)()

    def counts(self) -> dict[str, int]:
        """The number of remotes in each state."""
        counted = Counter[str](it.state for it in self.remotes.values())
        counted[ELSEWHERE] = len(self.elsewhere.keys() - self.remotes.keys())
        return {state: counted[state] for state in (*STATES, ELSEWHERE)}

    def standing(self, key: str) -> Standing:
        """The part of this process in serving a remote."""
        remote = self.remotes.get(key)
        if remote is None:
            return "cold"
        if remote.state == "running":
            return remote.standing() if remote.standing is not None else "starting"
        found: Mapping[RemoteState, Standing] = {"retrying": "unable", "left": "left"}
        return found.get(remote.state, "starting")


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One remote's view of the fleet, and its own state to report."""

    report: FleetReport = field(default_factory=FleetReport)
    key: str = ""

    def set_running(
        self,
        standing: Callable[[], Standing] | None = None,
        use: Callable[[], NodeUse | None] = lambda: None,
    ) -> None:
        """Reports that the join's checks have passed and its kubelet API listens; ``standing`` and
        ``use`` return what it is for the remote from now on."""
        if self.key in self.report.remotes:
            self.report.remotes[self.key].standing = standing
            self.report.remotes[self.key].use = use
            self.report.set_state(self.key, "running", "")

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels for the Node that change while the join runs."""
        return self.report._labels.get(self.key, {})

    def on_labels(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` after changes of the labels, instead of an earlier join's."""
        self.report._label_listeners[self.key] = changed

    def as_json(self) -> Object | None:
        """The field ``bridge.fleet`` of the node's status; None without a source.

        It has the remotes of the same home: one process can serve several, whose administrators do
        not share names and errors.
        """
        report, own = self.report, self.report.remotes.get(self.key)
        if not report.source or own is None:
            return None
        at = report.loaded_at
        return {
            "source": report.source,
            "loaded": format_time(datetime.fromtimestamp(at, UTC)) if at else None,
            "error": report.error,
            "remotes": [
                *(
                    {"name": key, "state": it.state, "error": it.error, "replica": ""}
                    for key, it in report.remotes.items()
                    if it.home == own.home
                ),
                *(
                    {"name": key, "state": ELSEWHERE, "error": "", "replica": replica}
                    for key, (home, replica) in report.elsewhere.items()
                    if home == own.home and key not in report.remotes
                ),
            ],
        }
