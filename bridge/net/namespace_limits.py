"""A limit on what is open at once, in all and for each namespace.

A namespace may have one more while it has fewer than are free (the dynamic threshold of shared
buffers in switches: A. K. Choudhury and E. L. Hahne, 1998, with a factor of 1). So of ``limit`` a
namespace that is alone has up to a half; the next one, beside it, half of the other half, and so
on: one namespace leaves a half to all others, and two that work together a quarter. Nothing is set
aside that nobody asks for beyond that, and no number has to be configured for each namespace.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

#: Why nothing more may be opened.
Reason = Literal["limit", "namespace-limit"]


class Shares:
    """Counts what is open, by namespace. Who is not refused calls `take`, and `give` at the end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """How many there may be, of all namespaces."""
        self.used = 0
        """How many there are."""
        self._of: Counter[str] = Counter()

    def refusal(self, namespace: str) -> Reason | None:
        """Why the namespace may not have one more; None where it may."""
        free = self.limit - self.used
        if free <= 0:
            return "limit"
        return "namespace-limit" if self._of[namespace] >= free else None

    def of(self, namespace: str) -> int:
        """How many the namespace has."""
        return self._of.get(namespace, 0)

    @property
    def most(self) -> int:
        """How many the namespace has that has the most."""
        return max(self._of.values(), default=0)

    def take(self, namespace: str) -> None:
        """One more is open."""
        self.used += 1
        self._of[namespace] += 1

    def give(self, namespace: str) -> None:
        """One is open no more."""
        self.used -= 1
        self._of[namespace] -= 1
        if not self._of[namespace]:
            del self._of[namespace]
