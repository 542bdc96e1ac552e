"""How `bridge status` shows what it found: on a terminal, in a file, and again when it changes.

On a terminal the tree is drawn in place; anywhere else nothing but plain text is written, and
`follow` writes one line a change. What strangers wrote is never taken for markup.
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

#: Seconds between two looks at most, since nobody tells of what a bridge says of itself; and at
#: least, in a burst of changes.
EVERY, LEAST = 2.0, 0.5

_STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "red", "dim": "dim"}
NO_NODES = "home has no virtual nodes; bridge join makes one"


def render(statuses: Sequence[Object]) -> str:
    """The trees of all nodes, for standard output as it is."""
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
    """Shows the nodes again and again until ``stop``; whether all were Ready at the end."""
    last: list[Object] = []
    with _shower(output) as show:
        while not stop.is_set():
            watched.changed.clear()
            last = await watched.read()
            show(last)
            await _any(stop, seconds=LEAST)
            await _any(stop, watched.changed, seconds=EVERY - LEAST)
    return all_ready(last)


async def _any(*events: asyncio.Event, seconds: float) -> None:
    """Waits for one of them, or for the time."""
    tasks = [asyncio.create_task(it.wait()) for it in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _shower(output: Output) -> Iterator[Callable[[list[Object]], None]]:
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
        # As it is left, also what did not fit.
        live.vertical_overflow = "visible"


class _Changes:
    """Writes what has changed since it last wrote, ages aside."""

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
    """One branch; a Text has no markup."""
    from rich.text import Text

    text = Text(tree.printable(branch.label), style="bold" if branch.children else "")
    if branch.text:
        text.append(": ", style="not bold")
        text.append(tree.printable(branch.text), style=f"not bold {_STYLES[branch.tone]}".strip())
    return text
