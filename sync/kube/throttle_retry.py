"""Retries requests that an API server throttles: 429, or 503 with ``Retry-After``.

The server rejected such a request before it did anything, so every method may be retried. Each
retry waits for the time in ``Retry-After``, at least `MIN_DELAY` and at most `MAX_DELAY`; without
the header the wait doubles from one second. Callers retry other failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import tenacity

from sync.kube.api_errors import Throttled

T = TypeVar("T")

#: Attempts in all, the first one included (client-go: 10 retries); then `Throttled` is raised.
MAX_ATTEMPTS = 10
#: Bounds of a wait, in seconds.
MIN_DELAY, MAX_DELAY = 0.5, 30.0
#: Seconds of a ``Retry-After`` that is passed on to a caller; a number of 400 digits is infinite.
MAX_RETRY_AFTER = 86_400.0


async def retry_throttled(attempt: Callable[[], Awaitable[T]], first: Throttled) -> T:
    """Repeats a request whose first attempt failed with ``first``. Raises Throttled after
    `MAX_ATTEMPTS`, and any other exception of ``attempt`` at once."""

    async def send() -> T:  # tenacity awaits coroutine functions alone
        return await attempt()

    await sleep(delay(first, 1))
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Throttled),
        wait=_delay_after_retry,
        stop=tenacity.stop_after_attempt(MAX_ATTEMPTS - 1),
        sleep=lambda seconds: sleep(float(seconds)),
        reraise=True,
    )
    return await retrying(send)


def _delay_after_retry(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, Throttled)  # noqa: S101  # nothing else is retried
    return delay(error, state.attempt_number + 1)  # the first attempt was the caller's


async def sleep(seconds: float) -> None:
    """Waits before a retry; tests replace it."""
    await asyncio.sleep(seconds)


def delay(error: Throttled, number: int) -> float:
    """Seconds to wait after attempt ``number``, counted from 1."""
    wanted = 0.5 * 2**number if error.retry_after is None else error.retry_after
    return min(max(wanted, MIN_DELAY), MAX_DELAY)


def is_throttled(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a response with this status code asks to retry later."""
    return status == 429 or (status == 503 and "Retry-After" in headers)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds in ``Retry-After``, a day at most; None without the header, and for a date."""
    value = headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isdecimal() else None
