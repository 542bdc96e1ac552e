"""A join whose options have been read: in a process image of its own.

Reading them takes typer, rich and pydantic: 14 MB resident, which a bridge would keep for as long
as it runs. So `begin` replaces the program by itself, started with the same words (`os.execve`: the
process, its id and its terminal stay), and leaves it what was asked for in a file without a name.
There `taken` finds that, and `serve` runs the join. Where the program cannot be started again, it
is run as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.base.settings import JoinSettings, LogFormat, Part

#: Holds the number of the open file, for the moment between the two.
_VARIABLE = "CLUSTER_BRIDGE_ASKED"


@dataclass(frozen=True, slots=True)
class Shown:
    """How a bridge shows what it does."""

    verbose: bool = False
    log_format: LogFormat = "console"
    traces: str = ""
    """Where traces go; nowhere unless given."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say."""

    settings: JoinSettings | tuple[Part, ...]
    """One join, or several."""
    shown: Shown = field(default_factory=Shown)


def begin(asked: Asked) -> None:
    """Runs the join, without what read the options where that can be done."""
    # Of a disk that is full, too.
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        pickle.dump(asked, file)
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(  # noqa: S606  # no shell is meant
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, _VARIABLE: str(file.fileno())},
        )
    serve(asked)


def taken() -> Asked | None:
    """What `begin` left; None where the options have not been read yet."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    with open(int(number), "rb") as file:  # noqa: PTH123  # it has no name
        asked: Asked = pickle.load(file)  # noqa: S301  # this process wrote it
    return asked


def serve(asked: Asked) -> None:
    """Joins, and serves until it is stopped."""
    from bridge.base import memory

    memory.begin()
    from bridge.cli.runner import STOP_SECONDS, run, step
    from bridge.observability import traces

    show(asked.shown, nodes=isinstance(asked.settings, tuple))
    command = _command(asked)
    with traces.export_traces(asked.shown.traces):
        memory.settle()
        run(command, end_by=STOP_SECONDS)
    step("stopped; workloads in the remote go on")


def _command(asked: Asked) -> Callable[[asyncio.Event], Awaitable[None]]:
    from bridge.app import join, supervisor
    from bridge.cli.runner import step
    from sync.runtime.log_fields import NODE

    def named(text: str) -> None:
        step(text if asked.shown.log_format == "json" else f"{NODE.get()}: {text}")

    settings = asked.settings
    if isinstance(settings, tuple):
        return lambda stop: supervisor.run_joins(settings, report=named, stop=stop)
    return lambda stop: join.join(settings, report=step, stop=stop)


def show(shown: Shown, *, nodes: bool = False) -> None:
    """Sets up where lines go. ``nodes``: they are of several virtual nodes."""
    from bridge.cli.runner import speak_by
    from bridge.observability.json_logging import STEPS
    from bridge.observability.logging import configure_logging

    configure_logging(verbose=shown.verbose, log_format=shown.log_format, nodes=nodes)
    if shown.log_format == "json":
        speak_by(logging.getLogger(STEPS).log)
