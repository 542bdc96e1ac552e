"""Starts a join whose options are parsed, in a process image without the option parser.

`begin` restarts the process (`bridge.base.memory.restart_with`); there `taken` returns the options,
and `serve` runs the join. Where the process cannot be restarted, the join runs in this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.base import memory
from bridge.base.settings import JoinSettings, LogFormat, Part


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
    """Runs the join, if possible in a process image without the option parser."""
    memory.restart_with(asked)
    serve(asked)


def taken() -> Asked | None:
    """The options that `begin` passed on; None where the options are not parsed yet."""
    asked: Asked | None = memory.restart_argument()
    return asked


def serve(asked: Asked) -> None:
    """Joins, and serves until it is stopped."""
    memory.reduce_collections()
    from bridge.cli.runner import STOP_SECONDS, run, step
    from bridge.observability import traces

    show(asked.shown, nodes=isinstance(asked.settings, tuple))
    command = _command(asked)
    with traces.export_traces(asked.shown.traces):
        memory.freeze_imports()
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
