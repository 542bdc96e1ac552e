"""The output of `bridge status`: redrawn in place, as lines, and as documents."""

from __future__ import annotations

import asyncio
import io
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bridge.base.command_output import Output
from bridge.status import terminal_output as shown
from bridge.status.status_client import StatusWatch
from tests.bridge.status.examples import bridge, pod, refused, status
from translators.object_accessors import Object


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Looked(StatusWatch):
    """Returns one status after the other, then sets ``stop``."""

    def __init__(self, stop: asyncio.Event, *states: list[Object]) -> None:
        self.changed = asyncio.Event()
        self._stop, self._states = stop, iter(states)
        self._next: list[Object] = next(self._states)

    async def read(self) -> list[Object]:
        now = self._next
        try:
            self._next = next(self._states)
        except StopIteration:
            self._stop.set()
        return now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(shown, "MAX_INTERVAL", 0.001)


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen(terminal=request.param)
    monkeypatch.setattr(shown, "sys", SimpleNamespace(stdout=found))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


async def followed(output: Output, *states: list[Object]) -> bool:
    stop = asyncio.Event()
    return await shown.follow(Looked(stop, *states), stop, output)


def test_tree_is_drawn_on_a_terminal(screen: Screen) -> None:
    text = shown.render([status(refused("b", message="[red]markup[/red] :smile: \x1b[2J"))])
    assert "FieldRefused: [red]markup[/red] :smile: \ufffd[2J" in text
    assert ("├──" in text) == screen.isatty()
    assert ("\x1b[" in text) == screen.isatty()


def test_several_nodes_are_a_table_and_trees_of_those_with_problems(screen: Screen) -> None:
    away = status(name="away[red]", ready=False, tier="2")
    text = shown.render([status(), away])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", it) for it in text.splitlines()]
    assert lines[0].split()[:4] == ["REMOTE", "STATUS", "TIER", "CPU"]
    assert lines[1].split()[:2] == ["away[red]", "NotReady"]
    assert lines[2].split()[:2] == ["remote", "Ready"]
    assert sum(it.startswith("away[red]: NotReady") for it in lines) == 1
    assert not any(it.startswith("remote: Ready") for it in lines)
    assert lines[-1] == shown.HINT
    assert ("━" in text) == screen.isatty()


def test_name_of_a_resource_is_no_markup_and_no_escape_sequence(screen: Screen) -> None:
    named = status(name="named")
    named["resources"]["a.example/[red]gpu\x1b[2J"] = named["resources"]["cpu"]
    text = shown.render([status(), named])
    assert "[RED]GPU" in text
    assert "\x1b[2J" not in text


def test_values_of_other_types_are_shown(screen: Screen) -> None:
    error = {"last": 1, "count": 1, "level": "error", "message": 4711}
    text = shown.render([status(bridge=bridge(version=[4712], errors=[error]))])
    assert "4711" in text
    assert "4712" in text


def test_no_color_is_honoured(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown.render([status()])
    assert "\x1b[3" not in text
    assert "Ready" in text


def test_no_nodes_is_reported(screen: Screen) -> None:
    assert shown.render([]) == shown.NO_NODES


@pytest.mark.parametrize(
    ("statuses", "ready"),
    [
        ([], True),
        ([status()], True),
        ([status(), status(ready=False)], False),
        ([status(ready=None)], False),
    ],
)
def test_all_ready(statuses: list[Object], ready: bool) -> None:
    assert shown.all_ready(statuses) is ready


async def test_follow_writes_changes(screen: Screen) -> None:
    away = status(pod("a", "Running"), ready=False)
    assert not await followed(Output.TABLE, [status()], [status()], [away], [away])
    text = screen.getvalue()
    if screen.isatty():
        assert "├──" in text
        assert text.index("Ready") < text.index("NotReady")
        assert "\x1b[?25h" in text, "the cursor is back"
    else:
        assert text.splitlines() == [
            "remote: Ready, 0 pods",
            "remote: NotReady, 1 pods (1 Running)",
        ]


@pytest.mark.parametrize(("output", "load"), [(Output.JSON, json.loads), (Output.YAML, None)])
async def test_follow_writes_one_document_per_change(
    screen: Screen, output: Output, load: Any
) -> None:
    before, after = [status()], [status(cordoned=True)]
    later = {**before[0]["bridge"], "uptimeSeconds": 9999}
    assert await followed(output, before, [{**before[0], "bridge": later}], after)
    text = screen.getvalue()
    found = list(map(load, text.splitlines())) if load else list(yaml.safe_load_all(text))
    assert found == [{"nodes": before}, {"nodes": after}]


async def test_new_nodes_are_shown(screen: Screen) -> None:
    await followed(Output.TABLE, [], [status()])
    text = screen.getvalue()
    assert text.index(shown.NO_NODES) < text.index("Ready")


@pytest.mark.parametrize(
    ("volumes", "cell"),
    [
        (None, "-"),
        ({"total": 2, "pending": 0, "missing": 0}, "2"),
        ({"total": 3, "pending": 1, "missing": 2}, "3 (1 pending, 2 missing)"),
    ],
)
def test_wide_row_has_a_cell_for_volumes(volumes: dict[str, int] | None, cell: str) -> None:
    heading, row = shown.render_table([status(volumes=volumes)]).splitlines()
    start, end = heading.index("VOLUMES"), heading.index("BRIDGE")
    assert row[start:end].strip() == cell
