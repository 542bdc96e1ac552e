"""All faults, in the order of `list` and of the documentation, and the plan of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from e2e.faults import (
    admission_webhooks,
    api_server_restarts,
    bad_responses,
    clock_and_disk,
    credential_changes,
    duplicate_homes,
    manual_changes,
    network_cuts,
    process_kills,
)
from e2e.faults.fault_model import Fault

FAULTS: tuple[Fault, ...] = (
    *process_kills.FAULTS,
    *duplicate_homes.FAULTS,
    *network_cuts.FAULTS,
    *api_server_restarts.FAULTS,
    *bad_responses.FAULTS,
    *admission_webhooks.FAULTS,
    *manual_changes.FAULTS,
    *credential_changes.FAULTS,
    *clock_and_disk.FAULTS,
)


def named(names: Iterable[str]) -> list[Fault]:
    """The faults whose names have one of these prefixes, in the list's order; all if none is given.

    :raises ValueError: no fault has such a name.
    """
    wanted = list(names)
    for name in wanted:
        if not any(fault.name.startswith(name) for fault in FAULTS):
            raise ValueError(f"no fault is called {name!r}; `list` has their names")
    return [
        fault
        for fault in FAULTS
        if not wanted or any(fault.name.startswith(name) for name in wanted)
    ]


def possible(faults: Iterable[Fault], *, native: bool) -> list[Fault]:
    """The faults that can be injected on such clusters."""
    return [fault for fault in faults if native or not (fault.packets or fault.native)]


def plan(faults: Sequence[Fault], source: random.Random) -> Iterator[Fault]:
    """An endless sequence of trials: first each fault once, then the rest of their shares, and so
    on.

    Faults with the same join mode are adjacent in each pass, so that the bridge is seldom
    re-joined.
    """
    if not faults:
        return
    yield from once(faults, source)
    rest = [fault for fault in faults for _ in range(fault.trials - 1)]
    while True:
        yield from once(rest, source)
        rest = [fault for fault in faults for _ in range(fault.trials)]


def once(faults: Sequence[Fault], source: random.Random) -> list[Fault]:
    """Each fault once, in random order, grouped by join mode."""
    shuffled = source.sample(faults, k=len(faults))
    joins = list(dict.fromkeys(fault.join for fault in shuffled))
    return sorted(shuffled, key=lambda fault: joins.index(fault.join))


def short(faults: Iterable[Fault]) -> list[Fault]:
    """The short run: one trial of each quick fault."""
    return [fault for fault in faults if fault.short]
