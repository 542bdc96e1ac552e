"""The configuration file of `bridge run` as a source: noticed when it changes, and read again.

The file is compared every `POLL_SECONDS`, through symbolic links: a mounted ConfigMap changes by
the swap of one, editors rename a new file, others write in place. A file counts once it is the same
at two polls, and while it was read: half a file can be valid, and has fewer remotes. `read_now`
(SIGHUP) reads it at once, changed or not. A file that cannot be read is read again every
`UNREADABLE_SECONDS`: its permissions can change without its time.

Kubeconfigs and certificates that the file names do not count: the clients of a running join follow
them (`sync.kube.credentials`), and `bridge.fleet.supervisor` those of a failing one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.base.join_settings import Part, SettingsError
from bridge.fleet.desired_state import DesiredState, InvalidState, by_key
from bridge.fleet.fleet_report import FleetReport

#: Seconds between two looks at the file.
POLL_SECONDS = 1.0
#: Seconds between two attempts to read a file that cannot be read.
UNREADABLE_SECONDS = 15.0

#: Identity, size and time of a file's content: device, inode, size, mtime in nanoseconds; None if
#: there is no such file.
Fingerprint = tuple[int, int, int, int] | None
#: Reads the file. Gets the ports of the remotes by key, so that those without a configured one keep
#: theirs. Raises SettingsError.
Read = Callable[[Mapping[str, int]], Awaitable[DesiredState]]


@dataclass(frozen=True, slots=True)
class FollowedFile:
    """A file that was read at the start."""

    path: Path
    """Absolute: the working directory may change."""
    fingerprint: Fingerprint
    """From before it was read."""
    is_regular: bool = True
    """Whether it can be read again, unlike a pipe."""


class UnreadableFileError(SettingsError):
    """The file cannot be read, or was not read in time, whatever its content."""


def followed(path: Path) -> FollowedFile:
    """The file as it is now. Call this before the first read."""
    is_regular = True
    with contextlib.suppress(OSError):
        is_regular = stat.S_ISREG(path.stat().st_mode)
    return FollowedFile(path.absolute(), fingerprint(path), is_regular)


def fingerprint(path: Path) -> Fingerprint:
    """The fingerprint of the file at the end of all links."""
    try:
        found = os.stat(path)  # noqa: PTH116  # works for a path in a thread as well
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


async def fingerprints(paths: Iterable[Path]) -> tuple[Fingerprint, ...]:
    """The fingerprints of files, which may be on a network: the event loop does not wait."""
    known = tuple(paths)
    try:
        return await asyncio.to_thread(lambda: tuple(map(fingerprint, known)))
    except RuntimeError:  # The process may start no more threads.
        return tuple(map(fingerprint, known))


class ConfigFileSource:
    """Yields the state of a configuration file, at first as it was read before."""

    ends_with_last_node = True

    def __init__(self, file: FollowedFile, first: tuple[Part, ...], read: Read) -> None:
        self.name = str(file.path)
        self._file = file
        self._first = first
        self._read = read
        self._requested = asyncio.Event()

    async def run(self, report: FleetReport) -> None:
        """Nothing to do: the file does not show the state of its remotes."""

    def read_now(self) -> None:
        """Has the file read at once."""
        self._requested.set()

    async def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        """The state of the start, and then of each change; an invalid file yields its error."""
        yield DesiredState(self._first)
        ports, seen = _ports(self._first), self._file.fingerprint
        unreadable = ""
        while self._file.is_regular:
            found = await self._next_change(seen, UNREADABLE_SECONDS if unreadable else None)
            before, unreadable = unreadable, ""
            state: DesiredState | InvalidState
            try:
                state = await self._read(ports)
            except SettingsError as error:
                state = InvalidState(str(error))
                if isinstance(error, UnreadableFileError):
                    unreadable = str(error)
            if await self._fingerprint() != found:
                continue
            seen = found
            if isinstance(state, DesiredState):
                ports = _ports(state.parts)
            if not unreadable or unreadable != before:
                yield state

    async def _next_change(self, seen: Fingerprint, limit: float | None) -> Fingerprint:
        """The new fingerprint once the file has settled, or the present one when a read is
        requested, and after ``limit`` seconds."""
        loop, last = asyncio.get_running_loop(), seen
        end = math.inf if limit is None else loop.time() + limit
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._requested.wait()
            now = await self._fingerprint()
            is_due = self._requested.is_set() or loop.time() >= end
            if is_due or (now != seen and now == last):
                self._requested.clear()
                return now
            last = now

    async def _fingerprint(self) -> Fingerprint:
        (found,) = await fingerprints([self._file.path])
        return found


def _ports(parts: Iterable[Part]) -> Mapping[str, int]:
    return {
        key: part.settings.port for key, part in by_key(parts).items() if part.state == "joined"
    }
