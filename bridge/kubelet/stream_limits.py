"""Counts the open streams of the kubelet API by kind, bounds them in all and per home namespace
(`bridge.net.open_file_budget`), and ends them together when the server stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bridge.kubelet.error_responses import HttpError
from bridge.net.open_file_budget import MAX_STREAMS, ExceededLimit, NamespaceLimit
from bridge.net.splice import Direction
from bridge.net.unsent_budget import UnsentBudget, UnsentShare

#: Seconds after which a rejected caller may retry.
_RETRY_AFTER = "5"


@dataclass(eq=False, slots=True)
class Stream:
    """One open stream."""

    end: Callable[[], object]
    """Starts the stream's end and returns at once."""
    count_bytes: Callable[[Direction, int], None]
    """Counts bytes: *in* from the caller, *out* to the caller."""
    unsent: UnsentShare
    """Bounds the bytes that it holds."""


class ActiveStreams:
    """All streams of one server: logs, exec, attach, port-forward and run."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.counts: Counter[str] = Counter()
        """Open streams by kind: logs, exec, attach, portforward, run."""
        self.bytes: Counter[tuple[str, Direction]] = Counter()
        """Bytes so far, by kind and direction."""
        self.limit = limit
        """The maximum of open streams, over all kinds and namespaces."""
        self.namespace_limit = NamespaceLimit(limit)
        """Open streams by namespace of home."""
        self.rejected: Counter[ExceededLimit] = Counter({"limit": 0, "namespace-limit": 0})
        """Rejected streams so far, by the limit they exceeded."""
        self.unsent = UnsentBudget()
        """Bytes that peers of streams do not take."""
        self.output = 0
        """Bytes of the output of run, which is in memory as a whole."""
        self._open: set[Stream] = set()

    @contextmanager
    def track(self, kind: str, namespace: str) -> Iterator[Stream]:
        """Counts one stream of a namespace of home while it lasts. Its ``end`` cancels the calling
        task, until the caller sets another. Raises HttpError (429) when the limit, of all
        namespaces or of this one, is reached."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is opened outside of a task")

        def count_bytes(direction: Direction, count: int) -> None:
            self.bytes[kind, direction] += count

        if limit := self.namespace_limit.exceeded(namespace):
            self.rejected[limit] += 1
            raise HttpError(
                429,
                f"{self._limit_message(limit, namespace)}; end some of them (logs -f, exec, "
                "attach, port-forward) and try again",
                headers={"Retry-After": _RETRY_AFTER},
            )
        self.namespace_limit.acquire(namespace)
        stream = Stream(task.cancel, count_bytes, self.unsent.share(namespace))
        self._open.add(stream)
        self.counts[kind] += 1
        try:
            yield stream
        finally:
            self.counts[kind] -= 1
            self._open.discard(stream)
            self.namespace_limit.release(namespace)

    def _limit_message(self, limit: ExceededLimit, namespace: str) -> str:
        if limit == "limit":
            return f"the bridge has {self.limit} streams open, which is its limit"
        return (
            f"namespace {namespace} has {self.namespace_limit.used_by(namespace)} streams open, "
            f"which is its share: a namespace leaves as many of the {self.limit} free as it has"
        )

    def end_all(self) -> None:
        """Starts the end of every open stream."""
        for stream in list(self._open):
            stream.end()
