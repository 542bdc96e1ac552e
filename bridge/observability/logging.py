"""Where log records go: to stderr, one line each, for a person who watches.

Records of the logger ``cluster-bridge.changes`` are the story (what changed, and where); all
others are shown from warnings up, or all of them with ``verbose``.
"""

from __future__ import annotations

import logging
import sys

CHANGES = "cluster-bridge.changes"


class _Lines(logging.Formatter):
    """``12:31:02 pod default/web: Running``; other records begin with their level."""

    def format(self, record: logging.LogRecord) -> str:
        clock = self.formatTime(record, "%H:%M:%S")
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        level = "" if record.name == CHANGES else f"{record.levelname.lower()}: "
        return f"{clock} {level}{text}"


def to_terminal(*, verbose: bool) -> None:
    """Sends all records to stderr. To be called once, by the command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger(CHANGES).setLevel(logging.INFO)
    # asyncio's own debug lines say nothing of clusters.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
