"""Running a command's coroutine: the loop, signals, and errors as one sentence."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

T = TypeVar("T")


def step(text: str) -> None:
    """One line of progress."""
    typer.echo(f"{typer.style('✓', fg='green')} {text}", err=True)


def fail(message: str, *, code: int = 1) -> typer.Exit:
    """Says in one line what went wrong; raise what this returns."""
    line = " ".join(part.strip() for part in message.splitlines())
    typer.echo(f"{typer.style('error', fg='red')}: {line}", err=True)
    return typer.Exit(code)


def ask(question: str) -> bool:
    """Asks a person; no is the default, and Ctrl-C ends the command.

    For that the loop, which stands still meanwhile, has to give the signal up for so long.
    """
    theirs = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, theirs)


def run(command: Callable[[asyncio.Event], Awaitable[T]], *, stops: bool = True) -> T:
    """Runs ``command(stop)``; SIGINT and SIGTERM set ``stop``, a second one ends at once.

    A command that does not look at ``stop`` is run with ``stops=False``: the first one ends it.
    Errors that are meant for people become one line and exit code 1; anything else is a defect
    and shows its traceback.
    """
    from bridge.kubelet.certificate import CertificateError
    from bridge.kubelet.server import ListenError
    from bridge.node.controller import NodeTaken
    from bridge.preflight.checks import PreflightError
    from sync.engine import MappingChanged
    from sync.kube.errors import KubeError

    for_people = (
        CertificateError,
        ListenError,
        MappingChanged,
        NodeTaken,
        PreflightError,
        KubeError,
    )
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_with_signals(command, stops=stops))
    except for_people as error:
        raise fail(str(error)) from None
    except asyncio.CancelledError:
        raise fail("interrupted before it was done") from None
    except BaseExceptionGroup as group:
        expected, rest = group.split(for_people)
        if expected is None or rest is not None:
            raise
        raise fail(str(_first(expected))) from None


async def _with_signals(command: Callable[[asyncio.Event], Awaitable[T]], *, stops: bool) -> T:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()

    def on_signal() -> None:
        if (stop.is_set() or not stops) and task is not None:
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await command(stop)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, else the standard one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
