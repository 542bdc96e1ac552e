"""Spans of reconciles and of the requests that these send; off by default.

`set_tracer` sets the tracer of the process before anything runs; without one, tracing costs
nothing. Attributes of spans are names only: no body, query or header.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Tracer(Protocol):
    """Makes spans. An exception of a block is recorded and propagates."""

    def reconcile(self, controller: str, key: object, kind: str) -> AbstractContextManager[object]:
        """The span of a reconcile."""

    def request(
        self, side: str, server: str, method: str, path: str
    ) -> AbstractContextManager[object]:
        """The span of a request within a reconcile; no span for other requests."""


class _Process:
    tracer: Tracer | None = None


def set_tracer(tracer: Tracer | None) -> None:
    _Process.tracer = tracer


def get_tracer() -> Tracer | None:
    return _Process.tracer


def trace_reconcile(
    reconcile: Callable[[K], Awaitable[None]], controller: str, kind: str
) -> Callable[[K], Awaitable[None]]:
    """Wraps each call of ``reconcile`` in a span, if tracing is on."""
    tracer = get_tracer()
    if tracer is None:
        return reconcile

    async def with_span(key: K) -> None:
        with tracer.reconcile(controller, key, kind):
            await reconcile(key)

    return with_span
