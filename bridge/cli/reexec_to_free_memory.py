"""Runs a join whose options are parsed, in a process image without the option parser.

`start` restarts the process (`bridge.base.memory_savings.restart_with`); there `restarted_request`
returns the options, and `serve` runs the join. If the process cannot be restarted, the join runs in
this one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from bridge.base import memory_savings
from bridge.base.join_settings import JoinSettings, LogFormat


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of a bridge's logs."""

    verbose: bool = False
    log_format: LogFormat = "console"


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The join to run, and its logs."""

    settings: JoinSettings
    logs: LogSettings = field(default_factory=LogSettings)
    assume_yes: bool = False
    """Whether ``--yes`` gives the user's consent without a question."""


def start(request: ServeRequest) -> None:
    """Runs the join, if possible in a process image without the option parser."""
    memory_savings.restart_with(request)
    serve(request)


def restarted_request() -> ServeRequest | None:
    """The request that `start` passed on; None if the options are not parsed yet."""
    request: ServeRequest | None = memory_savings.restart_argument()
    return request


def serve(request: ServeRequest) -> None:
    """Joins, and serves the virtual node until a signal stops the process."""
    memory_savings.reduce_collections()
    memory_savings.import_aiohttp()
    from bridge.app import join_lifecycle
    from bridge.cli.run_until_signal import STOP_SECONDS, report_line, run
    from bridge.cli.terminal_question import terminal_consent
    from bridge.observability import trace_exporter

    configure_reports(request.logs)
    is_console = request.logs.log_format == "console"
    consent = terminal_consent(assume_yes=request.assume_yes, asks=is_console)
    with trace_exporter.export_traces():
        memory_savings.freeze_imports()
        run(
            lambda stop: join_lifecycle.join(
                request.settings, notify=report_line, stop=stop, consent=consent
            ),
            exit_within=STOP_SECONDS,
        )
    report_line("stopped; workloads in the remote keep running")


def configure_reports(logs: LogSettings) -> None:
    """Configures logs and progress."""
    from bridge.cli.run_until_signal import redirect_reports
    from bridge.observability.log_output import STEPS, configure_logging

    configure_logging(verbose=logs.verbose, log_format=logs.log_format)
    if logs.log_format == "json":
        redirect_reports(logging.getLogger(STEPS).log)
