"""The plan for each home state with each remote state: no combination is left undecided.

A cell is what is done, one letter an action, in order: ``C`` create, ``M`` mark and create,
``?`` ask the remote, ``o`` delete the orphan, ``d`` delete, ``s`` status, ``e`` status with an
Event, ``R`` remove the home pod, ``-`` nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from sync.podplan import (
    Action,
    Confirm,
    Create,
    Delete,
    DeleteOrphan,
    RemoveHome,
    State,
    Update,
    WriteStatus,
    plan,
)
from tests.sync.podstates import FORMER_UID, NOW, POLICY, home, remote
from translators.types import Object

#: Every home state that the plan tells apart.
_HOME: dict[str, Object | None] = {
    "gone": None,
    "new": home(),
    "new Never": home(policy="Never"),
    "ran Always": home(phase="Running"),
    "ran OnFailure": home(phase="Running", policy="OnFailure"),
    "ran Never": home(phase="Running", policy="Never"),
    "skipped": home(daemon=True),
    "over": home(phase="Failed"),
    "del new": home(deleting=30),
    "del ran": home(phase="Running", deleting=30),
    "del over": home(phase="Failed", deleting=30),
}
#: Every remote state. ``absent``: the cache has none; ``lost``: nor has the API server; ``ended``
#: and ``failed``: gone after it ended by itself; ``cut``: gone after it was deleted while it ran;
#: ``going``: being deleted; ``former``: of an earlier home pod.
_REMOTE: dict[str, dict[str, Any]] = {
    "absent": {"remote": None},
    "lost": {"remote": None, "confirmed": True},
    "ended": {"remote": None, "ended": remote(phase="Succeeded")},
    "failed": {"remote": None, "ended": remote(phase="Failed")},
    "cut": {"remote": None, "ended": remote(deleting=30), "confirmed": True},
    "pending": {"remote": remote(phase="Pending")},
    "running": {"remote": remote()},
    "over": {"remote": remote(phase="Succeeded")},
    "going": {"remote": remote(deleting=30)},
    "gone.f": {"remote": remote(phase="Failed", deleting=30)},
    "former": {"remote": remote(of=FORMER_UID)},
    "former.g": {"remote": remote(of=FORMER_UID, deleting=30)},
}

_TABLE = """
home, remote |absent|lost|ended|failed|cut|pending|running|over|going|gone.f|former|former.g
gone         |-     |-   |-    |-     |-  |o      |o      |o   |-    |-     |o     |-
new          |C     |C   |s    |s     |C  |-      |s      |s   |e    |e     |o     |-
new Never    |M     |M   |s    |s     |e  |-      |s      |s   |e    |s     |o     |-
ran Always   |?     |C   |s    |s     |C  |s      |s      |s   |e    |e     |o     |-
ran OnFailure|?     |C   |s    |s     |C  |s      |s      |s   |e    |e     |o     |-
ran Never    |?     |e   |s    |s     |e  |s      |s      |s   |e    |s     |o     |-
skipped      |e     |e   |e    |e     |e  |-      |s      |s   |e    |e     |o     |-
over         |-     |-   |-    |-     |-  |d      |d      |-   |-    |-     |o     |-
del new      |R     |R   |sR   |sR    |sR |d      |sd     |sd  |s    |s     |o     |-
del ran      |?     |R   |sR   |sR    |sR |sd     |sd     |sd  |s    |s     |o     |-
del over     |?     |R   |R    |R     |R  |d      |d      |d   |-    |-     |o     |-
"""


def _letter(action: Action) -> str:
    match action:
        case Create(mark_first):
            return "M" if mark_first else "C"
        case WriteStatus(_, event):
            return "e" if event else "s"
        case Confirm():
            return "?"
        case DeleteOrphan():
            return "o"
        case Delete():
            return "d"
        case RemoveHome():
            return "R"
        case Update():
            return "u"


def _decided() -> dict[tuple[str, str], str]:
    head, *rows = [
        [cell.strip() for cell in line.split("|")] for line in _TABLE.strip().splitlines()
    ]
    return {
        (row[0], column): cell
        for row in rows
        for column, cell in zip(head[1:], row[1:], strict=True)
    }


_CELLS = [(ours, theirs) for ours in _HOME for theirs in _REMOTE]


def test_every_combination_is_decided() -> None:
    assert set(_decided()) == set(_CELLS)


@pytest.mark.parametrize(("ours", "theirs"), _CELLS, ids=[f"{a} x {b}" for a, b in _CELLS])
def test_cell(ours: str, theirs: str) -> None:
    state = State(_HOME[ours], **_REMOTE[theirs])
    actions = plan(state, POLICY, now=NOW)

    assert ("".join(map(_letter, actions)) or "-") == _decided()[ours, theirs]
