"""Declares every metric family that the bridge exposes at ``/metrics``.

To add a metric: count in the part that knows the event (a plain `collections.Counter` or a
`sync.base.histograms.Histogram`), add a line to `FAMILIES` that reads it, and a row to
docs/reference/metrics.md, which a test compares with this table. A label that an alert selects
starts at 0: to Prometheus, a series whose first value is 1 is no increase.

Work queues have client-go's names (``workqueue_*``), which dashboards for controllers know; all
other families are ``bridge_*``. Labels are kinds, names of queues and resources, methods and codes:
no credential, and no object's name except the virtual node's. The table is served by
`bridge.observability.metrics_endpoint`.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.election.elector import LeaderElector
from bridge.kubelet.server import KubeletServer
from bridge.observability.metrics_endpoint import Family, Labels, counter, gauge, histogram
from bridge.pod_metrics.metrics_endpoints import PodMetricsEndpoints
from bridge.relay.relay_counters import FORWARD_RESULTS, REVERSE_RESULTS, RelayMetrics
from sync.engine.engine import Engine
from sync.kube.client import KubeClient
from sync.kube.request_metrics import RequestMetrics
from translators import quantity
from translators.capacity.node_capacity import NodeCapacity

#: Values of ``status.phase``; a phase without pods is 0, not missing.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
SIDES = ("home", "remote")
#: Rejections by flow control, which an alert selects, start at 0.
_THROTTLED = {(method, "429"): 0 for method in ("GET", "POST", "PATCH", "DELETE")}


@dataclass(frozen=True, slots=True)
class BridgeParts:
    """The parts of one join that the families read."""

    version: str
    engine: Engine
    server: KubeletServer
    pod_metrics: PodMetricsEndpoints
    election: LeaderElector
    relay: RelayMetrics

    @property
    def clients(self) -> tuple[KubeClient, KubeClient]:
        """The clients of both clusters."""
        return self.engine.home_pods.client, self.engine.remote_pods.client

    @property
    def requests(self) -> dict[str, RequestMetrics]:
        """Counters of API requests by side."""
        return {client.side: client.metrics for client in self.clients}

    @property
    def capacity(self) -> NodeCapacity | None:
        """Capacity of the virtual node; None until the remote's nodes are listed."""
        if not self.engine.remote_nodes.synced.is_set():
            return None
        return self.engine.capacity.current().capacity


def _pods_by_phase(parts: BridgeParts) -> dict[Labels, float]:
    pods = parts.engine.home_pods.store
    phases = Counter(str((pod.get("status") or {}).get("phase")) for pod in pods)
    return {(phase,): phases[phase] for phase in PHASES}


def _up(parts: BridgeParts) -> dict[Labels, float]:
    failing = {it.client.side for it in parts.engine.informers if it.error is not None}
    return {(side,): int(side not in failing) for side in SIDES}


def _amounts(quantities: Mapping[str, str]) -> dict[Labels, float]:
    return {(name,): float(quantity.parse_quantity(amount)) for name, amount in quantities.items()}


def _answered(parts: BridgeParts) -> dict[Labels, float]:
    return {
        (side, *key): count
        for side, it in parts.requests.items()
        for key, count in (_THROTTLED | it.answered).items()
    }


def _watch_staleness(parts: BridgeParts) -> dict[Labels, float]:
    now = asyncio.get_running_loop().time()
    found: dict[Labels, float] = {}
    for watch in parts.engine.watches:
        if watch.last_contact is not None:
            key = (watch.client.side, str(watch.resource))
            found[key] = max(found.get(key, 0.0), now - watch.last_contact)
    return found


def _flatten(counters: Mapping[str, Mapping[str, int]]) -> dict[Labels, float]:
    """Nested counters with both keys as labels."""
    return {(key, inner): count for key, it in counters.items() for inner, count in it.items()}


#: All families, in the order of the response.
FAMILIES: tuple[Family[BridgeParts], ...] = (
    # -- process and election ----------------------------------------------------------------------
    gauge(
        "bridge_build_info",
        "Versions of the bridge and of Python.",
        ("version", "python"),
        lambda parts: {(parts.version, platform.python_version()): 1},
    ),
    gauge(
        "bridge_leader",
        "1 while this replica holds the lease and serves the node, 0 while it stands by.",
        ("node",),
        lambda parts: {(parts.election.node,): int(parts.election.is_leader)},
    ),
    counter(
        "bridge_leader_transitions",
        "How often this replica acquired the lease.",
        ("node",),
        lambda parts: {(parts.election.node,): parts.election.transitions},
    ),
    histogram(
        "bridge_event_loop_lag_seconds",
        "Delay of the event loop, sampled at each renewal of the lease.",
        (),
        lambda parts: {(): parts.election.renewal_delay},
    ),
    # -- pods and the node -------------------------------------------------------------------------
    gauge("bridge_pods", "Pods bound to the virtual node, by phase.", ("phase",), _pods_by_phase),
    gauge(
        "bridge_up",
        "1 while all watches of this cluster work, else 0.",
        ("side",),
        _up,
    ),
    gauge(
        "bridge_node_capacity",
        "Capacity of the remote's nodes: cores, bytes or counts.",
        ("resource",),
        lambda parts: _amounts(it.capacity if (it := parts.capacity) is not None else {}),
    ),
    gauge(
        "bridge_node_allocatable",
        "Part of the capacity that the virtual node offers.",
        ("resource",),
        lambda parts: _amounts(it.allocatable if (it := parts.capacity) is not None else {}),
    ),
    gauge(
        "bridge_node_remote_nodes",
        "Schedulable nodes of the remote.",
        (),
        lambda parts: {(): it.nodes if (it := parts.capacity) is not None else 0},
    ),
    histogram(
        "bridge_pod_status_lag_seconds",
        "Time from a change of a remote pod until home's status shows it.",
        (),
        lambda parts: {(): parts.engine.pods.latency.status_lag},
    ),
    histogram(
        "bridge_pod_start_duration_seconds",
        "Time from a pod's binding to the node until home's status is Running.",
        (),
        lambda parts: {(): parts.engine.pods.latency.start},
    ),
    # -- API requests and watches ------------------------------------------------------------------
    counter(
        "bridge_api_requests",
        "Requests to API servers by method (STREAM: watches and logs) and status code.",
        ("side", "method", "code"),
        _answered,
    ),
    histogram(
        "bridge_api_request_duration_seconds",
        "Duration of requests to API servers, without streams.",
        ("side", "method", "code"),
        lambda parts: {
            (side, *key): took
            for side, it in parts.requests.items()
            for key, took in it.durations.items()
        },
    ),
    gauge(
        "bridge_api_requests_limit",
        "Limit of requests in flight; lower where the server pushes back.",
        ("side",),
        lambda parts: {(it.side,): it.limiter.limit for it in parts.clients},
    ),
    gauge(
        "bridge_api_requests_in_flight",
        "Requests in flight, without streams and the node's own.",
        ("side",),
        lambda parts: {(it.side,): it.limiter.in_flight for it in parts.clients},
    ),
    gauge(
        "bridge_api_requests_waiting",
        "Requests that wait because of the limit.",
        ("side",),
        lambda parts: {(it.side,): it.limiter.waiting for it in parts.clients},
    ),
    counter(
        "bridge_watch_lists",
        "Full lists: at the start, and where a watch could not be resumed.",
        ("side", "resource"),
        lambda parts: _flatten({side: it.lists for side, it in parts.requests.items()}),
    ),
    counter(
        "bridge_watches",
        "Watches started; servers end each after some minutes.",
        ("side", "resource"),
        lambda parts: _flatten({side: it.watches for side, it in parts.requests.items()}),
    ),
    counter(
        "bridge_watch_failures",
        "Failed lists and watches.",
        ("side", "resource"),
        lambda parts: _flatten({side: it.watch_failures for side, it in parts.requests.items()}),
    ),
    counter(
        "bridge_watch_defects",
        "Watch events that raised an unexpected error in the bridge.",
        ("side", "resource"),
        lambda parts: {
            (side, resource): it.defects[resource]
            for side, it in parts.requests.items()
            for resource in it.lists
        },
    ),
    gauge(
        "bridge_watch_staleness_seconds",
        "Time since the last data of a resource's most silent watch.",
        ("side", "resource"),
        _watch_staleness,
    ),
    # -- work queues and reconciles ----------------------------------------------------------------
    gauge(
        "workqueue_depth",
        "Keys that wait for a worker.",
        ("name",),
        lambda parts: {(it.name,): len(it.queue) for it in parts.engine.controllers},
    ),
    counter(
        "workqueue_adds",
        "Keys added.",
        ("name",),
        lambda parts: {(it.name,): it.queue.adds for it in parts.engine.controllers},
    ),
    counter(
        "workqueue_retries",
        "Keys added again for a retry.",
        ("name",),
        lambda parts: {(it.name,): it.queue.retries for it in parts.engine.controllers},
    ),
    histogram(
        "workqueue_queue_duration_seconds",
        "Time that keys waited for a worker.",
        ("name",),
        lambda parts: {(it.name,): it.queue.queue_duration for it in parts.engine.controllers},
    ),
    histogram(
        "workqueue_work_duration_seconds",
        "Duration of reconciles.",
        ("name",),
        lambda parts: {(it.name,): it.work_duration for it in parts.engine.controllers},
    ),
    gauge(
        "workqueue_unfinished_work_seconds",
        "Sum of the durations so far of the reconciles in progress.",
        ("name",),
        lambda parts: {(it.name,): sum(it.unfinished_work) for it in parts.engine.controllers},
    ),
    gauge(
        "workqueue_longest_running_processor_seconds",
        "Duration so far of the longest reconcile in progress.",
        ("name",),
        lambda parts: {
            (it.name,): max(it.unfinished_work, default=0.0) for it in parts.engine.controllers
        },
    ),
    counter(
        "bridge_reconciles",
        "Reconciles by result: success, waiting (for a condition that is no failure), failure (of "
        "a request), defect (of the bridge).",
        ("name", "result"),
        lambda parts: _flatten({it.name: it.results for it in parts.engine.controllers}),
    ),
    # -- the kubelet API ---------------------------------------------------------------------------
    gauge(
        "bridge_streams",
        "Open streams of the kubelet API.",
        ("kind",),
        lambda parts: {(kind,): count for kind, count in parts.server.streams.counts.items()},
    ),
    gauge(
        "bridge_kubelet_streams_limit",
        "Limit of open streams of all kinds; lower where the limit of open files is low.",
        (),
        lambda parts: {(): parts.server.streams.limit},
    ),
    gauge(
        "bridge_streams_namespace_most",
        "Open streams of the namespace that has the most.",
        (),
        lambda parts: {(): parts.server.streams.namespace_limit.largest},
    ),
    counter(
        "bridge_streams_refused",
        "Streams rejected with 429: limit (of all namespaces), namespace-limit (of one).",
        ("reason",),
        lambda parts: {(reason,): n for reason, n in parts.server.streams.rejected.items()},
    ),
    counter(
        "bridge_stream_bytes",
        "Bytes forwarded by streams: in from the client, out to the client.",
        ("kind", "direction"),
        lambda parts: {(kind, way): n for (kind, way), n in parts.server.streams.bytes.items()},
    ),
    counter(
        "bridge_reviews",
        "Authentications and authorizations of the kubelet API's clients: asked of home's API "
        "server, or remembered in the cache.",
        ("kind", "answer"),
        lambda parts: parts.server.reviews,
    ),
    counter(
        "bridge_scrapes",
        "Responses with resource metrics: complete, or partial where a kubelet of the remote (or "
        "its metrics API) did not answer.",
        ("path", "result"),
        lambda parts: parts.pod_metrics.scrapes,
    ),
    # -- the relay, from home to the remote --------------------------------------------------------
    gauge(
        "bridge_relay_listeners",
        "Ports at home that the bridge listens on for Services.",
        (),
        lambda parts: {(): parts.relay.listening},
    ),
    gauge(
        "bridge_relay_listeners_limit",
        "Limit of these ports, of all namespaces.",
        (),
        lambda parts: {(): parts.relay.listening_limit},
    ),
    gauge(
        "bridge_relay_connections_limit",
        "Limit of open connections of all namespaces; lower where the limit of open files is low.",
        (),
        lambda parts: {(): parts.relay.limit},
    ),
    gauge(
        "bridge_relay_addresses",
        "Addresses at home that the bridge listens on for single pods (--relay-cidr).",
        (),
        lambda parts: {(): parts.relay.addresses},
    ),
    gauge(
        "bridge_relay_connections_open",
        "Open connections that the bridge forwards to pods in the remote.",
        (),
        lambda parts: {(): parts.relay.open},
    ),
    counter(
        "bridge_relay_connections",
        "Closed connections: done, failed (in the remote), or reset before they were forwarded: "
        "no-pod (none is ready), no-way (to any pod), limit, namespace-limit and service-limit "
        "(too many), rate and service-rate (too many a second).",
        ("result",),
        lambda parts: {(result,): parts.relay.results[result] for result in FORWARD_RESULTS},
    ),
    counter(
        "bridge_relay_dials",
        "Connections to pods that were opened, or failed to open.",
        ("result",),
        lambda parts: {(result,): parts.relay.dials[result] for result in ("ok", "failed")},
    ),
    histogram(
        "bridge_relay_dial_duration_seconds",
        "Time to open a connection to a pod.",
        (),
        lambda parts: {(): parts.relay.dial_seconds},
    ),
    counter(
        "bridge_relay_bytes",
        "Bytes forwarded: in from the client, out to the client.",
        ("direction",),
        lambda parts: {(direction,): parts.relay.bytes[direction] for direction in ("in", "out")},
    ),
    # -- the relay, from the remote to home --------------------------------------------------------
    gauge(
        "bridge_relay_back_pods",
        "Relay agents in the remote that the bridge is connected to.",
        (),
        lambda parts: {(): parts.relay.reverse.agents},
    ),
    gauge(
        "bridge_relay_back_connections_open",
        "Open connections that the bridge forwards from the remote to pods at home.",
        (),
        lambda parts: {(): parts.relay.reverse.open},
    ),
    counter(
        "bridge_relay_back_connections",
        "Closed connections: done, failed (on either side), or reset at once: no-pod (none is "
        "ready), no-way (to a pod, or to the relay agent), limit, namespace-limit, service-limit.",
        ("result",),
        lambda parts: {
            (result,): parts.relay.reverse.results[result] for result in REVERSE_RESULTS
        },
    ),
    histogram(
        "bridge_relay_back_opening_duration_seconds",
        "Time to open a connection.",
        (),
        lambda parts: {(): parts.relay.reverse.open_seconds},
    ),
    counter(
        "bridge_relay_back_bytes",
        "Bytes forwarded: in from the client, out to the client.",
        ("direction",),
        lambda parts: {
            (direction,): parts.relay.reverse.bytes[direction] for direction in ("in", "out")
        },
    ),
)
