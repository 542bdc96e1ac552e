"""Spans of what is done, for whoever wants to see one reconcile in its parts; off unless asked for.

`use` sets the tracer of the process, before anything runs; without one nothing of this is in the
way of a reconcile or a request. A span is of one reconcile (`traced`), or of one request that a
reconcile makes. Its attributes are names: no body, query or header is among them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Tracer(Protocol):
    """Makes spans. What a block raises is noted, and goes on."""

    def reconcile(self, controller: str, key: object, kind: str) -> AbstractContextManager[object]:
        """The span of a reconcile."""
        ...

    def request(
        self, side: str, server: str, method: str, path: str
    ) -> AbstractContextManager[object]:
        """The span of a request that is part of a reconcile; nothing for others."""
        ...


class _Process:
    tracer: Tracer | None = None


def set_tracer(tracer: Tracer | None) -> None:
    """Has spans made by this one from now on."""
    _Process.tracer = tracer


def get_tracer() -> Tracer | None:
    """The one that is in use."""
    return _Process.tracer


def trace_reconcile(
    reconcile: Callable[[K], Awaitable[None]], controller: str, kind: str
) -> Callable[[K], Awaitable[None]]:
    """``reconcile`` with a span around each call; itself where nobody wants spans."""
    spans = get_tracer()
    if spans is None:
        return reconcile

    async def with_span(key: K) -> None:
        with spans.reconcile(controller, key, kind):
            await reconcile(key)

    return with_span
