"""Asks the user of a running bridge yes or no on the terminal, while the bridge goes on.

The answer is one line of standard input; the default is no. Cancelling `ask` withdraws the
question. A bridge in the background of its terminal gets no answer: to read there would stop it
(SIGTTIN).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from bridge.base.consent import Consent
from bridge.base.printable_text import escape_line

#: Bytes of one answer; a terminal passes on one line at a time.
_LINE = 4096


async def ask(question: str) -> bool:
    """Asks, and waits for the answer; no in the background."""
    if not _in_foreground():
        return False
    _print(f"? {escape_line(question)} [y/N]: ")
    try:
        answer = await _read_line()
    except asyncio.CancelledError:
        _print("(no longer needed)\n")
        raise
    return answer.strip().lower() in ("y", "yes")


def terminal_consent(*, assume_yes: bool, asks: bool = True) -> Consent:
    """The consent of the person at the terminal: ``--yes``, or the answer to a question if there
    is a person to ask and the command ``asks``."""
    return Consent(assume_yes, ask if asks and is_interactive() else None)


def is_interactive() -> bool:
    """Whether a person reads standard error and can answer on standard input."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed by the parent process
        return False


async def _read_line() -> str:
    """The next line of standard input; "" at its end, and in the background."""
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def readable() -> None:
        if answer.done():
            return
        line = b""
        with contextlib.suppress(OSError):  # the terminal was closed
            line = os.read(sys.stdin.fileno(), _LINE) if _in_foreground() else b""
        answer.set_result(line.decode(errors="replace"))

    loop.add_reader(sys.stdin.fileno(), readable)
    try:
        result: str = await answer
        return result
    finally:
        loop.remove_reader(sys.stdin.fileno())


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # not the terminal of this session
        return False


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)
