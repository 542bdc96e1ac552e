"""Faults, and the results of their trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from e2e.audit import Finding, Kind

if TYPE_CHECKING:
    from e2e.faults.environment import Stage

#: A context manager that injects the fault on entry and heals it on exit, even after an error.
Strike = Callable[["Stage"], AbstractContextManager[None]]


class JoinMode(StrEnum):
    """The way in which the bridge is joined for a fault."""

    DIRECT = "straight to both API servers"
    PROXY = "through a proxy to each API server"
    TOKEN = "with a token of the remote"
    CLOCK = "with a clock of its own"
    SMALL_DISK = "with a small disk for all that it writes"


@dataclass(frozen=True)
class Fault:
    """One fault. The load continues while it is active."""

    name: str
    what: str
    """The effect of the fault."""
    heals: str
    """How it heals."""
    strike: Strike
    seconds: tuple[float, float] = (1.0, 4.0)
    """Minimum and maximum duration."""
    times: int = 1
    """Injections per trial, before the audit."""
    counts: int = 1
    """Number of faults that one injection counts as."""
    trials: int = 1
    """Trials in the first pass of a full run."""
    join: JoinMode = JoinMode.DIRECT
    short: bool = False
    """Whether it is part of the short run."""
    packets: bool = False
    """Whether it needs the bridge's network namespace."""
    native: bool = False
    """Whether it needs components that are processes of this machine."""

    @property
    def group(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]


@dataclass(slots=True)
class Trial:
    """One trial of a fault."""

    fault: str
    tried: int = 0
    findings: list[Finding] = field(default_factory=list)
    """Findings of the audit, without those of earlier audits."""
    failed: list[str] = field(default_factory=list)
    """Other failures: the bridge ended, or the node was not Ready in time."""
    seconds: float = 0.0
    ready: float = 0.0
    """Seconds from the end of the fault until the node was Ready."""
    agreed: float = 0.0
    """Seconds from then until the end of the audit."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings and no failures."""
        return not self.findings and not self.failed


@dataclass(slots=True)
class Tally:
    """The sum of all trials of one fault."""

    fault: str
    trials: int = 0
    tried: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    """Findings by `Kind`, and ``failed``."""

    def add(self, trial: Trial) -> None:
        """Adds a trial."""
        self.trials += 1
        self.tried += trial.tried
        self.counted.update(str(finding.kind) for finding in trial.findings)
        self.counted["failed"] += len(trial.failed)

    def as_json(self) -> dict[str, Any]:
        """For a report; has all kinds of findings, even those without any."""
        counted = {name: self.counted[name] for name in COUNTED}
        return {
            "fault": self.fault,
            "trials": self.trials,
            "tried": self.tried,
            "counted": counted,
        }


#: The kinds of findings that are counted.
COUNTED = (*map(str, Kind), "failed")


def tallies(trials: list[Trial]) -> list[Tally]:
    """The trials by fault, in the order of their first trial."""
    found: dict[str, Tally] = {}
    for trial in trials:
        found.setdefault(trial.fault, Tally(trial.fault)).add(trial)
    return list(found.values())
