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

import asyncio
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bridge.election.elector import LeaderElector
from bridge.kubelet.server import KubeletServer
from bridge.observability.metric_exposition import counter, gauge, histogram
from bridge.pod_metrics.kubelet_metrics_endpoints import PodMetricsEndpoints
from bridge.relay.relay_counters import (
    DATAGRAM_DROPS,
    FORWARD_RESULTS,
    REVERSE_RESULTS,
    RelayMetrics,
    ReverseRelayMetrics,
)
from sync.base.histograms import Histogram
from sync.cache.informer import Informer
from sync.engine.engine import Engine
from sync.kube.client import KubeClient
from sync.runtime.controller import Controller
from sync.storage.pvc_controller import PvcController
from sync.storage.volume_controller import VolumeController
from translators import quantity

#: Values of ``status.phase``; a phase without pods is 0, not missing.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
SIDES = ("home", "remote")
#: Rejections by flow control, which an alert selects, start at 0.
_THROTTLED = {(method, "429"): 0 for method in ("GET", "POST", "PATCH", "DELETE")}


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of one join that the families are collected from."""

    version: str
    engine: Engine
    server: KubeletServer
    pod_metrics: PodMetricsEndpoints
    election: LeaderElector
    relay: RelayMetrics


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
        yield from _requests(clients)
        yield from _watches(clients, engine.watches)
        yield from _work_queues(engine.controllers)
        yield from _kubelet_api(sources.server)
        yield counter(
            "bridge_scrapes{path,result}",
            "Responses with resource metrics: complete, or partial where a kubelet of the remote "
            "(or its metrics API) did not answer.",
            sources.pod_metrics.scrapes,
        )
        yield from _forward_relay(sources.relay)
        yield from _reverse_relay(sources.relay.reverse)


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
    failing = {it.client.side for it in engine.informers if it.error is not None}
    yield gauge(
        "bridge_up{side}",
        "1 while all watches of this cluster work, else 0.",
        {side: int(side not in failing) for side in SIDES},
    )
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


def _requests(clients: Sequence[KubeClient]) -> Iterator[Metric]:
    """The requests to API servers."""
    yield counter(
        "bridge_api_requests{side,method,code}",
        "Requests to API servers by method (STREAM: watches and logs) and status code.",
        {
            (client.side, *key): count
            for client in clients
            for key, count in (_THROTTLED | client.metrics.answered).items()
        },
    )
    yield histogram(
        "bridge_api_request_duration_seconds{side,method,code}",
        "Duration of requests to API servers, without streams.",
        {
            (client.side, *key): took
            for client in clients
            for key, took in client.metrics.durations.items()
        },
    )
    yield counter(
        "bridge_api_data_rejected{side,reason}",
        "Rejected data of an API server: too large (body, page, watch-event, list, memory, "
        "status), malformed, an address that no pod can have, too many Events.",
        _flatten({it.side: it.limits.rejected for it in clients}),
    )
    yield gauge(
        "bridge_api_requests_limit{side}",
        "Limit of requests in flight; lower while the server throttles.",
        {it.side: it.limiter.limit for it in clients},
    )
    yield gauge(
        "bridge_api_requests_in_flight{side}",
        "Requests in flight, without streams and the node's own.",
        {it.side: it.limiter.in_flight for it in clients},
    )
    yield gauge(
        "bridge_api_requests_waiting{side}",
        "Requests that wait because of the limit.",
        {it.side: it.limiter.waiting for it in clients},
    )


def _watches(clients: Sequence[KubeClient], opened: Iterable[Informer]) -> Iterator[Metric]:
    """The watches of the clients; those that are open now are ``opened``."""
    by_side = {it.side: it.metrics for it in clients}
    yield counter(
        "bridge_watch_lists{side,resource}",
        "Full lists: at the start, and where a watch could not be resumed.",
        _flatten({side: it.lists for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watches{side,resource}",
        "Watches started; servers end each after some minutes.",
        _flatten({side: it.watches for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watch_failures{side,resource}",
        "Failed lists and watches.",
        _flatten({side: it.watch_failures for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watch_defects{side,resource}",
        "Watch events that raised an unexpected error in the bridge.",
        {(side, name): it.defects[name] for side, it in by_side.items() for name in it.lists},
    )
    yield gauge(
        "bridge_cache_bytes{side}",
        "Memory of the objects that caches keep within a limit: the remote's, as JSON, and the "
        "ConfigMaps, Secrets, Services and EndpointSlices of the home cluster, as estimated.",
        {client.side: client.limits.cached for client in clients},
    )
    now = asyncio.get_running_loop().time()
    stale: dict[tuple[str, str], float] = {}
    for watch in opened:
        if watch.last_contact is not None:
            key = (watch.client.side, str(watch.resource))
            stale[key] = max(stale.get(key, 0.0), now - watch.last_contact)
    yield gauge(
        "bridge_watch_staleness_seconds{side,resource}",
        "Time since the last data of a resource's most silent watch.",
        stale,
    )


def _work_queues(controllers: Sequence[Controller[Any]]) -> Iterator[Metric]:
    """The queues and reconciles of the controllers."""
    queues = {it.name: it.queue for it in controllers}
    unfinished = {it.name: it.unfinished_work for it in controllers}
    yield gauge(
        "workqueue_depth{name}",
        "Keys that wait for a worker.",
        {key: len(queue) for key, queue in queues.items()},
    )
    yield counter(
        "workqueue_adds{name}", "Keys added.", {key: queue.adds for key, queue in queues.items()}
    )
    yield counter(
        "workqueue_retries{name}",
        "Keys added again for a retry.",
        {key: queue.retries for key, queue in queues.items()},
    )
    yield histogram(
        "workqueue_queue_duration_seconds{name}",
        "Time that keys waited for a worker.",
        {key: queue.queue_duration for key, queue in queues.items()},
    )
    yield histogram(
        "workqueue_work_duration_seconds{name}",
        "Duration of reconciles.",
        {it.name: it.work_duration for it in controllers},
    )
    yield gauge(
        "workqueue_unfinished_work_seconds{name}",
        "Sum of the durations so far of the reconciles in progress.",
        {key: sum(seconds) for key, seconds in unfinished.items()},
    )
    yield gauge(
        "workqueue_longest_running_processor_seconds{name}",
        "Duration so far of the longest reconcile in progress.",
        {key: max(seconds, default=0.0) for key, seconds in unfinished.items()},
    )
    yield counter(
        "bridge_reconciles{name,result}",
        "Reconciles by result: success, waiting (for a condition that is no failure), failure (of "
        "a request), defect (of the bridge).",
        _flatten({it.name: it.results for it in controllers}),
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
    yield gauge(
        "bridge_streams_unsent_bytes",
        "Bytes of streams that wait for peers which do not take them.",
        streams.unsent.held,
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
    yield gauge(
        "bridge_relay_unsent_bytes",
        "Bytes of these connections that wait for peers which do not take them.",
        relay.unsent.held,
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
    yield gauge(
        "bridge_relay_back_unsent_bytes",
        "Bytes of these connections that wait for peers which do not take them.",
        relay.unsent.held,
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


def _flatten(counters: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], float]:
    """Nested counters with both keys as labels."""
    return {(key, inner): count for key, it in counters.items() for inner, count in it.items()}
