"""What a fault is, and what a trial of one has found."""

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

#: Makes the fault when it is entered, and heals it when it is left: also after an error.
Strike = Callable[["Stage"], AbstractContextManager[None]]


class Join(StrEnum):
    """How the bridge is joined for a fault, beside how it always is."""

    DIRECT = "straight to both API servers"
    PROXY = "through a proxy to each API server"
    TOKEN = "with a token of the remote"
    CLOCK = "with a clock of its own"
    SMALL_DISK = "with a small disk for all that it writes"


@dataclass(frozen=True)
class Fault:
    """One thing that may break. The mix goes on while it is broken."""

    name: str
    what: str
    """What is done."""
    heals: str
    """How it is well again."""
    strike: Strike
    seconds: tuple[float, float] = (1.0, 4.0)
    """For how long, at least and at most."""
    times: int = 1
    """How often in one trial, before the audit."""
    counts: int = 1
    """How many of it one time makes."""
    trials: int = 1
    """How many of a full run's first pass."""
    join: Join = Join.DIRECT
    harms: bool = False
    """Whether it may end pods that nobody touches: a machine that is lost has ended them."""
    short: bool = False
    """Whether it is part of the short form."""
    packets: bool = False
    """Whether it needs the network namespace of `network.Line`."""
    native: bool = False
    """Whether it needs components that are processes of this machine."""

    @property
    def group(self) -> str:
        """The first part of its name."""
        return self.name.partition(":")[0]


@dataclass(slots=True)
class Trial:
    """One trial of a fault."""

    fault: str
    tried: int = 0
    findings: list[Finding] = field(default_factory=list)
    """What the audit has found, but for what an earlier one had."""
    failed: list[str] = field(default_factory=list)
    """What went wrong beside: the bridge ended, or the node was not Ready in time."""
    seconds: float = 0.0
    ready: float = 0.0
    """Seconds after it was healed until the node was Ready."""
    agreed: float = 0.0
    """Seconds after that until the audit was over."""

    @property
    def clean(self) -> bool:
        """Whether nothing was counted."""
        return not self.findings and not self.failed


@dataclass(slots=True)
class Tally:
    """All trials of one fault."""

    fault: str
    trials: int = 0
    tried: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    """How many of each `Kind`, and ``failed``."""

    def add(self, trial: Trial) -> None:
        """One more."""
        self.trials += 1
        self.tried += trial.tried
        self.counted.update(str(finding.kind) for finding in trial.findings)
        self.counted["failed"] += len(trial.failed)

    def as_json(self) -> dict[str, Any]:
        """For a report: what can be counted is there also where it is zero."""
        counted = {name: self.counted[name] for name in COUNTED}
        return {
            "fault": self.fault,
            "trials": self.trials,
            "tried": self.tried,
            "counted": counted,
        }


#: All that is counted after a fault.
COUNTED = (*map(str, Kind), "failed")


def tallies(trials: list[Trial]) -> list[Tally]:
    """The trials by fault, in the order of their first."""
    found: dict[str, Tally] = {}
    for trial in trials:
        found.setdefault(trial.fault, Tally(trial.fault)).add(trial)
    return list(found.values())
