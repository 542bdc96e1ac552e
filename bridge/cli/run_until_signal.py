"""Runs a command's coroutine: the event loop, signals, and errors as one sentence.

The first SIGINT, SIGTERM or SIGHUP stops a command; SIGHUP is ignored if it was ignored when the
command started.

With ``exit_within`` the process ends at most that long after the first signal, whatever hangs: a
command bounds its own shutdown, and `_exit_after` ends what no coroutine can end, such as a thread
that waits for a name server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bridge.base.join_settings import LogFormat
from bridge.base.printable_text import escape_json, escape_line
from bridge.base.progress_lines import Caveat, Waiting

T = TypeVar("T")
#: Receives a line for people, as (logging level, text).
ReportSink = Callable[[int, str], None]

#: Seconds from the first signal to the end of the process: more than `bridge.app.join_lifecycle`
#: needs at most, and less than the 10 s after which people, and some supervisors, kill.
STOP_SECONDS = 9.0

#: Of ECMA-48, as every terminal has them.
_RED, _GREEN, _YELLOW = 31, 32, 33


class _Reports:
    """Where lines for people go."""

    sink: ReportSink | None = None
    """None: standard error."""
    errors_as_json = False


def report_errors_as_json(*, enabled: bool) -> None:
    """Has `fail` also print the error on standard output, as JSON, for ``-o json``."""
    _Reports.errors_as_json = enabled


def configure_reports(*, verbose: bool = False, log_format: LogFormat = "console") -> None:
    """Configures logs and progress of a command that serves."""
    from bridge.observability.log_output import STEPS, configure_logging

    configure_logging(verbose=verbose, log_format=log_format)
    if log_format == "json":
        redirect_reports(logging.getLogger(STEPS).log)


def redirect_reports(sink: ReportSink | None) -> None:
    """Sends progress and errors to ``sink``; None restores standard error."""
    _Reports.sink = sink


def report_line(text: str) -> None:
    """Reports a finished step, or a line of another kind (`bridge.base.progress_lines`)."""
    level, mark = logging.INFO, _coloured("✓", _GREEN)
    if isinstance(text, Waiting):
        mark = "…"
    elif isinstance(text, Caveat):
        level, mark = logging.WARNING, _coloured("!", _YELLOW)
    if _Reports.sink is not None:
        _Reports.sink(level, text)
    else:
        _print(f"{mark} {escape_line(text)}")


def fail(message: str, *, code: int = 1) -> SystemExit:
    """Reports an error in one line on standard error, and with ``-o json`` also as the object
    ``{"error": {"message": …, "exitCode": …}}`` on standard output. Raise the result."""
    line = escape_line(" ".join(part.strip() for part in message.splitlines()))
    if _Reports.sink is not None:
        _Reports.sink(logging.ERROR, line)
    else:
        _print(f"{_coloured('error', _RED)}: {line}")
    if _Reports.errors_as_json:
        error = {"error": {"message": line, "exitCode": code}}
        print(escape_json(json.dumps(error, ensure_ascii=False)))
    return SystemExit(code)


def _print(line: str) -> None:
    """Prints to standard error; a failure to write there does not end a bridge."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _coloured(text: str, colour: int) -> str:
    """The text in colour on a terminal, unless NO_COLOR is set (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    return text if plain else f"\033[{colour}m{text}\033[0m"


def confirm(question: str) -> bool:
    """Asks for confirmation; the default is no, and Ctrl-C ends the command.

    The question blocks the event loop, so Python's own SIGINT handler replaces the loop's for that
    time.
    """
    import typer

    loop_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, loop_handler)


def confirm_removal(lines: list[str], *, assume_yes: bool) -> bool:
    """Prints what will be removed and asks for confirmation, unless ``assume_yes`` or nothing is
    to be removed."""
    if not lines:
        print("nothing is left to remove", file=sys.stderr)
        return True
    print("To be removed:", *map(escape_line, lines), sep="\n  ", file=sys.stderr, flush=True)
    return assume_yes or confirm("Remove all this?")


def run(
    command: Callable[[asyncio.Event], Awaitable[T]],
    *,
    stops: bool = True,
    exit_within: float | None = None,
    after_interruption: str = "",
) -> T:
    """Runs ``command(stop)`` and returns its result.

    SIGINT, SIGTERM and SIGHUP set ``stop``; a second SIGINT or SIGTERM cancels the command. With
    ``stops=False``, for a command that ignores ``stop``, the first signal cancels it. The process
    ends at most ``exit_within`` seconds after the first signal. Errors for people become one line
    and exit code 1, that of a cancelled command with what to do ``after_interruption``; any other
    exception is a defect and shows its traceback.
    """
    from bridge.base.command_error import find_user_error, user_error_types

    try:
        with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
            return runner.run(_with_signals(command, stops=stops, exit_within=exit_within))
    except user_error_types() as error:
        raise fail(str(error)) from None
    except asyncio.CancelledError:
        message = "interrupted before it was done"
        raise fail("; ".join(filter(None, (message, after_interruption)))) from None
    except BaseExceptionGroup as group:
        if (reason := find_user_error(group)) is None:
            raise
        raise fail(str(reason)) from None


async def _with_signals(
    command: Callable[[asyncio.Event], Awaitable[T]],
    *,
    stops: bool,
    exit_within: float | None,
) -> T:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()

    def on_signal() -> None:
        if exit_within is not None and not stop.is_set():
            _exit_after(exit_within)
        if (stop.is_set() or not stops) and task is not None:
            task.cancel()
        stop.set()

    def on_hangup() -> None:
        # A shell that ends and its terminal each send one: the second is not a request to hurry.
        if not stop.is_set():
            on_signal()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as by nohup
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    return await command(stop)


def _exit_after(seconds: float) -> None:
    """Ends the process after that time, unless it has ended.

    A Python thread does so with an error message, also while the interpreter waits for other
    threads. Libraries can wait for threads after the interpreter has ended: there the system timer
    ends the process half a second later.
    """

    def end() -> None:
        fail(f"shutdown did not finish within {seconds:.0f} s; ended the process")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)


def _event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
