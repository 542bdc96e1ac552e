"""What a process costs, from the kernel's own accounts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Account:
    """A process's account so far."""

    cpu: float
    """Seconds of processor time, in user and kernel mode, of all its threads."""
    peak: float
    """Its largest resident memory, in MB."""
    resident: float
    """Its resident memory now, in MB."""


def account(pid: int) -> Account:
    """The account of a process that runs (proc(5): stat fields 14 and 15, VmHWM, VmRSS)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    peak, resident = (int(status[key].split()[0]) / 1024 for key in ("VmHWM", "VmRSS"))
    return Account((int(fields[11]) + int(fields[12])) * _TICK, peak, resident)
