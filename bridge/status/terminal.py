"""Shows statuses on a terminal or in a file, once or whenever they change.

On a terminal the tree is drawn, and redrawn in place. Anywhere else the output is plain text, and
`follow` writes one line per change. Text from the clusters is never interpreted as markup.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.base.output import Output
from bridge.base.printable_text import escape_json
from bridge.status import tree
from bridge.status.status_client import StatusWatch
from bridge.status.tree import Branch, Tone
from translators.objects import Object

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: Seconds between two reads: the maximum, since a bridge's own state is not watched, and the
#: minimum in a burst of changes.
MAX_INTERVAL, MIN_INTERVAL = 2.0, 0.5

_STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "red", "dim": "dim"}
NO_NODES = "home has no virtual nodes; `bridge join` creates one"


def render(statuses: Sequence[Object]) -> str:
    """The trees of all nodes, drawn if standard output is a terminal."""
    if not statuses:
        return NO_NODES
    roots = [tree.build_tree(it) for it in statuses]
    if not sys.stdout.isatty():
        return "\n".join(tree.plain_text(it) for it in roots)
    from rich.console import Console

    console = Console(file=sys.stdout)
    with console.capture() as captured:
        for root in roots:
            console.print(_drawn(root))
    return captured.get()


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
    if output is Output.TABLE and sys.stdout.isatty():
        with _live() as show:
            yield show
    else:
        yield _Changes(output).show


@contextmanager
def _live() -> Iterator[Callable[[list[Object]], None]]:
    from rich.console import Console, Group
    from rich.live import Live

    with Live(console=Console(file=sys.stdout), auto_refresh=False) as live:

        def show(statuses: list[Object]) -> None:
            drawn = [_drawn(tree.build_tree(it)) for it in statuses] or [_text(Branch(NO_NODES))]
            live.update(Group(*drawn), refresh=True)

        yield show
        # The final output is not cropped to the screen.
        live.vertical_overflow = "visible"


class _Changes:
    """Writes the changes since the last call, ignoring ages."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lines: list[str] | None = None

    def show(self, statuses: list[Object]) -> None:
        lines = [tree.one_line(it) for it in statuses]
        if lines == self._lines:
            return
        before, self._lines = self._lines or [], lines
        if self._output is Output.JSON:
            text = escape_json(json.dumps({"nodes": statuses}, ensure_ascii=False))
        elif self._output is Output.YAML:
            import yaml

            dumped = yaml.safe_dump({"nodes": statuses}, sort_keys=False, allow_unicode=True)
            text = f"---\n{dumped}".rstrip("\n")
        else:
            text = "\n".join([it for it in lines if it not in before] or [NO_NODES] * (not lines))
        if text:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def _drawn(root: Branch) -> RenderableType:
    from rich.tree import Tree

    def grow(into: Tree, branch: Branch) -> None:
        for below in branch.children:
            grow(into.add(_text(below)), below)

    drawn = Tree(_text(root), guide_style="dim")
    grow(drawn, root)
    return drawn


def _text(branch: Branch) -> Text:
    """A branch as rich Text, which interprets no markup."""
    from rich.text import Text

    text = Text(tree.printable(branch.label), style="bold" if branch.children else "")
    if branch.text:
        text.append(": ", style="not bold")
        text.append(tree.printable(branch.text), style=f"not bold {_STYLES[branch.tone]}".strip())
    return text
