"""The streams that are open: counted by kind, bounded, and ended together when the server stops.

They are bounded in all, and by home's namespaces: `bridge.net.namespace_limits`.
"""

from __future__ import annotations

import asyncio
import functools
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from bridge.net.error_responses import HttpError
from bridge.net.namespace_limits import Reason, Shares

#: Streams at once. An idle one takes less than 100 KiB (two connections with TLS; `make bench`
#: tells). For a slow reader `tunnel.HELD` and a read of the connection (256 KiB) are held in each
#: direction: 640 MiB when all are slow both ways.
MAX_STREAMS = 1000
#: Descriptors of a stream: the caller's connection and the remote's.
_OF_A_STREAM = 2
#: Descriptors that streams leave alone: for watches, requests and files.
_OF_THE_REST = 512
#: Descriptors that are asked for: room for watches too, of which there are some for each namespace.
_WANTED = 16 * 1024
#: Seconds after which who was refused may try again.
_RETRY_AFTER = "5"


def streams_for(descriptors: int) -> int:
    """How many streams a process may have that can have this many open files."""
    return max(1, min(MAX_STREAMS, (descriptors - _OF_THE_REST) // _OF_A_STREAM))


def descriptors(least: int = 0) -> int:
    """How many files this process may have open, after asking for as many as `_WANTED`, or for
    ``least`` where that is more.

    The soft limit is 1,024 on most systems for the sake of programs that use select(2); the hard
    one is what this process is granted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(_WANTED, least)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def cancel_this() -> Callable[[], object]:
    """An end for what has none of its own (yet): cancels the task that asks."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a stream is opened by a task")
    return task.cancel


Direction = Literal["in", "out"]


class Stream:
    """One that is open. ``end`` begins its end and returns at once; ``moved`` counts bytes, *in*
    from the caller and *out* to the caller."""

    def __init__(self, end: Callable[[], object], moved: Callable[[Direction, int], None]) -> None:
        self.end = end
        self.moved = moved


class ActiveStreams:
    """Everything that lasts: logs, exec, attach, port-forward and run."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.counts: Counter[str] = Counter()
        """How many are open now, by kind: logs, exec, attach, portforward, run."""
        self.bytes: Counter[tuple[str, Direction]] = Counter()
        """How many bytes streams have carried so far, by kind and direction."""
        self.limit = limit
        """How many may be open at once, of all kinds and namespaces."""
        self.shares = Shares(limit)
        """How many are open, by home's namespaces."""
        self.refused: Counter[Reason] = Counter({"limit": 0, "namespace-limit": 0})
        """How many were refused so far, by what they exceeded."""
        self._open: set[Stream] = set()

    @contextmanager
    def one(self, kind: str, namespace: str, end: Callable[[], object]) -> Iterator[Stream]:
        """Counts one of home's namespace while it lasts. Raises HttpError (429) when there are as
        many as may be, of all namespaces or of this one."""
        if reason := self.shares.refusal(namespace):
            self.refused[reason] += 1
            raise HttpError(
                429,
                f"{self._too_many(reason, namespace)}; end some of them (logs that are followed, "
                "exec, attach, port-forward) and try again",
                headers={"Retry-After": _RETRY_AFTER},
            )
        self.shares.take(namespace)
        stream = Stream(end, functools.partial(self._moved, kind))
        self._open.add(stream)
        self.counts[kind] += 1
        try:
            yield stream
        finally:
            self.counts[kind] -= 1
            self._open.discard(stream)
            self.shares.give(namespace)

    def _too_many(self, reason: Reason, namespace: str) -> str:
        if reason == "limit":
            return f"the bridge has {self.limit} streams open, as many as it may"
        return (
            f"namespace {namespace} has {self.shares.of(namespace)} streams open, its share: of "
            f"the {self.limit} that may be open in all, a namespace leaves as many free as it has"
        )

    def _moved(self, kind: str, direction: Direction, count: int) -> None:
        self.bytes[kind, direction] += count

    def end_all(self) -> None:
        """Begins the end of each."""
        for stream in list(self._open):
            stream.end()
