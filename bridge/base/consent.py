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
    _answer: bool | None = field(default=None, init=False)

    @property
    def is_possible(self) -> bool:
        return self.assume_yes or self.ask is not None

    @property
    def is_given(self) -> bool:
        return self.assume_yes or bool(self._answer)

    def for_join(self) -> Consent:
        """The consent to the actions of another join."""
        return Consent(self.assume_yes, self.ask)

    async def obtain(self, question: str) -> bool:
        """Asks, unless there is an answer already; a withdrawn question counts as no."""
        if not self.assume_yes and self._answer is None and self.ask is not None:
            self._answer = False
            self._answer = await self.ask(question)
        return self.is_given


NO_CONSENT = Consent()
