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
    """Says what went wrong; raise what this returns."""
    typer.echo(f"{typer.style('error', fg='red')}: {message}", err=True)
    return typer.Exit(code)


def run(command: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    """Runs ``command(stop)``; SIGINT and SIGTERM set ``stop``, a second one ends at once.

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
            return runner.run(_with_signals(command))
    except for_people as error:
        raise fail(str(error)) from None
    except BaseExceptionGroup as group:
        expected, rest = group.split(for_people)
        if expected is None or rest is not None:
            raise
        raise fail(str(_first(expected))) from None


async def _with_signals(command: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
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
