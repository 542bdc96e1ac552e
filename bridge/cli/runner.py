"""Running a command's coroutine: the loop, signals, and errors as one sentence.

A hangup (SIGHUP) stops a command like SIGTERM, unless it was ignored when the command started.

The process ends within `STOP_SECONDS` of the first of these signals where `run` is told so,
whatever hangs: a command bounds its own end, and what no coroutine can end (a name server that does
not answer, say, for which a thread waits) is cut by `_end_by`.

A running bridge has this imported: what reads options must not come with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bridge.base.printable_text import escape_json, escape_line

T = TypeVar("T")
#: Says a line for a person in another way: (level, text).
Speaker = Callable[[int, str], None]

#: Seconds from the first signal to the end of the process: more than `bridge.app.join` needs at
#: most, and less than the 10 s after which people, and some supervisors, kill.
STOP_SECONDS = 9.0

#: Of ECMA-48, as every terminal has them.
_RED, _GREEN = 31, 32


class _Voice:
    """How lines for a person are said."""

    by: Speaker | None = None
    errors_as_json = False


def report_errors_as_json(*, enabled: bool) -> None:
    """Has `fail` also print the error on standard output, as JSON, for ``-o json``."""
    _Voice.errors_as_json = enabled


def speak_by(speaker: Speaker | None) -> None:
    """Has steps and errors said so from now on; None is as they are on a terminal."""
    _Voice.by = speaker


def step(text: str) -> None:
    """One line of progress."""
    if _Voice.by is not None:
        _Voice.by(logging.INFO, text)
    else:
        _say(f"{_coloured('✓', _GREEN)} {escape_line(text)}")


def awaited(text: str) -> None:
    """One line of progress: what is not done yet."""
    if _Voice.by is not None:
        _Voice.by(logging.INFO, text)
    else:
        _say(f"… {escape_line(text)}")


def fail(message: str, *, code: int = 1) -> SystemExit:
    """Says in one line what went wrong; raise what this returns."""
    line = escape_line(" ".join(part.strip() for part in message.splitlines()))
    if _Voice.by is not None:
        _Voice.by(logging.ERROR, line)
    else:
        _say(f"{_coloured('error', _RED)}: {line}")
    if _Voice.errors_as_json:
        error = {"error": {"message": line, "exitCode": code}}
        print(escape_json(json.dumps(error, ensure_ascii=False)))
    return SystemExit(code)


def _say(line: str) -> None:
    """On standard error, where that can be: a full disk there is no reason to end a bridge."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _coloured(text: str, colour: int) -> str:
    """For a terminal, unless its person wants none (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    return text if plain else f"\033[{colour}m{text}\033[0m"


def ask(question: str) -> bool:
    """Asks a person; no is the default, and Ctrl-C ends the command.

    For that the loop, which stands still meanwhile, has to give the signal up for so long.
    """
    import typer

    theirs = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, theirs)


def agreed(lines: list[str], *, unasked: bool) -> bool:
    """Shows what is to be removed and asks, unless that is not wanted or nothing is there."""
    if not lines:
        print("nothing is left to remove", file=sys.stderr)
        return True
    print("To be removed:", *map(escape_line, lines), sep="\n  ", file=sys.stderr, flush=True)
    return unasked or ask("Remove all this?")


def run(
    command: Callable[[asyncio.Event], Awaitable[T]],
    *,
    stops: bool = True,
    end_by: float | None = None,
) -> T:
    """Runs ``command(stop)``; SIGINT, SIGTERM and SIGHUP set ``stop``, a second SIGINT or SIGTERM
    ends at once.

    A command that does not look at ``stop`` is run with ``stops=False``: the first one ends it.
    ``end_by`` is how many seconds after the first one the process has ended, whatever hangs.
    Errors that are meant for people become one line and exit code 1; anything else is a defect
    and shows its traceback.
    """
    from bridge.base.errors import find_user_error, user_error_types

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_with_signals(command, stops=stops, end_by=end_by))
    except user_error_types() as error:
        raise fail(str(error)) from None
    except asyncio.CancelledError:
        raise fail("interrupted before it was done") from None
    except BaseExceptionGroup as group:
        if (reason := find_user_error(group)) is None:
            raise
        raise fail(str(reason)) from None


async def _with_signals(
    command: Callable[[asyncio.Event], Awaitable[T]], *, stops: bool, end_by: float | None
) -> T:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()

    def on_signal() -> None:
        if end_by is not None and not stop.is_set():
            _end_by(end_by)
        if (stop.is_set() or not stops) and task is not None:
            task.cancel()
        stop.set()

    def on_hangup() -> None:
        # A shell that ends and its terminal each send one: the second is no impatience.
        if not stop.is_set():
            on_signal()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as by nohup
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    return await command(stop)


def _end_by(seconds: float) -> None:
    """Ends the process then, if it has not ended itself.

    A thread of Python's does so with a sentence. It runs while other threads are waited for, and no
    more once the interpreter is gone; libraries can wait for threads even after that, where the
    system's timer ends the process a moment later.
    """

    def end() -> None:
        fail(f"something hangs {seconds:.0f} s after the stop; ended without it")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, else the standard one."""
    try:
        importlib.import_module("uvloop")
        from bridge.base.event_loop import CancelSafeLoop
    except ImportError:
        return None
    return CancelSafeLoop
