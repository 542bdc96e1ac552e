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
from bridge.base.consent import NO_CONSENT, Consent
from bridge.base.join_settings import JoinSettings
from bridge.base.version import version
from bridge.certificates.automatic_certificate import CertificateDemand
from bridge.checks.required_at_join import JoinFacts, checked_clusters
from bridge.clusters.token_renewal import Keep, keep_renewed_token, renewing_token
from bridge.election.election_lease import Candidate
from bridge.election.elector import LeaderElector
from bridge.election.remote_reachability import RemoteReachability
from bridge.home_identity.identity_selection import HomeClients
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
from sync.kube.renewed_token import RenewedToken
from sync.runtime.log_fields import NODE
from translators.translation_options import Policy


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
    async with cancel_when_set(stop), releasing_memory():
        await serve_node(settings, notify, consent)


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


async def serve_node(
    settings: JoinSettings, notify: Callable[[str], None], consent: Consent
) -> NoReturn:
    """Runs `join` until cancelled."""
    recent_errors = RecentErrors()
    with recent_errors.collect():
        await _serve_node(settings, notify, consent, recent_errors)
    raise AssertionError("a join ends with an error, or is cancelled")


async def _serve_node(
    settings: JoinSettings,
    notify: Callable[[str], None],
    consent: Consent,
    recent_errors: RecentErrors,
) -> None:
    probes = ProbeHandler()
    consent = consent.for_join()
    async with (
        serve_probes(probes, settings.address, settings.health_port),
        checked_clusters(
            settings,
            consent=consent,
            notify=notify,
            on_wait=None if settings.health_port is None else probes.set_waiting,
        ) as clusters,
        renewing_token(
            clusters.remote,
            keep=_keep_token(clusters.home.account, clusters.facts.identity.node),
            notify=notify,
        ),
    ):
        home, remote, facts = clusters.home, clusters.remote, clusters.facts
        account = home.account
        NODE.set(facts.identity.node)
        candidate = Candidate.local(facts.address)
        election = LeaderElector(account, facts.identity.node, candidate=candidate, notify=notify)
        factory = _TermFactory(
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


def _keep_token(home: KubeClient, node: str) -> Keep:
    """Keeps renewed tokens of the remote where the next start of this bridge finds them."""
    secret = None
    if home.config.in_cluster:
        from bridge.install.installation import instance_name

        secret = in_cluster.namespace(), instance_name(node)

    async def keep(renewed: RenewedToken) -> None:
        await keep_renewed_token(renewed, home, secret)

    return keep


@dataclass(slots=True)
class _TermFactory:
    """Holds the parts that all terms of a join share, and creates the parts of a term."""

    settings: JoinSettings
    facts: JoinFacts
    home: HomeClients
    remote: KubeClient
    election: LeaderElector
    candidate: Candidate
    relay_metrics: RelayMetrics
    notify: Callable[[str], None]
    certificate_of_home: bool = False
    """Whether home signs the serving certificate with ``--serving-certificate auto``."""
    node: NodeController | None = None
    """That of the current term."""

    def record_certificate_of_home(self) -> None:
        """Records on the Node that home signs the serving certificate: other replicas and later
        joins then request theirs at once."""
        self.certificate_of_home = True
        if self.node is not None:
            self.node.set_annotations(self._annotations())

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
        home, account = self._fenced_home(claim.home_fence)
        record = NamespaceRecord(
            account, facts.identity.node, is_takeover=lambda: claim.is_taken_over
        )
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
            account=account,
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

    def _fenced_home(self, fence: Fence) -> tuple[KubeClient, KubeClient]:
        """Home's clients as node and as account, behind the fence."""
        return self.home.home.fenced(fence), self.home.account.fenced(fence)

    def new_term(self, engine: Engine, claim: RemoteClaim, kubelet: NodeKubelet) -> ReplicaTerm:

        async def remove_stale_slices() -> None:
            if self.facts.network != "relay":
                from bridge.relay.forward import stale_endpoint_slices

                _, account = self._fenced_home(claim.home_fence)
                await stale_endpoint_slices.remove_stale_slices(account, self.facts.identity)

        return ReplicaTerm(
            engine,
            self._node_controller(engine, claim, kubelet),
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
        node = await self.home.account.find(NODES, self.facts.identity.node)
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
            home_addresses=self._home_addresses(),
            relay_address=facts.relay_address,
            relay_cidr=facts.relay_cidr,
            relay_image=settings.relay.image if facts.network == "relay" else "",
            daemonsets=settings.daemonsets,
            control_plane_nodes=settings.control_plane_nodes,
            pod_security=settings.pod_security,
            drop_pod_metadata=settings.drop_pod_metadata,
            pass_pod_metadata=settings.pass_pod_metadata,
            service_accounts=settings.service_accounts,
            home_api=facts.home_api,
            node_selector=settings.node_selector,
            unschedulable_timeout=settings.unschedulable_timeout,
            remote_namespaces=settings.remote_namespaces,
        )

    def _home_addresses(self) -> tuple[str, ...]:
        """Addresses of home's API server, which no pod of the remote can have."""
        api = self.facts.home_api
        hosts = (self.home.account.config.host, *((api.host,) if api is not None else ()))
        return tuple(dict.fromkeys(hosts))

    def _node_controller(
        self, engine: Engine, claim: RemoteClaim, kubelet: NodeKubelet
    ) -> NodeController:
        home, account = self._fenced_home(claim.home_fence)
        controller = NodeController(
            home,
            self._node_facts(kubelet.port),
            account=account,
            capacity=engine.capacity,
            remote_nodes=engine.remote_nodes,
            watched=[engine.remote_pods, engine.remote_nodes],
            unschedulable_pods=engine.unschedulable_pods,
            events=engine.events,
            now=utc_now,
            lease_annotation=kubelet.lease_annotation,
        )
        engine.pods.admission.cached_node = controller.current_node
        self.node = controller
        return controller

    def _node_facts(self, port: int) -> NodeFacts:
        settings, facts = self.settings, self.facts
        return NodeFacts(
            name=facts.identity.node,
            remote_id=facts.remote_id,
            address=facts.address,
            port=port,
            version=version(),
            configured=NodeMetadata(settings.labels, settings.annotations, settings.taints),
            annotations=self._annotations(),
        )

    def _annotations(self) -> dict[str, str]:
        settings, facts = self.settings, self.facts
        config = self.remote.config
        files = config.ref.files().split(os.pathsep)
        # Absolute, because `bridge leave` may run in another directory.
        kubeconfig = os.pathsep.join(str(Path(it).expanduser().absolute()) for it in files if it)
        certificate = self._certificate_source()
        annotations = {
            node_object.ANNOTATION_KUBECONFIG: kubeconfig,
            node_object.ANNOTATION_CONTEXT: config.context,
            node_object.ANNOTATION_HOME_NAME: facts.identity.home_name,
            join_record.ANNOTATION_OPTIONS: join_record.encode_policy(
                self._policy(),
                metrics=settings.metrics,
                certificate=certificate,
                network_source=facts.selected_network.source,
                home_identity=self.home.identity,
            ),
            # "" replaces the annotation of an installed bridge.
            node_object.ANNOTATION_INSTALLATION: (
                in_cluster.namespace() if self.home.account.config.in_cluster else ""
            ),
        }
        if certificate == "csr" or self.home.identity == "node":
            annotations[node_object.ANNOTATION_CERT_DIR] = str(cert_dir(settings, facts))
        return annotations

    def _certificate_source(self) -> join_record.CertificateSource:
        if self.settings.certificate is not None:
            return "files"
        return "csr" if self.certificate_of_home else self.settings.serving
