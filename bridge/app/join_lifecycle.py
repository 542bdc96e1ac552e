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
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bridge.app import replica_handover
from bridge.app.kubelet_api_setup import NodeKubelet, cert_dir, certificate_source
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.app.replica_handover import ReplicaTerm, TermOutdated
from bridge.base import memory_savings
from bridge.base.join_settings import JoinSettings
from bridge.base.version import version
from bridge.checks.required_at_join import JoinFacts, checked_clusters
from bridge.election.election_lease import Candidate
from bridge.election.elector import LeaderElector
from bridge.election.remote_reachability import RemoteReachability
from bridge.node import join_record, node_object
from bridge.node.namespace_ownership_lease import NamespaceRecord
from bridge.node.node_controller import NodeController
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts
from bridge.observability.recent_errors import RecentErrors
from bridge.relay.relay_counters import RelayMetrics
from bridge.remote_claim.claim_keeper import RemoteClaim
from sync.base.safe_callbacks import expire_now
from sync.engine.controller_list import ControllerOptions
from sync.engine.engine import Engine, utc_now
from sync.kube import in_cluster
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import Fence
from sync.runtime.log_fields import NODE
from translators.translation_options import Policy


async def join(
    settings: JoinSettings, *, notify: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serves the virtual node, or stands by for it, until ``stop``.

    ``notify`` gets one line of progress at a time. Raises BridgeError (PreflightError, NodeTaken,
    NodeLeft, ClaimRejected, ListenError, CertificateError) and KubeError.
    """
    async with cancel_when_set(stop), releasing_memory():
        await serve_node(settings, notify)


@asynccontextmanager
async def releasing_memory() -> AsyncIterator[None]:
    """Returns unused memory to the system while the block runs (`bridge.base.memory_savings`)."""
    task = asyncio.create_task(memory_savings.release_memory(), name="memory")
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def cancel_when_set(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancels its block when ``stop`` is set, and then ends without an error."""

    async def end(limit: asyncio.Timeout) -> None:
        await stop.wait()
        expire_now(limit)

    limit = asyncio.timeout(None)
    try:
        async with limit:
            watching = asyncio.create_task(end(limit), name="stop")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise


async def serve_node(settings: JoinSettings, notify: Callable[[str], None]) -> NoReturn:
    """Runs `join` until cancelled."""
    recent_errors = RecentErrors()
    with recent_errors.collect():
        await _serve_node(settings, notify, recent_errors)
    raise AssertionError("a join ends with an error, or is cancelled")


async def _serve_node(
    settings: JoinSettings, notify: Callable[[str], None], recent_errors: RecentErrors
) -> None:
    probes = ProbeHandler()
    async with (
        serve_probes(probes, settings.address, settings.health_port),
        checked_clusters(
            settings,
            notify=notify,
            on_wait=None if settings.health_port is None else probes.set_waiting,
        ) as clusters,
    ):
        home, remote, facts = clusters.home, clusters.remote, clusters.facts
        NODE.set(facts.identity.node)
        candidate = Candidate.local(facts.address)
        election = LeaderElector(home, facts.identity.node, candidate=candidate, notify=notify)
        factory = _TermFactory(
            settings, facts, home, remote, election, candidate, RelayMetrics(), notify
        )
        engine, claim, record = factory.new_engine()
        source = certificate_source(settings, facts, home, notify)
        kubelet = NodeKubelet(
            settings,
            facts,
            engine,
            source=source,
            certificate=await source.first(),
            home=home,
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
            record.fresh = await first.node.is_name_free()
            await election.observe(node_exists=not record.fresh)
            async with asyncio.TaskGroup() as group:
                serving = replica_handover.run_replica(
                    first, next_term, kubelet=kubelet, election=election, notify=notify
                )
                group.create_task(serving, name="replica")
                group.create_task(kubelet.run(), name="kubelet-api")
        finally:
            await kubelet.stop()


@dataclass(slots=True)
class _TermFactory:
    """Holds the parts that all terms of a join share, and creates the parts of a term."""

    settings: JoinSettings
    facts: JoinFacts
    home: KubeClient
    remote: KubeClient
    election: LeaderElector
    candidate: Candidate
    relay_metrics: RelayMetrics
    notify: Callable[[str], None]

    def new_engine(self) -> tuple[Engine, RemoteClaim, NamespaceRecord]:
        """The engine of one term, the claim (all writes of the engine pass its fences), and the
        namespace record."""
        settings, facts = self.settings, self.facts
        policy = self._policy()
        claim = RemoteClaim(
            self.remote,
            facts.identity,
            self.election,
            candidate=self.candidate,
            home_fence=Fence(),
            take_over=settings.take_over_claim or "",
            notify=self.notify,
        )
        home = self.home.fenced(claim.home_fence)
        record = NamespaceRecord(home, facts.identity.node, is_takeover=lambda: claim.is_taken_over)
        listeners = forwarder = None
        if facts.network == "relay":
            from bridge.net.open_file_budget import fit_to_open_files
            from bridge.relay.forward.service_listeners import ServiceListeners

            listeners = ServiceListeners(
                self.remote.config,
                address=facts.relay_address,
                settings=fit_to_open_files(settings.relay),
                metrics=self.relay_metrics,
            )
        if policy.relay_image:
            from bridge.relay.reverse.home_pod_connections import HomePodConnections

            forwarder = HomePodConnections(
                self.remote.config,
                settings=settings.relay,
                metrics=self.relay_metrics.reverse,
                is_leader=lambda: claim.fence.is_open,
            )
        engine = Engine(
            home,
            self.remote.fenced(claim.fence),
            policy=policy,
            record=record,
            options=ControllerOptions(
                namespace_linger=settings.namespace_linger,
                copy_linger=settings.namespace_linger,
                listeners=listeners,
                forwarder=forwarder,
            ),
            limits=settings.limits,
        )
        return engine, claim, record

    def new_term(self, engine: Engine, claim: RemoteClaim, kubelet: NodeKubelet) -> ReplicaTerm:

        async def remove_stale_slices() -> None:
            if self.facts.network != "relay":
                from bridge.relay.forward import stale_endpoint_slices

                home = self.home.fenced(claim.home_fence)
                await stale_endpoint_slices.remove_stale_slices(home, self.facts.identity)

        return ReplicaTerm(
            engine,
            self._node_controller(engine, kubelet),
            claim.home_fence,
            claim,
            RemoteReachability(self.remote, engine.informers),
            self._require_recorded_network,
            remove_stale_objects=remove_stale_slices,
        )

    async def _require_recorded_network(self) -> None:
        """Raises TermOutdated, and adopts the Node's network mode for the next term, if another
        replica recorded one since this replica selected its own. Raises KubeError."""
        if self.settings.network != "auto":
            return
        node = await self.home.find(NODES, self.facts.identity.node)
        recorded = join_record.recorded_network(node) if node is not None else None
        if recorded is None or recorded == self.facts.recorded_network:
            return
        selected = self.facts.selected_network
        differs = (recorded.mode, recorded.source) != (selected.mode, selected.source)
        self.facts = self.facts.with_network(recorded, self.settings)
        if differs:
            raise TermOutdated(f"both: another replica recorded {recorded}; following it")

    def _policy(self) -> Policy:
        settings, facts = self.settings, self.facts
        return Policy(
            facts.identity,
            facts.address,
            network=facts.network,
            remote_pod_cidrs=settings.remote_pod_cidrs,
            home_addresses=tuple(
                dict.fromkeys(
                    (self.home.config.host, *((facts.home_api.host,) if facts.home_api else ()))
                )
            ),
            relay_address=facts.relay_address,
            relay_cidr=facts.relay_cidr,
            relay_image=settings.relay.image if facts.network == "relay" else "",
            daemonsets=settings.daemonsets,
            service_accounts=settings.service_accounts,
            home_api=facts.home_api,
            node_selector=settings.node_selector,
            unschedulable_timeout=settings.unschedulable_timeout,
        )

    def _node_controller(self, engine: Engine, kubelet: NodeKubelet) -> NodeController:
        controller = NodeController(
            engine.home_pods.client,
            self._node_facts(engine, kubelet.port),
            capacity=engine.capacity,
            remote_nodes=engine.remote_nodes,
            watched=[engine.remote_pods, engine.remote_nodes],
            unschedulable_pods=engine.unschedulable_pods,
            events=engine.events,
            now=utc_now,
            lease_annotation=kubelet.lease_annotation,
        )
        engine.pods.admission.cached_node = controller.current_node
        return controller

    def _node_facts(self, engine: Engine, port: int) -> NodeFacts:
        settings, facts = self.settings, self.facts
        config = engine.remote_nodes.client.config
        files = config.ref.files().split(os.pathsep)
        # Absolute, because `bridge leave` may run in another directory.
        kubeconfig = os.pathsep.join(str(Path(it).expanduser().absolute()) for it in files if it)
        is_installed = engine.home_pods.client.config.in_cluster
        annotations = {
            node_object.ANNOTATION_KUBECONFIG: kubeconfig,
            node_object.ANNOTATION_CONTEXT: config.context,
            node_object.ANNOTATION_HOME_NAME: facts.identity.home_name,
            join_record.ANNOTATION_OPTIONS: join_record.encode_policy(
                self._policy(),
                metrics=settings.metrics,
                certificate="files" if settings.certificate else settings.serving,
                network_source=facts.selected_network.source,
            ),
            # "" replaces the annotation of an installed bridge.
            node_object.ANNOTATION_INSTALLATION: in_cluster.namespace() if is_installed else "",
        }
        if settings.serving == "csr":
            annotations[node_object.ANNOTATION_CERT_DIR] = str(cert_dir(settings, facts))
        return NodeFacts(
            name=facts.identity.node,
            remote_id=facts.remote_id,
            address=facts.address,
            port=port,
            version=version(),
            configured=NodeMetadata(settings.labels, settings.annotations, settings.taints),
            annotations=annotations,
        )
