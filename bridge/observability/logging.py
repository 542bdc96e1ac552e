"""Where log records go: to stderr, one line each, for a person who watches, or as JSON
(`bridge.observability.json_logging`).

Records of the logger ``cluster-bridge.changes`` are the story (what changed, and where); all
others are shown from warnings up, or all of them with ``verbose``.

A line is cheap, since each pod has several: nothing is found out about the caller that no line
shows. And none is waited for: where nobody reads what comes (a pipe whose reader stands still, a
terminal stopped with Ctrl-S), or where they cannot be written (a full disk), lines are dropped, and
their number is told when there is room again. A blocked write would end the node's Lease.

Control characters in a message are escaped: it may quote an API server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import time
from typing import Protocol

from bridge.base.printable_text import escape_line, escape_lines
from bridge.base.settings import LogFormat
from bridge.observability.json_logging import STEPS, JsonFormatter
from sync.runtime.log_fields import NODE

CHANGES = "cluster-bridge.changes"

_DROPPED = "lines were dropped: nobody read, or there was no room"
#: What a pipe that is ready takes at once without blocking (PIPE_BUF; pipe(7)).
_AT_ONCE = select.PIPE_BUF


class _Format(Protocol):
    """Makes lines of records, and of what the log itself has to say."""

    def format(self, record: logging.LogRecord) -> str: ...

    def said(self, text: str) -> str: ...


class _Lines(logging.Formatter):
    """``12:31:02 pod default/web: Running``; other records begin with their level. With ``nodes``
    each names its virtual node first."""

    def __init__(self, *, nodes: bool = False) -> None:
        super().__init__()
        self._second, self._clock = -1, ""
        self._nodes = nodes

    def said(self, text: str) -> str:
        return text

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        # Messages quote API servers and names of objects.
        text = escape_line(record.getMessage())
        if record.exc_info:
            text = f"{text}\n{escape_lines(self.formatException(record.exc_info))}"
        level = "" if record.name == CHANGES else f"{record.levelname.lower()}: "
        node = f"{NODE.get()}: " if self._nodes and NODE.get() else ""
        return f"{self._clock} {node}{level}{text}"


class NonBlockingHandler(logging.Handler):
    """Writes to an open file, and never waits for who reads it."""

    def __init__(self, file: int, lines: _Format | None = None) -> None:
        super().__init__()
        self._file = file
        self._lines = lines or _Lines()
        self._room = select.poll()
        self._room.register(file, select.POLLOUT)
        self._dropped = 0
        self._ending = b""  # of a line that was cut

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, or counts it."""
        try:
            line = self._lines.format(record)
            if self._dropped and self._written(self._lines.said(f"{self._dropped} {_DROPPED}")):
                self._dropped = 0
            if self._dropped or not self._written(line):
                self._dropped += 1
        except Exception:  # noqa: BLE001  # as every handler: a line must not end the bridge
            self.handleError(record)

    def _written(self, line: str) -> bool:
        """Whether it was, or at least its beginning."""
        rest = self._ending + line.encode(errors="backslashreplace") + b"\n"
        begun = False
        with contextlib.suppress(OSError):
            while rest and self._room.poll(0):
                rest = rest[os.write(self._file, rest[:_AT_ONCE]) :]
                begun = True
        if begun:
            self._ending = b"\n" if rest else b""
        return begun


def configure_logging(
    *, verbose: bool, log_format: LogFormat = "console", nodes: bool = False
) -> None:
    """Sends all records to stderr. To be called once, by the command. ``nodes``: several virtual
    nodes are served."""
    # Nothing of these is in a line (the library's HOWTO: Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    made = JsonFormatter() if log_format == "json" else _Lines(nodes=nodes)
    root.handlers[:] = [NonBlockingHandler(sys.stderr.fileno(), made)]
    root.setLevel(logging.DEBUG if verbose else logging.WARNING)
    for told in (CHANGES, STEPS):
        logging.getLogger(told).setLevel(logging.INFO)
    # asyncio's own debug lines say nothing of clusters.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
