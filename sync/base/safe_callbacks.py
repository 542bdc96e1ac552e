"""Callbacks whose exceptions do not reach the caller, and the early expiry of timeouts.

A handler that raises is logged with the place of the error, at ERROR level the first time and at
DEBUG level after that; the other handlers still run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

from sync.base import exception_summary

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Callbacks(Generic[P]):
    """The handlers of one notification, called in the order in which they were added. ``what``
    names it in the log; ``on_defect`` is called for each exception of a handler and must not
    raise."""

    def __init__(self, what: str, *, on_defect: Callable[[], None] = lambda: None) -> None:
        self._what = what
        self._on_defect = on_defect
        self._handlers: list[Callable[P, None]] = []
        self._logged: set[Callable[P, None]] = set()

    def add(self, handler: Callable[P, None]) -> Callable[[], None]:
        """Calls ``handler`` from now on, until the returned function is called."""
        self._handlers.append(handler)

        def remove() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)
            self._logged.discard(handler)

        return remove

    def clear(self) -> None:
        self._handlers.clear()
        self._logged.clear()

    def __len__(self) -> int:
        return len(self._handlers)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for handler in list(self._handlers):
            try:
                handler(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  # a listener must not end the caller
                self._failed(handler, error)

    def _failed(self, handler: Callable[P, None], error: Exception) -> None:
        self._on_defect()
        level = logging.DEBUG if handler in self._logged else logging.ERROR
        self._logged.add(handler)
        log.log(
            level,
            "%s: a handler failed; this is a defect in the bridge, please report it: %s",
            self._what,
            exception_summary.traced_summary(error),
        )


def expire_now(limit: asyncio.Timeout | None) -> None:
    """Expires ``limit`` now; does nothing if it is None, is expiring already, or has ended."""
    if limit is not None:
        # `reschedule` raises RuntimeError if the timeout is expiring or has ended.
        with contextlib.suppress(RuntimeError):
            limit.reschedule(asyncio.get_running_loop().time())
