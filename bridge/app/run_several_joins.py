"""Runs several joins in one process (`bridge run`), as a source desires them.

`run_joins` gives `bridge.fleet.supervisor` its two actions: to join a remote, which is
`bridge.app.join_lifecycle.serve_node`, and to leave one, which the caller passes, because
`bridge.leave` builds on this package. Several replicas divide the remotes among them
(`bridge.sharding`). All joins share the event loop and the memory of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bridge.app import join_lifecycle
from bridge.app.fleet_readiness import FleetReadiness
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.base.consent import NO_CONSENT, Consent
from bridge.base.join_settings import Part
from bridge.fleet.desired_state import FleetSource
from bridge.fleet.fleet_report import FleetMember
from bridge.fleet.supervisor import Leave, Supervisor
from bridge.sharding.sharded_source import ShardedSource
from sync.base.background_task import background_task


async def run_joins(
    source: FleetSource,
    *,
    leave: Leave,
    notify: Callable[[str], None],
    stop: asyncio.Event,
    consent: Consent = NO_CONSENT,
    shares: bool = False,
    health_port: int | None = None,
    token_secret: str | None = None,
) -> None:
    """Runs the joins that ``source`` desires until ``stop``. Raises NodeLeft if `bridge leave` has
    removed the nodes of all, and ListenError.

    ``shares``: the replicas with the same source share its remotes. ``health_port`` is the port of
    the process's probes; None is no port. ``token_secret``: `JoinSettings.token_secret`.
    """

    async def serve(part: Part, member: FleetMember) -> None:
        settings = replace(part.settings, token_secret=token_secret)
        await join_lifecycle.serve_node(settings, notify, consent, member)

    supervisor = Supervisor(serve, leave, notify=notify)
    probes = ProbeHandler()
    probes.caches_problem = FleetReadiness(supervisor.report).problem
    async with (
        join_lifecycle.cancel_when_set(stop),
        join_lifecycle.releasing_memory(),
        serve_probes(probes, None, health_port),
    ):
        if not shares:
            await supervisor.run(source)
            return
        sharded = ShardedSource(source, supervisor.report, notify=notify, stop=stop)
        async with background_task(sharded.follow_replicas(), name="shares"):
            await supervisor.run(sharded)
