"""Summarizes unexpected exceptions for the log, and lists the exceptions of a group.

Summaries contain the type of an exception and where it was raised, never its message, which can
quote an API object.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from pathlib import PurePath

log = logging.getLogger(__name__)

#: How many of the innermost frames `traced_summary` lists.
_MAX_FRAMES = 8


def summary(error: BaseException) -> str:
    """One line for people: ``TypeError in translators/pods/remote_pod.py:12 (translate_pod)``."""
    frames = _frames(error)
    return f"{type(error).__name__} in {frames[-1]}" if frames else type(error).__name__


def traced_summary(error: BaseException) -> str:
    """The type and the innermost frames, one per line, innermost last; for a bug report."""
    frames = _frames(error)[-_MAX_FRAMES:]
    return f"{type(error).__name__}\n" + "\n".join(f"  {frame}" for frame in frames)


def _frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    # The last three parts of the path: no directory of this machine is logged.
    paths = ["/".join(PurePath(frame.filename).parts[-3:]) for frame in frames]
    return [f"{it}:{frame.lineno} ({frame.name})" for it, frame in zip(paths, frames, strict=True)]


@contextlib.contextmanager
def log_defects(subject: object, *, extra: Mapping[str, object] | None = None) -> Iterator[None]:
    """Logs an exception of the block as a defect met while handling ``subject``, and suppresses
    it. ``extra``: see `sync.runtime.log_fields`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # one subject must not stop the others
        log.error(  # noqa: TRY400  # a traceback can quote the object
            "%s: a defect in the bridge; please report it: %s",
            subject,
            traced_summary(error),
            extra=extra,
        )


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in ``error`` (or ``error`` itself) that are no groups, depth first."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def first_leaf(error: BaseException) -> BaseException:
    """The first of `leaves`."""
    return next(leaves(error))
