"""Shows statuses on a terminal or in a file, once or whenever they change.

One node is a tree. Several are a table with one line each (`build_table`), and the trees of those
that need attention. On a terminal both are drawn, and redrawn in place. Anywhere else the output is
plain text, and `follow` writes one line per change. Text from the clusters is never interpreted as
markup.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bridge.base.command_output import Output, format_document, format_table
from bridge.status import status_tree
from bridge.status.fleet_view import build_remote, tier_key
from bridge.status.status_client import StatusWatch
from bridge.status.status_tree import Branch, Tone
from translators.object_accessors import Object

#: Seconds between two reads: the maximum, since a bridge's own state is not watched, and the
#: minimum in a burst of changes.
MAX_INTERVAL, MIN_INTERVAL = 2.0, 0.5

_STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "red", "dim": "dim"}
HINT = "`bridge status NODE` shows everything of one node"
#: Width of a bar, in characters.
BAR_WIDTH = 8
NO_NODES = "home has no virtual nodes; `bridge join` creates one"


def render(statuses: Sequence[Object]) -> str:
    """The node as a tree, or several as an overview; drawn if standard output is a terminal."""
    if not statuses:
        return NO_NODES
    if not sys.stdout.isatty():
        parts = [] if len(statuses) == 1 else [_plain_fleet(statuses)]
        trees = map(status_tree.build_tree, _in_full(statuses))
        return "\n".join([*parts, *map(status_tree.plain_text, trees), *_hint(statuses)])
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        for it in _renderables(statuses):
            console.print(it)
    return captured.get()


def _in_full(statuses: Sequence[Object]) -> Sequence[Object]:
    """The nodes that are shown as trees."""
    return statuses if len(statuses) == 1 else needing_attention(statuses)


def _hint(statuses: Sequence[Object]) -> list[str]:
    return [] if len(statuses) == len(_in_full(statuses)) else [HINT]


def _plain_fleet(statuses: Sequence[Object]) -> str:
    headers, rows = build_table(statuses)
    return format_table(headers, plain_rows(rows))


def _renderables(statuses: Sequence[Object]) -> list[RenderableType]:
    """The drawn parts, from top to bottom."""
    if not statuses:
        return [_text(Branch(NO_NODES))]
    fleet = [] if len(statuses) == 1 else [_drawn_fleet(statuses)]
    trees = [_drawn(status_tree.build_tree(it)) for it in _in_full(statuses)]
    return [*fleet, *trees, *(_text(Branch(it)) for it in _hint(statuses))]


def _drawn_fleet(statuses: Sequence[Object]) -> RenderableType:
    headers, rows = build_table(statuses)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for name in headers:
        # A resource's name is text of the remote's nodes: rich would interpret markup in a str.
        header = Text(status_tree.printable(name.upper()))
        table.add_column(header, no_wrap=name != "problem")

    def draw(cell: Cell) -> Text:
        text = Text()
        if cell.percent is not None:
            full = min(BAR_WIDTH, round(BAR_WIDTH * cell.percent / 100))
            text.append("━" * full, style=_STYLES[cell.tone] or "cyan")
            text.append("━" * (BAR_WIDTH - full) + " ", style="bright_black")
        text.append(status_tree.printable(cell.text), style=_STYLES[cell.tone])
        return text

    for row in rows:
        table.add_row(*map(draw, row))
    return table


def node_names(statuses: Sequence[Object]) -> list[str]:
    """``node/NAME`` of each, as kubectl prints names."""
    return [f"node/{it['name']}" for it in statuses]


def render_table(statuses: Sequence[Object]) -> str:
    """One line for each node, for ``-o wide``."""
    return format_table(_WIDE_HEADERS, map(_wide_row, statuses)) if statuses else NO_NODES


_WIDE_HEADERS = (
    "name",
    "status",
    "pods",
    "cpu",
    "memory",
    "volumes",
    "bridge",
    "kubelet",
    "remote",
)


def _wide_row(status: Object) -> list[str]:
    versions, bridge = status.get("versions") or {}, status.get("bridge") or {}
    requested = [
        f"{its['requested']}/{its['allocatable']}" if its else ""
        for its in (status.get("resources", {}).get(it) for it in ("cpu", "memory"))
    ]
    return [
        status["name"],
        status_tree.format_readiness(status)[0],
        str((status.get("pods") or {}).get("total", "?")),
        *requested,
        _volumes_cell(status.get("volumes")),
        versions.get("bridge") or "?",
        versions.get("kubelet") or "?",
        str(((bridge.get("clusters") or {}).get("remote") or {}).get("server") or "?"),
    ]


def _volumes_cell(volumes: Object | None) -> str:
    if volumes is None:
        return "-"
    extra = [f"{volumes[it]} {it}" for it in ("pending", "missing") if volumes[it]]
    return f"{volumes['total']}" + (f" ({', '.join(extra)})" if extra else "")


def all_ready(statuses: Sequence[Object]) -> bool:
    """Whether all nodes are Ready."""
    return all(it["ready"] is True for it in statuses)


async def follow(watched: StatusWatch, stop: asyncio.Event, output: Output) -> bool:
    """Shows the nodes whenever they change until ``stop``. Returns whether all are Ready then."""
    last: list[Object] = []
    with _open_display(output) as show:
        while not stop.is_set():
            watched.changed.clear()
            last = await watched.read()
            show(last)
            await _wait_any(stop, seconds=MIN_INTERVAL)
            await _wait_any(stop, watched.changed, seconds=MAX_INTERVAL - MIN_INTERVAL)
    return all_ready(last)


async def _wait_any(*events: asyncio.Event, seconds: float) -> None:
    """Waits for any of the events, at most ``seconds``."""
    tasks = [asyncio.create_task(it.wait()) for it in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _open_display(output: Output) -> Iterator[Callable[[list[Object]], None]]:
    if output is not Output.TABLE or not sys.stdout.isatty():
        yield _change_writer(output)
        return
    with Live(console=Console(file=sys.stdout), auto_refresh=False) as live:

        def draw(statuses: list[Object]) -> None:
            live.update(Group(*_renderables(statuses)), refresh=True)

        yield draw
        # The final output is not cropped to the screen.
        live.vertical_overflow = "visible"


def _change_writer(output: Output) -> Callable[[list[Object]], None]:
    """A function that writes what changed since its last call, ignoring ages."""
    previous: list[str] | None = None

    def write(statuses: list[Object]) -> None:
        nonlocal previous
        lines = [status_tree.one_line(it) for it in statuses]
        if lines == previous:
            return
        before, previous = previous or [], lines
        if output is Output.NAME:
            text = "\n".join(node_names(statuses))
        elif not output.is_for_people:
            text = format_document({"nodes": statuses}, output)
        else:
            text = "\n".join([it for it in lines if it not in before] or [NO_NODES] * (not lines))
        if text:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    return write


def _drawn(root: Branch) -> RenderableType:
    def grow(into: Tree, branch: Branch) -> None:
        for below in branch.children:
            grow(into.add(_text(below)), below)

    drawn = Tree(_text(root), guide_style="dim")
    grow(drawn, root)
    return drawn


def _text(branch: Branch) -> Text:
    """A branch as rich Text, which interprets no markup."""
    text = Text(status_tree.printable(branch.label), style="bold" if branch.children else "")
    if branch.text:
        text.append(": ", style="not bold")
        text.append(
            status_tree.printable(branch.text), style=f"not bold {_STYLES[branch.tone]}".strip()
        )
    return text


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
    """Headers and rows of the overview: tier, cost, use of the main resources, pods, lag, and the
    worst problem of each remote, by tier and cost. A column that no remote fills is left out."""
    remotes = sorted(map(build_remote, statuses), key=tier_key)
    names = {resource["name"] for each in remotes for resource in each["resources"]}
    extended = sorted(name for name in names if "/" in name)
    resources = (*_MAIN, *extended[:MAX_EXTENDED])
    columns: list[tuple[str, list[Cell]]] = [
        ("remote", [Cell(each["name"], each["health"]["tone"]) for each in remotes]),
        ("status", [Cell(each["status"], _status_tone(each)) for each in remotes]),
        ("tier", [Cell(each["tier"]) for each in remotes]),
        ("cost", [Cell("" if each["cost"] is None else f"{each['cost']:g}") for each in remotes]),
        *((name.rpartition("/")[2], [_use(each, name) for each in remotes]) for name in resources),
        ("pods", [_pods(each) for each in remotes]),
        ("lag", [Cell("" if each["lag"] is None else f"{each['lag']:.1f} s") for each in remotes]),
        ("problem", [_problem(each) for each in remotes]),
    ]
    shown = [(name, cells) for name, cells in columns if any(cell.text for cell in cells)]
    return [name for name, _ in shown], [
        list(row) for row in zip(*(cells for _, cells in shown), strict=True)
    ]


def needing_attention(statuses: Iterable[Object]) -> list[Object]:
    """The statuses with a problem that is more than a cordon."""
    return [each for each in statuses if build_remote(each)["health"]["tone"] in ("bad", "warn")]


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
