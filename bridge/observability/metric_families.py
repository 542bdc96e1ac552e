"""Collects every metric family that the bridge exposes at ``/metrics``.

To add a metric: count in the part that knows the event (a plain `collections.Counter` or a
`sync.base.histograms.Histogram`), add a family here that reads it, and a row to
docs/reference/metrics.md, which a test compares with a response. A label that an alert selects
starts at 0: to Prometheus, a series whose first value is 1 is no increase.

Work queues have client-go's names (``workqueue_*``), which dashboards for controllers know; all
other families are ``bridge_*``. Labels are kinds, names of queues and resources, methods and codes:
no credential, and no object's name except the virtual node's.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bridge.election.elector import LeaderElector
from bridge.fleet.fleet_report import FleetReport
from bridge.kubelet.server import KubeletServer
from bridge.observability import controller_families
from bridge.observability.bridge_metrics_endpoint import MetricSources
from bridge.observability.metric_exposition import counter, gauge, histogram
from bridge.relay.relay_counters import (
    DATAGRAM_DROPS,
    FORWARD_RESULTS,
    REVERSE_RESULTS,
    RelayMetrics,
    ReverseRelayMetrics,
)
from sync.base.histograms import Histogram
from sync.engine.engine import Engine
from sync.storage.pvc_controller import PvcController
from sync.storage.volume_controller import VolumeController
from translators import quantity

#: Values of ``status.phase``; a phase without pods is 0, not missing.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
SIDES = ("home", "remote")


@dataclass(frozen=True, slots=True, eq=False)
class BridgeCollector(Collector):
    """Collects all families from the parts of one join."""

    sources: MetricSources

    def collect(self) -> Iterator[Metric]:
        """All families with their current values, in the order of the response."""
        sources, engine = self.sources, self.sources.engine
        yield gauge(
            "bridge_build_info{version,python}",
            "Versions of the bridge and of Python.",
            {(sources.version, platform.python_version()): 1},
        )
        yield from _election(sources.election)
        yield from _node(engine)
        yield from _volumes(engine)
        clients = (engine.home_pods.client, engine.remote_pods.client)
        yield from controller_families.requests(clients)
        yield from controller_families.watches(clients, engine.watches)
        yield from controller_families.work_queues(engine.controllers)
        yield from _kubelet_api(sources.server)
        yield counter(
            "bridge_scrapes{path,result}",
            "Responses with resource metrics: complete, or partial where a kubelet of the remote "
            "(or its metrics API) did not answer.",
            sources.pod_metrics.scrapes,
        )
        yield from _forward_relay(sources.relay)
        yield from _reverse_relay(sources.relay.reverse)
        yield from _fleet(sources.fleet)


def _fleet(fleet: FleetReport) -> Iterator[Metric]:
    yield gauge(
        "bridge_fleet_remotes{state}",
        "Remotes of the configuration of this process, by state.",
        fleet.counts(),
    )
    yield counter(
        "bridge_config_loads{result}",
        "Reads of the configuration: success, or failure (invalid; the last valid one stays).",
        fleet.loads,
    )
    yield gauge(
        "bridge_config_valid",
        "1 while the newest configuration is in effect, 0 while it is invalid.",
        int(not fleet.error),
    )


def _election(election: LeaderElector) -> Iterator[Metric]:
    yield gauge(
        "bridge_leader{node}",
        "1 while this replica holds the lease and serves the node, 0 while it stands by.",
        {election.node: int(election.is_leader)},
    )
    yield counter(
        "bridge_leader_transitions{node}",
        "How often this replica acquired the lease.",
        {election.node: election.transitions},
    )
    yield histogram(
        "bridge_event_loop_lag_seconds",
        "Delay of the event loop, sampled at each renewal of the lease.",
        election.renewal_delay,
    )


def _node(engine: Engine) -> Iterator[Metric]:
    phases = Counter(str((it.get("status") or {}).get("phase")) for it in engine.home_pods.store)
    yield gauge(
        "bridge_pods{phase}",
        "Pods bound to the virtual node, by phase.",
        {phase: phases[phase] for phase in PHASES},
    )
    yield from controller_families.up(engine.informers, SIDES)
    listed = engine.remote_nodes.synced.is_set()
    offer = engine.capacity.current().capacity if listed else None
    yield gauge(
        "bridge_node_capacity{resource}",
        "Capacity of the remote's nodes: cores, bytes or counts.",
        _amounts(offer.capacity if offer else {}),
    )
    yield gauge(
        "bridge_node_allocatable{resource}",
        "Part of the capacity that the virtual node offers.",
        _amounts(offer.allocatable if offer else {}),
    )
    yield gauge(
        "bridge_node_remote_nodes",
        "Schedulable nodes of the remote; 0 if the bridge may not read them.",
        (offer.nodes if offer else None) or 0,
    )
    yield histogram(
        "bridge_pod_status_lag_seconds",
        "Time from a change of a remote pod until home's status shows it.",
        engine.pods.latency.status_lag,
    )
    yield histogram(
        "bridge_pod_start_duration_seconds",
        "Time from a pod's binding to the node until home's status is Running.",
        engine.pods.latency.start,
    )


def _volumes(engine: Engine) -> Iterator[Metric]:
    claims = engine.find_optional(PvcController)
    results = claims.executor.results if claims else dict.fromkeys(("success", "failure"), 0)
    yield counter(
        "bridge_volume_provisions{result}",
        "Volumes provisioned in the remote, and PersistentVolumeClaims given back to home's "
        "scheduler.",
        results,
    )
    yield histogram(
        "bridge_volume_provision_duration_seconds",
        "Time from the first attempt for a PersistentVolumeClaim, once its node is selected, until "
        "home has bound it.",
        claims.executor.duration if claims else Histogram(),
    )
    yield gauge(
        "bridge_volume_claims_pending",
        "PersistentVolumeClaims that this bridge is to provision and that are not Bound.",
        claims.pending_claims() if claims else 0,
    )
    volumes = engine.find_optional(VolumeController)
    yield counter(
        "bridge_volume_deletions{result}",
        "Volumes deleted with their data in the remote, and attempts to delete them that failed.",
        volumes.deletions if volumes else dict.fromkeys(("success", "failure"), 0),
    )


def _kubelet_api(server: KubeletServer) -> Iterator[Metric]:
    streams = server.streams
    yield gauge("bridge_streams{kind}", "Open streams of the kubelet API.", streams.counts)
    yield gauge(
        "bridge_kubelet_streams_limit",
        "Limit of open streams of all kinds; lower where the limit of open files is low.",
        streams.limit,
    )
    yield gauge(
        "bridge_streams_namespace_most",
        "Open streams of the namespace that has the most.",
        streams.namespace_limit.largest,
    )
    yield counter(
        "bridge_streams_refused{reason}",
        "Streams rejected with 429: limit (of all namespaces), namespace-limit (of one).",
        streams.rejected,
    )
    yield counter(
        "bridge_stream_bytes{kind,direction}",
        "Bytes forwarded by streams: in from the client, out to the client.",
        streams.bytes,
    )
    yield counter(
        "bridge_reviews{kind,answer}",
        "Authentications and authorizations of the kubelet API's clients: asked of home's API "
        "server, or remembered in the cache.",
        server.reviews,
    )


def _forward_relay(relay: RelayMetrics) -> Iterator[Metric]:
    yield gauge(
        "bridge_relay_listeners",
        "Ports at home that the bridge listens on for Services.",
        relay.listening,
    )
    yield gauge(
        "bridge_relay_listeners_limit",
        "Limit of these ports, of all namespaces.",
        relay.listening_limit,
    )
    yield gauge(
        "bridge_relay_connections_limit",
        "Limit of open connections of all namespaces; lower where the limit of open files is low.",
        relay.limit,
    )
    yield gauge(
        "bridge_relay_addresses",
        "Addresses at home that the bridge listens on for single pods (--relay-cidr).",
        relay.addresses,
    )
    yield gauge(
        "bridge_relay_connections_open",
        "Open connections that the bridge forwards to pods in the remote.",
        relay.open,
    )
    yield counter(
        "bridge_relay_connections{result}",
        "Closed connections: done, failed (in the remote), or reset before they were forwarded: "
        "no-pod (none is ready), no-way (to any pod), limit, namespace-limit and service-limit "
        "(too many), rate and service-rate (too many a second).",
        {result: relay.results[result] for result in FORWARD_RESULTS},
    )
    yield counter(
        "bridge_relay_dials{result}",
        "Connections to pods that were opened, or failed to open.",
        {result: relay.dials[result] for result in ("ok", "failed")},
    )
    yield histogram(
        "bridge_relay_dial_duration_seconds",
        "Time to open a connection to a pod.",
        relay.dial_seconds,
    )
    yield counter(
        "bridge_relay_bytes{direction}",
        "Bytes forwarded: in from the client, out to the client.",
        {direction: relay.bytes[direction] for direction in ("in", "out")},
    )


def _reverse_relay(relay: ReverseRelayMetrics) -> Iterator[Metric]:
    yield gauge(
        "bridge_relay_back_pods",
        "Relay agents in the remote that the bridge is connected to.",
        relay.agents,
    )
    yield gauge(
        "bridge_relay_back_connections_open",
        "Open connections that the bridge forwards from the remote to pods at home.",
        relay.open,
    )
    yield counter(
        "bridge_relay_back_connections{result}",
        "Closed connections: done, failed (on either side), or reset at once: no-pod (none is "
        "ready), no-way (to a pod, or to the relay agent), limit, namespace-limit, service-limit.",
        {result: relay.results[result] for result in REVERSE_RESULTS},
    )
    yield histogram(
        "bridge_relay_back_opening_duration_seconds",
        "Time to open a connection.",
        relay.open_seconds,
    )
    yield counter(
        "bridge_relay_back_bytes{direction}",
        "Bytes forwarded, of datagrams too: in from the client, out to the client.",
        {direction: relay.bytes[direction] for direction in ("in", "out")},
    )
    yield gauge(
        "bridge_relay_back_flows",
        "Flows of UDP datagrams from the remote to pods at home that are not forgotten yet.",
        relay.flows,
    )
    yield counter(
        "bridge_relay_back_datagrams{direction}",
        "UDP datagrams forwarded: in from the client, out to the client.",
        {direction: relay.datagrams[direction] for direction in ("in", "out")},
    )
    yield counter(
        "bridge_relay_back_datagrams_dropped{reason}",
        "UDP datagrams dropped: queue (full), flows (too many), no-pod (none is ready), no-way (to "
        "the pod or the client), too-long, no-bridge (is connected to the relay agent).",
        {reason: relay.dropped[reason] for reason in DATAGRAM_DROPS},
    )


def _amounts(quantities: Mapping[str, str]) -> dict[str, float]:
    return {name: float(quantity.parse_quantity(amount)) for name, amount in quantities.items()}
