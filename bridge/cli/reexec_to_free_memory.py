"""Runs a join whose options are parsed, in a process image without the option parser.

`start` restarts the process (`bridge.base.memory_savings.restart_with`); there `restarted_request`
returns the options, and `serve` runs the join. If the process cannot be restarted, the join runs in
this one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bridge.base import memory_savings
from bridge.base.consent import Consent
from bridge.base.join_settings import JoinSettings, LogFormat, Part
from bridge.fleet.config_file_source import ConfigFileSource, FollowedFile
from sync.kube.kubeconfig_ref import KubeconfigRef

if TYPE_CHECKING:
    from bridge.fleet.access_providers import Plugin
    from bridge.fleet.object_source import ObjectSource


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of a bridge's logs and traces."""

    verbose: bool = False
    log_format: LogFormat = "console"
    traces: str = ""
    """URL of the OpenTelemetry collector; "" exports no traces."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How to join the clusters of ClusterProfiles."""

    plugins: tuple[Plugin, ...] = ()
    """The access providers of the operator."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of every join, by the property of a Remote's ``spec.options``."""


@dataclass(frozen=True, slots=True)
class ObjectsRef:
    """The Remotes of a namespace of home, or its ClusterProfiles."""

    home: KubeconfigRef
    namespace: str
    profiles: ProfileSettings | None = None
    """None for Remotes."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The joins to run, and their logs."""

    settings: JoinSettings | tuple[Part, ...]
    """The one join of `bridge join`, or those of `bridge run`."""
    logs: LogSettings = field(default_factory=LogSettings)
    assume_yes: bool = False
    """Whether ``--yes`` gives the user's consent without a question."""
    file: FollowedFile | None = None
    """The file of `bridge run --config`, which is followed."""
    objects: ObjectsRef | None = None
    """The objects of `bridge run --remotes` or `--cluster-profiles`."""
    shares: bool = False
    """Whether replicas of `bridge run` share the remotes."""
    health_port: int | None = None
    """The port of the probes of `bridge run`."""
    token_secret: str | None = None
    """`bridge.base.join_settings.JoinSettings.token_secret` of the joins of `bridge run`."""


def start(request: ServeRequest) -> None:
    """Runs the join, if possible in a process image without the option parser."""
    memory_savings.restart_with(request)
    serve(request)


def restarted_request() -> ServeRequest | None:
    """The request that `start` passed on; None if the options are not parsed yet."""
    request: ServeRequest | None = memory_savings.restart_argument()
    return request


def serve(request: ServeRequest) -> None:
    """Joins, and serves the virtual nodes until a signal stops the process."""
    memory_savings.reduce_collections()
    memory_savings.import_aiohttp()
    from bridge.cli.run_until_signal import STOP_SECONDS, report_line, run
    from bridge.observability import trace_exporter

    configure_reports(request.logs, nodes=isinstance(request.settings, tuple))
    command, reload = _command(request)
    with trace_exporter.export_traces(request.logs.traces):
        memory_savings.freeze_imports()
        run(command, exit_within=STOP_SECONDS, reload=reload)
    report_line("stopped; workloads in the remote keep running")


def _command(
    request: ServeRequest,
) -> tuple[Callable[[asyncio.Event], Awaitable[None]], Callable[[], None] | None]:
    """The command, and what has it read its configuration again."""
    from bridge.app import join_lifecycle, run_several_joins
    from bridge.cli import fleet_actions
    from bridge.cli.run_until_signal import report_line
    from sync.runtime.log_fields import NODE

    def report_with_node(text: str) -> None:
        is_console, node = request.logs.log_format == "console", NODE.get()
        report_line(type(text)(f"{node}: {text}") if is_console and node else text)

    settings = request.settings
    if isinstance(settings, JoinSettings):
        return lambda stop: join_lifecycle.join(
            settings, notify=report_line, stop=stop, consent=_consent(request)
        ), None
    source: ConfigFileSource | ObjectSource = (
        fleet_actions.file_source(request.file, settings, request.logs)
        if request.objects is None
        else fleet_actions.object_source(request.objects)
    )
    return lambda stop: run_several_joins.run_joins(
        source,
        leave=fleet_actions.leave_action(report_with_node),
        notify=report_with_node,
        stop=stop,
        consent=_consent(request),
        shares=request.shares,
        health_port=request.health_port,
        token_secret=request.token_secret,
    ), source.read_now


def _consent(request: ServeRequest) -> Consent:
    from bridge.cli.terminal_question import terminal_consent

    is_console = request.logs.log_format == "console"
    return terminal_consent(assume_yes=request.assume_yes, asks=is_console)


def configure_reports(logs: LogSettings, *, nodes: bool = False) -> None:
    """Configures logs and progress. ``nodes``: lines name their virtual node, one of several."""
    from bridge.cli.run_until_signal import redirect_reports
    from bridge.observability.log_output import STEPS, configure_logging

    configure_logging(verbose=logs.verbose, log_format=logs.log_format, nodes=nodes)
    if logs.log_format == "json":
        redirect_reports(logging.getLogger(STEPS).log)
