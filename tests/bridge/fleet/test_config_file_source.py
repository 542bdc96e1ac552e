"""The configuration file is noticed however it changes, and never read half."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from bridge.base.join_settings import SettingsError
from bridge.fleet import config_file_source
from bridge.fleet.config_file_source import ConfigFileSource, UnreadableFileError, followed
from bridge.fleet.desired_state import DesiredState, InvalidState
from tests.bridge.fleet.parts import part, parts
from tests.bridge.running_join import SOON


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at often."""
    monkeypatch.setattr(config_file_source, "POLL_SECONDS", 0.02)


class Following:
    """Reads the names of remotes, separated by spaces, from a file, and collects the states."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads: list[str] = []
        self.ports: list[Mapping[str, int]] = []
        self.during_read: Callable[[], None] = lambda: None
        self.source = ConfigFileSource(followed(path), parts(*path.read_text().split()), self.read)
        self.states: asyncio.Queue[DesiredState | InvalidState] = asyncio.Queue()

    async def read(self, ports: Mapping[str, int]) -> DesiredState:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            raise UnreadableFileError("cannot be read") from None
        self.reads.append(text)
        self.ports.append(ports)
        self.during_read()
        if "!" in text:
            raise SettingsError("invalid")
        return DesiredState(tuple(part(it, port=7) for it in text.split()))

    async def collect(self) -> None:
        async for state in self.source.states():
            self.states.put_nowait(state)

    async def next(self) -> str:
        """The names of the next state, or its error."""
        async with asyncio.timeout(SOON):
            state = await self.states.get()
        if isinstance(state, InvalidState):
            return state.error
        return " ".join(it.label for it in state.parts)


@contextlib.asynccontextmanager
async def following(path: Path) -> AsyncIterator[Following]:
    made = Following(path)
    task = asyncio.create_task(made.collect())
    try:
        await made.next()
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Following]:
    """A followed file with the remotes a and b."""
    path = tmp_path / "bridge.yaml"
    path.write_text("a b")
    async with following(path) as made:
        yield made


async def test_file_written_in_place_or_renamed_is_read_once(file: Following) -> None:
    file.path.write_text("a b c")
    assert await file.next() == "a b c"
    new = file.path.with_suffix(".new")
    new.write_text("a")
    new.rename(file.path)
    assert await file.next() == "a"
    assert file.reads == ["a b c", "a"]
    assert file.ports == [{"a": 0, "b": 0}, {"a": 7, "b": 7, "c": 7}]


async def test_mounted_config_map_that_swaps_its_link_is_read(tmp_path: Path) -> None:
    """As the kubelet does: bridge.yaml -> ..data/bridge.yaml, and ..data -> ..TIMESTAMP."""
    for version, text in (("..1", "a"), ("..2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "bridge.yaml").write_text(text)
        os.utime(tmp_path / version / "bridge.yaml", (1, 1))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "bridge.yaml").symlink_to("..data/bridge.yaml")
    async with following(tmp_path / "bridge.yaml") as made:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        assert await made.next() == "b"


async def test_invalid_or_missing_file_yields_its_error_once(file: Following) -> None:
    file.path.write_text("a !")
    assert await file.next() == "invalid"
    file.path.unlink()
    assert await file.next() == "cannot be read"
    file.path.write_text("a b")
    assert await file.next() == "a b"
    assert file.states.empty()


async def test_file_that_changes_while_it_is_read_is_read_again(file: Following) -> None:
    def finish() -> None:
        file.during_read = lambda: None
        file.path.write_text("a b c d")

    file.during_read = finish
    file.path.write_text("a b c")
    assert await file.next() == "a b c d"
    assert file.reads == ["a b c", "a b c d"]


async def test_unreadable_file_is_read_again_without_a_change(
    file: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file_source, "UNREADABLE_SECONDS", 0.0)
    failures = [UnreadableFileError("denied")] * 3

    def fail() -> None:
        if failures:
            raise failures.pop()

    file.during_read = fail
    file.path.write_text("a b c")
    assert await file.next() == "denied"
    assert await file.next() == "a b c"
    assert len(file.reads) == 4
    assert file.states.empty()


async def test_request_reads_an_unchanged_file(file: Following) -> None:
    file.source.read_now()
    assert await file.next() == "a b"
    assert file.reads == ["a b"]


async def test_pipe_is_read_at_the_start_only(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def read(_: Mapping[str, int]) -> DesiredState:
        raise AssertionError

    source = ConfigFileSource(followed(pipe), parts("a"), read)
    assert [state async for state in source.states()] == [DesiredState(parts("a"))]
