"""Joins a remote as a virtual node: assembles all parts of one join and runs them in order.

1. Checks (`bridge.checks.required_at_join`); nothing has been created when one fails. With a health
   port, the bridge answers probes from here on, and waits for clusters that do not answer.
2. The kubelet API listens, so that the Node never names a port that is closed.
3. The replica stands by, and serves (`bridge.app.replica_handover`) until ``stop`` is set (SIGINT,
   SIGTERM), or until a part fails, which ends the join. Workloads in the remote continue.

``stop`` ends the join at every step, within the bounds of `bridge.app.replica_handover` and
`bridge.app.kubelet_api_setup`. `bridge.cli.run_until_signal` bounds what cannot be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.app import replica_handover
from bridge.app.kubelet_api_setup import NodeKubelet, certificate_source
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.app.replica_handover import ReplicaTerm
from bridge.app.term_factory import TermFactory
from bridge.base.consent import NO_CONSENT, Consent
from bridge.base.join_settings import JoinSettings
from bridge.base.progress_lines import Waiting
from bridge.certificates.automatic_certificate import CertificateDemand
from bridge.checks.required_at_join import checked_clusters
from bridge.clusters.token_renewal import (
    Keep,
    keep_renewed_token,
    renewing_token,
)
from bridge.election.election_lease import Candidate
from bridge.election.elector import LeaderElector
from bridge.node import join_record
from bridge.observability.recent_errors import RecentErrors
from bridge.relay.relay_counters import RelayMetrics
from sync.base.background_task import background_task
from sync.base.safe_callbacks import expire_now
from sync.kube import in_cluster
from sync.kube.bearer_token import RenewedToken
from sync.kube.client import KubeClient
from sync.runtime.log_fields import NODE


async def join(
    settings: JoinSettings,
    *,
    notify: Callable[[str], None],
    stop: asyncio.Event,
    consent: Consent = NO_CONSENT,
) -> None:
    """Serves the virtual node, or stands by for it, until ``stop``.

    ``notify`` gets one line of progress at a time. ``consent`` is that to approvals at home. Raises
    BridgeError (PreflightError, NodeTaken, NodeLeft, ClaimRejected, ListenError, CertificateError)
    and KubeError.
    """
    recent_errors = RecentErrors()
    async with _cancel_when_set(stop):
        with recent_errors.collect():
            await _serve_node(settings, notify, consent, recent_errors)


@asynccontextmanager
async def _cancel_when_set(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancels its block when ``stop`` is set, and then ends without an error."""

    async def end(limit: asyncio.Timeout) -> None:
        await stop.wait()
        expire_now(limit)

    limit = asyncio.timeout(None)
    try:
        async with limit, background_task(end(limit), name="stop"):
            yield
    except TimeoutError:
        if not limit.expired():
            raise


async def _serve_node(
    settings: JoinSettings,
    notify: Callable[[str], None],
    consent: Consent,
    recent_errors: RecentErrors,
) -> None:
    probes = ProbeHandler()

    def report(line: str) -> None:
        if isinstance(line, Waiting):
            probes.set_waiting(line)
        notify(line)

    async with (
        serve_probes(probes, settings.address, settings.health_port),
        checked_clusters(
            settings,
            consent=consent,
            notify=report,
            on_wait=None if settings.health_port is None else probes.set_waiting,
        ) as clusters,
        renewing_token(
            clusters.remote,
            keep=_keep_token(clusters.home.account, settings),
            notify=notify,
        ),
    ):
        home, remote, facts = clusters.home, clusters.remote, clusters.facts
        account = home.account
        NODE.set(facts.identity.node)
        candidate = Candidate.local(facts.address)
        election = LeaderElector(account, facts.identity.node, candidate=candidate, notify=notify)
        factory = TermFactory(
            settings, facts, home, remote, election, candidate, RelayMetrics(), notify
        )
        engine, claim, record = factory.new_engine()
        demand = CertificateDemand()
        source = certificate_source(
            settings,
            facts,
            home,
            demand=demand,
            consent=consent,
            on_signed=factory.record_certificate_of_home,
            notify=notify,
        )
        kubelet = NodeKubelet(
            settings,
            facts,
            engine,
            source=source,
            certificate=await source.first(),
            demand=demand,
            home=home.home,
            account=account,
            remote=remote,
            election=election,
            recent_errors=recent_errors,
            relay_metrics=factory.relay_metrics,
            notify=notify,
        )
        probes.caches_problem = kubelet.readiness.caches_problem

        def next_term() -> ReplicaTerm:
            engine, claim, _ = factory.new_engine()
            return factory.new_term(engine, claim, kubelet)

        await kubelet.start()
        try:
            first = factory.new_term(engine, claim, kubelet)
            kubelet.use_engine(engine, first.node.node)
            node = await first.node.find_node()
            record.fresh = node is None
            if node is not None and join_record.certificate_source(node) == "csr":
                demand.report("an earlier bridge of this node needed a certificate of home")
            await election.observe(node_exists=not record.fresh)
            async with asyncio.TaskGroup() as group:
                serving = replica_handover.run_replica(
                    first, next_term, kubelet=kubelet, election=election, notify=notify
                )
                group.create_task(serving, name="replica")
                group.create_task(kubelet.run(), name="kubelet-api")
                group.create_task(home.keep_renewed(), name="node-certificate")
        finally:
            await kubelet.stop()


def _keep_token(home: KubeClient, settings: JoinSettings) -> Keep:
    """Keeps renewed tokens of the remote where the next start of this bridge finds them."""

    async def keep(renewed: RenewedToken) -> None:
        name = settings.state_secret
        secret = (in_cluster.namespace(), name) if name and home.credentials.in_cluster else None
        await keep_renewed_token(renewed, home, secret)

    return keep
