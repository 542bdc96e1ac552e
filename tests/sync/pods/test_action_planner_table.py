"""The plan for each home state with each remote state: no combination is left undecided.

A cell is what is done, one letter an action, in order: ``C`` create, ``m`` mark and let go,
``?`` ask the remote, ``o`` delete the orphan, ``d`` delete, ``w`` withdraw, ``l`` look again later,
``s`` status, ``e`` status with an Event, ``R`` remove the home pod, ``-`` nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from sync.pods.action_planner import plan_actions
from sync.pods.actions import (
    Action,
    ConfirmAbsence,
    Create,
    Delete,
    DeleteIfUnbound,
    DeleteOrphan,
    EvictHomePod,
    PodState,
    RemoveHomePod,
    RequeueAfter,
    Ungate,
    Update,
    WriteStatus,
)
from tests.sync.pod_states import LONG_AGO, NOW, POLICY, PREVIOUS_UID, RECENTLY, home, remote
from translators.object_accessors import Object

#: Every home state that the plan distinguishes.
_HOME: dict[str, Object | None] = {
    "gone": None,
    "new": home(),
    "new Never": home(policy="Never"),
    "marked Never": home(policy="Never", marked=True),
    "ran Always": home(phase="Running"),
    "ran OnFailure": home(phase="Running", policy="OnFailure"),
    "ran Never": home(phase="Running", policy="Never"),
    "waits": home(waits=RECENTLY),
    "waited": home(waits=LONG_AGO),
    "timed out": home(waits=LONG_AGO, timed_out=True),
    "waited Never": home(waits=LONG_AGO, marked=True, policy="Never"),
    "skipped": home(daemon=True),
    "over": home(phase="Failed"),
    "del new": home(deleting=30),
    "del ran": home(phase="Running", deleting=30),
    "del over": home(phase="Failed", deleting=30),
}
_UNPLACED = remote(phase="Pending", waits=True)
_HELD = remote(phase="Pending", held=True)
#: Every remote state. ``abs``: the cache has none; ``lost``: nor has the API server; ``end`` and
#: ``fail``: gone after it ended by itself; ``cut``: gone after it was deleted while it ran; ``g``
#: and ``g.f``: being deleted, and Failed meanwhile; ``old``: of an earlier home pod; ``unpl``: the
#: remote finds no node for it; ``u.g``, ``u.e``, ``u.l``: an unschedulable pod that terminates, is
#: not cached, and is confirmed as deleted; ``held``: still gated; ``h.g``, ``h.e``, ``h.l``: the
#: same for a gated pod.
_REMOTE: dict[str, dict[str, Any]] = {
    "abs": {"remote": None},
    "lost": {"remote": None, "absence_confirmed": True},
    "end": {"remote": None, "last_remote": remote(phase="Succeeded")},
    "fail": {"remote": None, "last_remote": remote(phase="Failed")},
    "cut": {"remote": None, "last_remote": remote(deleting=30), "absence_confirmed": True},
    "pend": {"remote": remote(phase="Pending")},
    "runs": {"remote": remote()},
    "over": {"remote": remote(phase="Succeeded")},
    "g": {"remote": remote(deleting=30)},
    "g.f": {"remote": remote(phase="Failed", deleting=30)},
    "old": {"remote": remote(of=PREVIOUS_UID)},
    "old.g": {"remote": remote(of=PREVIOUS_UID, deleting=30)},
    "unpl": {"remote": _UNPLACED},
    "u.g": {"remote": remote(phase="Pending", waits=True, deleting=0)},
    "u.e": {"remote": None, "last_remote": _UNPLACED},
    "u.l": {"remote": None, "last_remote": _UNPLACED, "absence_confirmed": True},
    "held": {"remote": _HELD},
    "h.g": {"remote": remote(phase="Pending", held=True, deleting=30)},
    "h.e": {"remote": None, "last_remote": _HELD},
    "h.l": {"remote": None, "last_remote": _HELD, "absence_confirmed": True},
}

_TABLE = """
home, remote |abs|lost|end|fail|cut|pend|runs|over|g|g.f|old|old.g|unpl|u.g|u.e|u.l|held|h.g|h.e|h.l
gone         |-  |-   |-  |-   |-  |o   |o   |o   |-|-  |o  |-    |o   |-  |-  |-  |o   |-  |-  |-
new          |C  |C   |s  |s   |C  |-   |s   |s   |e|e  |o  |-    |sl  |e  |?  |C  |-   |e  |?  |C
new Never    |C  |C   |s  |s   |e  |m   |m   |s   |e|s  |o  |-    |m   |e  |?  |e  |m   |e  |?  |C
marked Never |?  |e   |s  |s   |e  |-   |s   |s   |e|s  |o  |-    |sl  |e  |?  |e  |m   |e  |?  |e
ran Always   |?  |C   |s  |s   |C  |s   |s   |s   |e|e  |o  |-    |sl  |e  |?  |C  |s   |e  |?  |C
ran OnFailure|?  |C   |s  |s   |C  |s   |s   |s   |e|e  |o  |-    |sl  |e  |?  |C  |s   |e  |?  |C
ran Never    |?  |e   |s  |s   |e  |s   |s   |s   |e|s  |o  |-    |sl  |e  |?  |e  |m   |e  |?  |e
waits        |C  |C   |s  |s   |C  |-   |s   |s   |e|e  |o  |-    |l   |e  |?  |C  |-   |e  |?  |C
waited       |C  |C   |s  |s   |C  |-   |s   |s   |e|e  |o  |-    |sw  |-  |?  |e  |-   |-  |?  |e
waited Never |?  |e   |s  |s   |e  |-   |s   |s   |e|s  |o  |-    |sw  |-  |?  |e  |m   |-  |?  |e
timed out    |?  |e   |s  |s   |C  |-   |s   |s   |e|e  |o  |-    |w   |-  |?  |e  |-   |-  |?  |e
skipped      |e  |e   |e  |e   |e  |-   |s   |s   |e|e  |o  |-    |sl  |e  |e  |e  |-   |e  |e  |e
over         |-  |-   |-  |-   |-  |d   |d   |-   |-|-  |o  |-    |d   |-  |-  |-  |d   |-  |-  |-
del new      |R  |R   |sR |sR  |sR |d   |sd  |sd  |s|s  |o  |-    |sd  |s  |sR |sR |d   |-  |R  |R
del ran      |?  |R   |sR |sR  |sR |sd  |sd  |sd  |s|s  |o  |-    |sd  |s  |sR |sR |sd  |s  |sR |sR
del over     |?  |R   |R  |R   |R  |d   |d   |d   |-|-  |o  |-    |d   |-  |R  |R  |d   |-  |R  |R
"""


def _letter(action: Action) -> str:
    match action:
        case Create():
            return "C"
        case Ungate():
            return "m"
        case WriteStatus(_, event):
            return "e" if event else "s"
        case ConfirmAbsence():
            return "?"
        case DeleteOrphan():
            return "o"
        case Delete():
            return "d"
        case DeleteIfUnbound():
            return "w"
        case RequeueAfter():
            return "l"
        case EvictHomePod():
            return "v"
        case RemoveHomePod():
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


@pytest.mark.parametrize(("left", "then"), [(20.0, "l"), (0.0, "v")], ids=["waits", "over"])
@pytest.mark.parametrize("theirs", ["g", "g.f", "u.g", "h.g"])
@pytest.mark.parametrize("ours", _HOME)
def test_cell_on_a_lost_node(ours: str, theirs: str, left: float, then: str) -> None:
    """As elsewhere; and a live home pod is evicted when its time has come, unless the status of
    its remote pod is its end."""
    state = PodState(_HOME[ours], **_REMOTE[theirs], eviction_seconds=left)
    ended = theirs == "g.f" and ours.endswith("Never")
    live = not ours.startswith(("gone", "over", "del")) and not ended
    decided = _decided()[ours, theirs].replace("-", "")

    assert "".join(map(_letter, plan_actions(state, POLICY, now=NOW))) == decided + then * live


@pytest.mark.parametrize(("ours", "theirs"), _CELLS, ids=[f"{a} x {b}" for a, b in _CELLS])
def test_cell(ours: str, theirs: str) -> None:
    state = PodState(_HOME[ours], **_REMOTE[theirs])
    actions = plan_actions(state, POLICY, now=NOW)

    assert ("".join(map(_letter, actions)) or "-") == _decided()[ours, theirs]
