"""Creates the parts of each term of a join: engine, claim, node controller, and what the Node
records.

A replica that loses the election and stands by again needs new parts; settings, clients, election
and certificate stay. A term that another replica's network mode has outdated raises TermOutdated,
and the next one follows that mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from bridge.app.kubelet_api_setup import NodeKubelet, cert_dir
from bridge.app.replica_handover import ReplicaTerm, TermOutdated
from bridge.base import join_settings
from bridge.base.join_settings import JoinSettings
from bridge.base.version import version
from bridge.checks.required_at_join import JoinFacts
from bridge.clusters.home_ranges import read_home_ranges
from bridge.election.election_lease import Candidate
from bridge.election.elector import LeaderElector
from bridge.election.remote_reachability import RemoteReachability
from bridge.home_identity.identity_selection import HomeClients
from bridge.net.open_file_budget import fit_to_memory, fit_to_open_files
from bridge.node import join_record, node_object
from bridge.node.namespace_ownership_lease import NamespaceRecord
from bridge.node.node_controller import NodeController
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts
from bridge.relay.forward import stale_endpoint_slices
from bridge.relay.forward.service_listeners import ServiceListeners
from bridge.relay.relay_counters import RelayMetrics
from bridge.relay.reverse.home_pod_connections import HomePodConnections
from bridge.remote_claim.claim_keeper import RemoteClaim
from bridge.remote_claim.other_nodes import require_own_bridges
from sync.engine.controller_list import ControllerOptions
from sync.engine.engine import Engine, utc_now
from sync.kube import in_cluster
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import Fence
from translators.home_ranges import NO_RANGES, HomeRanges
from translators.translation_options import Policy


@dataclass(slots=True)
class TermFactory:
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
    home_ranges: HomeRanges = NO_RANGES
    """Home's own ranges, as this replica read them when it last took over."""

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
            places=facts.claim_places,
            uses_volumes=facts.storage == "provision",
            notify=self.notify,
        )
        home, account = self._fenced_home(claim.home_fence)
        record = NamespaceRecord(
            account, facts.identity.node, is_takeover=lambda: claim.is_taken_over
        )
        listeners = forwarder = None
        if facts.network == "relay":
            listeners = ServiceListeners(
                self.remote,
                address=facts.relay_address,
                settings=fit_to_open_files(fit_to_memory(settings.relay)),
                metrics=self.relay_metrics,
            )
        if policy.relay_image:
            forwarder = HomePodConnections(
                self.remote,
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
                namespace_linger=join_settings.NAMESPACE_LINGER,
                copy_linger=join_settings.NAMESPACE_LINGER,
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
                _, account = self._fenced_home(claim.home_fence)
                await stale_endpoint_slices.remove_stale_slices(account, self.facts.identity)

        return ReplicaTerm(
            engine,
            self._node_controller(engine, claim, kubelet),
            claim.home_fence,
            claim,
            RemoteReachability(self.remote, engine.informers),
            lambda: self._before_serving(engine),
            remove_stale_objects=remove_stale_slices,
        )

    async def _before_serving(self, engine: Engine) -> None:
        """`ReplicaTerm.before_serving`."""
        if self.facts.storage == "provision":
            identity, places = self.facts.identity, self.facts.claim_places
            await require_own_bridges(
                self.home.account, self.remote, identity, places, engine.other_nodes()
            )
        await self._require_recorded_network()
        if self.facts.network == "flat":
            self.home_ranges = await read_home_ranges(self.home.account)

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
            home_ranges=lambda: self.home_ranges,
            relay_address=facts.relay_address,
            relay_cidr=facts.relay_cidr,
            relay_image=settings.relay.image if facts.network == "relay" else "",
            storage=facts.storage,
            snapshots=facts.snapshots,
            remote_id=facts.remote_id,
            daemonsets=settings.daemonsets,
            control_plane_nodes=settings.control_plane_nodes,
            pod_security=settings.pod_security,
            pod_metadata=settings.pod_metadata,
            service_accounts=settings.service_accounts,
            home_api=facts.home_api,
            node_selector=settings.node_selector,
            unschedulable_timeout=settings.seconds_unschedulable,
            remote_namespaces=settings.remote_namespaces,
            cluster_reads=facts.cluster_reads,
        )

    def _home_addresses(self) -> tuple[str, ...]:
        """Addresses of home's API server, which no pod of the remote can have."""
        api = self.facts.home_api
        hosts = (self.home.account.endpoint.host, *((api.host,) if api is not None else ()))
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
            nodes_are_unknown=not facts.cluster_reads.nodes,
            remote_version=facts.remote_version,
        )

    def _annotations(self) -> dict[str, str]:
        settings, facts = self.settings, self.facts
        credentials = self.remote.credentials
        # Absolute, because `bridge leave` may run in another directory.
        kubeconfig = os.pathsep.join(str(path.absolute()) for path in credentials.ref.paths())
        certificate = self._certificate_source()
        annotations = {
            node_object.ANNOTATION_KUBECONFIG: kubeconfig,
            node_object.ANNOTATION_CONTEXT: credentials.context,
            node_object.ANNOTATION_HOME_NAME: facts.identity.home_name,
            join_record.ANNOTATION_OPTIONS: join_record.encode_policy(
                self._policy(),
                metrics=settings.metrics,
                certificate=certificate,
                network_source=facts.selected_network.source,
                home_identity=self.home.identity,
                node_restriction=facts.node_restriction,
                remote_ids=facts.remote_ids,
            ),
            # "" replaces the annotation of an installed bridge.
            node_object.ANNOTATION_INSTALLATION: (
                in_cluster.namespace() if self.home.account.credentials.in_cluster else ""
            ),
        }
        in_files = self.home.identity == "node" and not self.home.account.credentials.in_cluster
        if certificate == "csr" or in_files:
            annotations[node_object.ANNOTATION_CERT_DIR] = str(cert_dir(settings, facts))
        return annotations

    def _certificate_source(self) -> join_record.CertificateSource:
        if self.settings.certificate is not None:
            return "files"
        return "csr" if self.certificate_of_home else self.settings.serving
