"""The overview of several remotes as a table of the terminal: one line for each, by tier and cost.

The columns are tier, cost, use of the main resources, pods, lag, and the worst problem. A column
that no remote fills is left out. Pure; `bridge.status.terminal_output` draws the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.status.fleet_view import build_remote, tier_key
from bridge.status.status_tree import Tone
from translators.object_accessors import Object

#: Resources with a column each; those with a domain, such as GPUs, follow.
_MAIN = ("cpu", "memory")
#: Columns of resources with a domain.
MAX_EXTENDED = 2
#: Percentage of use from which a cell is highlighted, and from which the remote is full.
_HIGH, _FULL = 80, 100


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell; ``percent`` is the use that a bar shows."""

    text: str
    tone: Tone = ""
    percent: int | None = None


def build_table(statuses: Iterable[Object]) -> tuple[list[str], list[list[Cell]]]:
    """Headers and rows."""
    remotes = sorted(map(build_remote, statuses), key=tier_key)
    extended = sorted(
        {it["name"] for each in remotes for it in each["resources"] if "/" in it["name"]}
    )
    resources = (*_MAIN, *extended[:MAX_EXTENDED])
    columns: list[tuple[str, list[Cell]]] = [
        ("remote", [Cell(it["name"], it["health"]["tone"]) for it in remotes]),
        ("status", [Cell(it["status"], _status_tone(it)) for it in remotes]),
        ("tier", [Cell(it["tier"]) for it in remotes]),
        ("cost", [Cell("" if it["cost"] is None else f"{it['cost']:g}") for it in remotes]),
        *((name.rpartition("/")[2], [_use(it, name) for it in remotes]) for name in resources),
        ("pods", [_pods(it) for it in remotes]),
        ("lag", [Cell("" if it["lag"] is None else f"{it['lag']:.1f} s") for it in remotes]),
        ("problem", [_problem(it) for it in remotes]),
    ]
    shown = [(name, cells) for name, cells in columns if any(cell.text for cell in cells)]
    return [name for name, _ in shown], [
        list(row) for row in zip(*(it for _, it in shown), strict=True)
    ]


def needing_attention(statuses: Iterable[Object]) -> list[Object]:
    """The statuses with a problem that is more than a cordon."""
    return [it for it in statuses if build_remote(it)["health"]["tone"] in ("bad", "warn")]


def plain_rows(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """The texts alone."""
    return [[cell.text or "-" for cell in row] for row in rows]


def _status_tone(remote: Object) -> Tone:
    return "good" if remote["status"].startswith("Ready") else "bad"


def _use(remote: Object, resource: str) -> Cell:
    for its in remote["resources"]:
        if its["name"] == resource and (percent := its["percent"]) is not None:
            tone: Tone = "bad" if percent >= _FULL else "warn" if percent >= _HIGH else ""
            return Cell(f"{percent} %", tone, percent)
    return Cell("")


def _pods(remote: Object) -> Cell:
    pods = remote["pods"]
    if pods is None:
        return Cell("?", "warn")
    return Cell(f"{pods['ready']}/{pods['total']}", "warn" if pods["refused"] else "")


def _problem(remote: Object) -> Cell:
    problems = remote["health"]["problems"]
    if not problems:
        return Cell("")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Cell(f"{problems[0]['text']}{more}", problems[0]["tone"])
