"""Words on an exception that nobody expected, without what the objects at hand hold.

An exception's message can quote an object (``invalid literal for int() with base 10: …``), and so
can the lines of a traceback that shows values: what is told is its type, and where it was raised.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator
from pathlib import PurePath

log = logging.getLogger(__name__)

#: The places that are told, those nearest to the defect: enough to find it.
_PLACES = 8


def summary(error: BaseException) -> str:
    """``TypeError in translators/pods/remote_pod.py:12 (to_remote)``: one line, for people."""
    places = _places(error)
    return f"{type(error).__name__} in {places[-1]}" if places else type(error).__name__


def traced_summary(error: BaseException) -> str:
    """The same with how it came there, for a report: innermost last."""
    return f"{type(error).__name__}\n" + "\n".join(f"  {it}" for it in _places(error)[-_PLACES:])


def _places(error: BaseException) -> list[str]:
    found = traceback.extract_tb(error.__traceback__)
    return [f"{_short(it.filename)}:{it.lineno} ({it.name})" for it in found]


def _short(filename: str) -> str:
    """Without the folders of this machine."""
    return "/".join(PurePath(filename).parts[-3:])


@contextlib.contextmanager
def log_defects(what: object) -> Iterator[None]:
    """For one of many: what the bridge stumbles over in the block is logged as of ``what``, by
    its place, and the next one has its turn."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # that is what it is for
        log.error("%s: a defect in the bridge; please report it: %s", what, traced_summary(error))  # noqa: TRY400
