"""Writes log records to stderr, one line each: for people, or as JSON for log collectors.

Records of the loggers `CHANGES` (what changed, and where) and `AUDIT` (who opened a stream) are
always shown; all others from warnings up, or all of them with ``verbose``.

A JSON line has ``ts`` (RFC 3339, UTC, milliseconds), ``level``, ``logger`` and ``msg``, the text of
the line for people; where known ``node`` (the virtual node), ``cluster`` (``home`` or ``remote``),
``kind``, ``namespace``, ``name`` and ``uid`` (in home), and ``trace`` for an error with a
traceback. Published fields stay; new ones may come.

Logging is cheap, since each pod causes several lines, and never blocks, since a blocked write would
let the node's Lease expire: where no reader reads (a full pipe, a terminal stopped with Ctrl-S) or
a write fails (a full disk), lines are dropped, and their number is logged later. Control characters
are escaped, and long text is cut, because a message may quote an API server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
import time

from bridge.base.join_settings import LogFormat
from bridge.base.printable_text import escape_json, escape_line, escape_lines
from sync.runtime.log_fields import FIELDS, NODE

CHANGES = "cluster-bridge.changes"
#: The logger of `bridge.kubelet.stream_audit`.
AUDIT = "cluster-bridge.audit"
#: The logger of a command's progress and errors, where they are logged.
STEPS = "cluster-bridge.steps"

_DROPPED = "lines were dropped: stderr was not read, or could not be written"
#: Characters of a message or field that are shown: an object's text may be megabytes, and lines are
#: escaped on the event loop.
TEXT_MAX = 8192
#: Bytes that a ready pipe accepts without blocking (PIPE_BUF; pipe(7)).
_NON_BLOCKING_SIZE = select.PIPE_BUF


class ConsoleFormatter(logging.Formatter):
    """Formats ``12:31:02 pod default/web: Running``; records of other loggers than `CHANGES`
    and `AUDIT` start with their level."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._clock = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._clock = second, time.strftime("%H:%M:%S", time.localtime(second))
        text = escape_line(_shortened(record.getMessage()))
        if record.exc_info:
            text = f"{text}\n{escape_lines(self.formatException(record.exc_info))}"
        level = "" if record.name in (CHANGES, AUDIT) else f"{record.levelname.lower()}: "
        return f"{self._clock} {level}{text}"


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects, one line each."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _shortened(record.getMessage()),
            "node": NODE.get(),
            **{name: _shortened(text) for name, text in getattr(record, FIELDS, {}).items()},
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        present = {key: value for key, value in line.items() if value}
        return escape_json(json.dumps(present, ensure_ascii=False))


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


class NonBlockingHandler(logging.Handler):
    """Writes to a file descriptor without waiting for a reader; drops lines instead."""

    def __init__(self, file: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self._file = file
        self.formatter = formatter
        self._writable = select.poll()
        self._writable.register(file, select.POLLOUT)
        self._dropped = 0
        self._unfinished = b""  # the newline of a line that was cut

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if self._dropped:
                text = f"{self._dropped} {_DROPPED}"
                notice = logging.LogRecord(STEPS, logging.WARNING, "", 0, text, None, None)
                if self._write(self.format(notice)):
                    self._dropped = 0
            if self._dropped or not self._write(line):
                self._dropped += 1
        except Exception:  # noqa: BLE001  # as in every handler: a line must not end the bridge
            self.handleError(record)

    def _write(self, line: str) -> bool:
        """Returns whether the line, or at least its beginning, was written."""
        rest = self._unfinished + line.encode(errors="backslashreplace") + b"\n"
        started = False
        with contextlib.suppress(OSError):
            while rest and self._writable.poll(0):
                rest = rest[os.write(self._file, rest[:_NON_BLOCKING_SIZE]) :]
                started = True
        if started:
            self._unfinished = b"\n" if rest else b""
        return started


def configure_logging(*, verbose: bool, log_format: LogFormat = "console") -> None:
    """Sends all records to stderr; a command calls this once."""
    # No line shows the caller or the process (HOWTO of the logging module: Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    formatter = JsonFormatter() if log_format == "json" else ConsoleFormatter()
    root.handlers[:] = [NonBlockingHandler(sys.stderr.fileno(), formatter)]
    root.setLevel(logging.DEBUG if verbose else logging.WARNING)
    for always_shown in (CHANGES, AUDIT, STEPS):
        logging.getLogger(always_shown).setLevel(logging.INFO)
    # asyncio's debug lines are about its own internals.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
