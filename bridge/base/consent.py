"""The consent of the person who runs a join to what only an administrator may do.

Such an action is offered once, by a question on the terminal; ``--yes`` is a yes to all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

#: Asks a person; True is yes. Cancelling it withdraws the question.
Ask = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Consent:
    """How to get the consent; by default, there is none."""

    assume_yes: bool = False
    """``--yes``."""
    ask: Ask | None = None
    """None if there is no terminal."""

    @property
    def is_possible(self) -> bool:
        return self.assume_yes or self.ask is not None


NO_CONSENT = Consent()
