"""The consent of the person who runs a join to what only an administrator may do.

Such an action is offered once, by a question on the terminal; ``--yes`` is a yes to all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

#: Asks a person; True is yes. Cancelling it withdraws the question.
Ask = Callable[[str], Awaitable[bool]]


@dataclass(slots=True)
class Consent:
    """The consent to the actions of one join; by default, there is none."""

    assume_yes: bool = False
    """``--yes``."""
    ask: Ask | None = None
    """None if there is no terminal."""
    _is_prompted: bool = field(default=False, init=False)
    _answer: bool | None = field(default=None, init=False)

    @property
    def is_possible(self) -> bool:
        return self.assume_yes or self.ask is not None

    @property
    def is_given(self) -> bool:
        return self.assume_yes or bool(self._answer)

    @property
    def is_refused(self) -> bool:
        """Whether the answer was no."""
        return self._answer is False

    async def obtain(self, question: str) -> bool:
        """Asks, unless that has been done already; a withdrawn question counts as no."""
        if not self.assume_yes and not self._is_prompted and self.ask is not None:
            self._is_prompted = True
            self._answer = await self.ask(question)
        return self.is_given


NO_CONSENT = Consent()
