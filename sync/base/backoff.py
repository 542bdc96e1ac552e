"""Exponential backoff with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Waits in seconds. The step doubles from ``first`` to ``cap``; each wait is random between
    half a step and a step, so that many watches that break at once do not reconnect at once."""

    def __init__(self, *, first: float, cap: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._cap = cap
        self._step = first
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret

    def next(self) -> float:
        """Seconds to wait now; the next wait is up to twice as long."""
        step, self._step = self._step, min(self._step * 2, self._cap)
        return step * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Starts again from ``first``."""
        self._step = self._first
