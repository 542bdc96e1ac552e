"""Log lines as JSON objects, one line each, for collectors.

Every line has ``ts`` (RFC 3339, UTC, milliseconds), ``level``, ``logger`` and ``msg``, the same
words as on a terminal. Where they are known it has ``node`` (the virtual node), ``cluster``
(``home`` or ``remote``), ``kind``, ``namespace``, ``name`` and ``uid`` (as in home), and ``trace``
for an error with a traceback. Fields that were shown stay; new ones may come.
"""

from __future__ import annotations

import json
import logging
import time

from bridge.base.printable_text import escape_json
from sync.runtime.log_fields import FIELDS, NODE

#: The logger of lines that a command says to its person.
STEPS = "cluster-bridge.steps"


class JsonFormatter(logging.Formatter):
    """Records as such lines."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "ts": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            "node": NODE.get(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        kept = {key: value for key, value in line.items() if value}
        return escape_json(json.dumps(kept, ensure_ascii=False))

    def said(self, text: str) -> str:
        """A line of the log's own."""
        return self.format(logging.LogRecord(STEPS, logging.WARNING, "", 0, text, None, None))
