"""``/metrics``: the bridge's own numbers, for Prometheus.

`Exporter` reads what the parts count for themselves (`sync.base.histograms` and the like) when
somebody asks, and counts nothing itself: parts know nothing of it. Queues have the names of
client-go's (``workqueue_*``), which dashboards of controllers know; the process' own
(``process_*``, ``python_gc_*``) are prometheus_client's; everything else is ``bridge_*``. Labels
are kinds, names of queues and of resources, methods and codes; but for the virtual node's own no
name of an object, and nothing of a credential.
docs/reference/metrics.md has the table of all (a test holds it against this).
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Iterator, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from bridge.election.elector import LeaderElector
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.kubelet.server import KubeletServer
from bridge.observability.metric_families import by_part, counter, gauge, histogram
from bridge.pod_metrics.endpoints import PodMetricsEndpoints
from bridge.relay.metrics import FORWARD_RESULTS, RelayMetrics
from bridge.relay.metrics import REVERSE_RESULTS as BACK_ENDS
from sync.engine.engine import Engine
from sync.kube.request_metrics import RequestMetrics
from translators import quantity
from translators.pod_metrics.exposition import CONTENT_TYPE

#: All that a pod's ``status.phase`` can be: a phase that no pod is in is 0, not missing.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
SIDES = ("home", "remote")
#: What an alert counts is there from the beginning: to Prometheus a series that first appears with
#: the value 1 is no increase.
_THROTTLED = {(method, "429"): 0 for method in ("GET", "POST", "PATCH", "DELETE")}


class MetricsEndpoint:
    """Answers ``/metrics``; whose numbers it tells is said by `show`."""

    def __init__(self) -> None:
        self._shown: BridgeCollector | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    @property
    def route(self) -> Route:
        """What the kubelet API is to serve."""
        return Route("/metrics", frozenset({"GET"}), self._serve, is_node_independent=True)

    def show(self, parts: BridgeCollector) -> None:
        """Shows the numbers of these parts from now on, and no others'."""
        if self._shown is not None:
            self._registry.unregister(self._shown)
        self._shown = parts
        self._registry.register(parts)

    async def _serve(self, _: RoutedRequest) -> web.StreamResponse:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE}
        )


class BridgeCollector(Collector):
    """The parts of one join, and what each says."""

    def __init__(
        self,
        version: str,
        *,
        engine: Engine,
        server: KubeletServer,
        metrics: PodMetricsEndpoints,
        election: LeaderElector,
        carried: RelayMetrics,
    ) -> None:
        self._version = version
        self._election = election
        self._clients = (engine.home_pods.client, engine.remote_pods.client)
        self._engine = engine
        self._server = server
        self._metrics = metrics
        self._carried = carried

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily(
            "bridge_build",
            "The bridge's version, and Python's.",
            {"version": self._version, "python": platform.python_version()},
        )
        yield from self._who_leads()
        yield from self._what_is()
        yield from self._what_it_offers()
        yield from self._pods()
        yield from self._requests()
        yield from self._watches()
        yield from self._queues()
        yield from self._reconciles()
        yield from self._kubelet_api()
        yield from self._relay()
        yield from self._relay_back()

    def _who_leads(self) -> Iterator[Metric]:
        yield gauge(
            "bridge_leader",
            "1 while this bridge holds the lease to serve the node, 0 while it stands by.",
            ("node",),
            {(self._election.node,): int(self._election.is_leader)},
        )
        yield counter(
            "bridge_leader_transitions",
            "How often this bridge came to hold the lease.",
            ("node",),
            {(self._election.node,): self._election.transitions},
        )
        yield histogram(
            "bridge_event_loop_lag_seconds",
            "How late the event loop was: sampled at each renewal of the lease.",
            (),
            {(): self._election.renewal_delay},
        )

    def _what_is(self) -> Iterator[Metric]:
        store = self._engine.home_pods.store
        phases = Counter(str((pod.get("status") or {}).get("phase")) for pod in store)
        yield gauge(
            "bridge_pods",
            "Pods bound to the virtual node, by phase.",
            ("phase",),
            {(phase,): phases[phase] for phase in PHASES},
        )
        failing = {it.client.side for it in self._engine.informers if it.error is not None}
        yield gauge(
            "bridge_up",
            "1 while all that is watched in this cluster can be watched, else 0.",
            ("side",),
            {(side,): int(side not in failing) for side in SIDES},
        )

    def _what_it_offers(self) -> Iterator[Metric]:
        """Once the remote's nodes are known; not by name, but by resource."""
        offers = self._engine.remote_nodes.synced.is_set()
        found = self._engine.capacity.current().capacity if offers else None
        yield gauge(
            "bridge_node_capacity",
            "What the remote's nodes have: cores, bytes, or numbers.",
            ("resource",),
            _amounts(found.capacity if found is not None else {}),
        )
        yield gauge(
            "bridge_node_allocatable",
            "What the virtual node offers of that.",
            ("resource",),
            _amounts(found.allocatable if found is not None else {}),
        )
        yield gauge(
            "bridge_node_remote_nodes",
            "Nodes of the remote that take pods.",
            (),
            {(): found.nodes if found is not None else 0},
        )

    def _pods(self) -> Iterator[Metric]:
        times = self._engine.pods.latency
        yield histogram(
            "bridge_pod_status_lag_seconds",
            "How long changes of pods in the remote took to be home's status.",
            (),
            {(): times.status_lag},
        )
        yield histogram(
            "bridge_pod_start_duration_seconds",
            "How long pods took from being bound to the node until home's status said Running.",
            (),
            {(): times.start},
        )

    def _requests(self) -> Iterator[Metric]:
        measures = self._measures
        yield counter(
            "bridge_api_requests",
            "Requests to API servers, by method (STREAM: watches and logs) and status code.",
            ("side", "method", "code"),
            {
                (side, *key): count
                for side, it in measures.items()
                for key, count in (_THROTTLED | it.answered).items()
            },
        )
        yield histogram(
            "bridge_api_request_duration_seconds",
            "How long requests to API servers took, without streams.",
            ("side", "method", "code"),
            {
                (side, *key): took
                for side, it in measures.items()
                for key, took in it.durations.items()
            },
        )
        limiters = {(client.side,): client.limiter for client in self._clients}
        yield gauge(
            "bridge_api_requests_limit",
            "Requests that may be in flight at once: lower where the server pushes back.",
            ("side",),
            {side: it.limit for side, it in limiters.items()},
        )
        yield gauge(
            "bridge_api_requests_in_flight",
            "Requests that are in flight, without streams and without those of the node itself.",
            ("side",),
            {side: it.in_flight for side, it in limiters.items()},
        )
        yield gauge(
            "bridge_api_requests_waiting",
            "Requests that wait until fewer are in flight.",
            ("side",),
            {side: it.waiting for side, it in limiters.items()},
        )

    @property
    def _measures(self) -> dict[str, RequestMetrics]:
        return {client.side: client.metrics for client in self._clients}

    def _watches(self) -> Iterator[Metric]:
        measures = self._measures
        yield counter(
            "bridge_watch_lists",
            "Full lists for watches: at the start, and where a watch could not go on.",
            ("side", "resource"),
            by_part({side: it.lists for side, it in measures.items()}),
        )
        yield counter(
            "bridge_watches",
            "Watches that were begun; servers end each after some minutes.",
            ("side", "resource"),
            by_part({side: it.watches for side, it in measures.items()}),
        )
        yield counter(
            "bridge_watch_failures",
            "Lists and watches that failed.",
            ("side", "resource"),
            by_part({side: it.watch_failures for side, it in measures.items()}),
        )
        yield counter(
            "bridge_watch_defects",
            "Changes that the bridge stumbled over, for a defect of its own.",
            ("side", "resource"),
            # From 0 on, so that the first one is an increase.
            {(side, kind): it.defects[kind] for side, it in measures.items() for kind in it.lists},
        )
        yield gauge(
            "bridge_watch_staleness_seconds",
            "For how long the most silent watch of a kind has said nothing.",
            ("side", "resource"),
            self._staleness(),
        )

    def _staleness(self) -> dict[tuple[str, ...], float]:
        now = asyncio.get_running_loop().time()
        found: dict[tuple[str, ...], float] = {}
        for it in self._engine.watches:
            if it.last_contact is not None:
                key = (it.client.side, str(it.resource))
                found[key] = max(found.get(key, 0.0), now - it.last_contact)
        return found

    def _queues(self) -> Iterator[Metric]:
        queues = {(it.name,): it.queue for it in self._engine.controllers}
        name = ("name",)
        yield gauge(
            "workqueue_depth",
            "Keys that wait for a worker.",
            name,
            {key: len(queue) for key, queue in queues.items()},
        )
        yield counter(
            "workqueue_adds",
            "Keys that were added.",
            name,
            {key: queue.adds for key, queue in queues.items()},
        )
        yield counter(
            "workqueue_retries",
            "Keys that were to be tried again.",
            name,
            {key: queue.retries for key, queue in queues.items()},
        )
        yield histogram(
            "workqueue_queue_duration_seconds",
            "How long keys waited for a worker.",
            name,
            {key: queue.queue_duration for key, queue in queues.items()},
        )
        yield histogram(
            "workqueue_work_duration_seconds",
            "How long reconciles took.",
            name,
            {(it.name,): it.work_duration for it in self._engine.controllers},
        )
        unfinished = {(it.name,): it.unfinished_work for it in self._engine.controllers}
        yield gauge(
            "workqueue_unfinished_work_seconds",
            "For how long the reconciles that are under way have been, all together.",
            name,
            {key: sum(seconds) for key, seconds in unfinished.items()},
        )
        yield gauge(
            "workqueue_longest_running_processor_seconds",
            "For how long the longest of them has been.",
            name,
            {key: max(seconds, default=0.0) for key, seconds in unfinished.items()},
        )

    def _reconciles(self) -> Iterator[Metric]:
        yield counter(
            "bridge_reconciles",
            "Reconciles by result: success, waiting (for something that is no failure), "
            "failure (of a request), defect (of the bridge).",
            ("name", "result"),
            by_part({it.name: it.results for it in self._engine.controllers}),
        )

    def _kubelet_api(self) -> Iterator[Metric]:
        yield gauge(
            "bridge_streams",
            "Open streams of the kubelet API.",
            ("kind",),
            {(kind,): count for kind, count in self._server.streams.counts.items()},
        )
        yield gauge(
            "bridge_kubelet_streams_limit",
            "Streams that may be open at once, of all kinds: fewer with few open files.",
            (),
            {(): self._server.streams.limit},
        )
        yield gauge(
            "bridge_streams_namespace_most",
            "Open streams of the namespace that has the most.",
            (),
            {(): self._server.streams.namespace_limit.largest},
        )
        yield counter(
            "bridge_streams_refused",
            "Streams that were refused (429): limit (of all), namespace-limit (of one).",
            ("reason",),
            {(reason,): count for reason, count in self._server.streams.rejected.items()},
        )
        yield counter(
            "bridge_stream_bytes",
            "Bytes that streams have carried: in from the caller, out to the caller.",
            ("kind", "direction"),
            {(kind, way): n for (kind, way), n in self._server.streams.bytes.items()},
        )
        yield counter(
            "bridge_reviews",
            "Answers to who calls the kubelet API and whether they may: asked of home's API "
            "server, or remembered.",
            ("kind", "answer"),
            self._server.reviews,
        )
        yield counter(
            "bridge_scrapes",
            "Answers on what pods use: complete, or partial where a kubelet of the remote "
            "(or its metrics API) was silent.",
            ("path", "result"),
            self._metrics.scrapes,
        )

    def _relay(self) -> Iterator[Metric]:
        carried = self._carried
        yield gauge(
            "bridge_relay_listeners",
            "Ports at home that the bridge listens on for Services.",
            (),
            {(): carried.listening},
        )
        yield gauge(
            "bridge_relay_listeners_limit",
            "How many of them there may be, of all namespaces.",
            (),
            {(): carried.listening_limit},
        )
        yield gauge(
            "bridge_relay_connections_limit",
            "Connections that may be open at once, of all namespaces: fewer with few open files.",
            (),
            {(): carried.limit},
        )
        yield gauge(
            "bridge_relay_addresses",
            "Addresses at home at which it does so for single pods (--relay-cidr).",
            (),
            {(): carried.addresses},
        )
        yield gauge(
            "bridge_relay_connections_open",
            "Connections that the bridge carries to pods in the remote.",
            (),
            {(): carried.open},
        )
        yield counter(
            "bridge_relay_connections",
            "Connections that have ended: done, failed (in the remote), or reset before they "
            "began: no-pod (none is ready), no-way (to any), limit, namespace-limit and "
            "service-limit (too many), rate and service-rate (too many a second).",
            ("result",),
            {(end,): carried.results[end] for end in FORWARD_RESULTS},
        )
        yield counter(
            "bridge_relay_dials",
            "Ways to pods that were opened, or could not be.",
            ("result",),
            {(result,): carried.dials[result] for result in ("ok", "failed")},
        )
        yield histogram(
            "bridge_relay_dial_duration_seconds",
            "How long that took.",
            (),
            {(): carried.dial_seconds},
        )
        yield counter(
            "bridge_relay_bytes",
            "Bytes that connections have carried: in from the client, out to the client.",
            ("direction",),
            {(way,): carried.bytes[way] for way in ("in", "out")},
        )

    def _relay_back(self) -> Iterator[Metric]:
        back = self._carried.reverse
        yield gauge(
            "bridge_relay_back_pods",
            "Relay pods in the remote that the bridge speaks to.",
            (),
            {(): back.agents},
        )
        yield gauge(
            "bridge_relay_back_connections_open",
            "Connections that the bridge carries from the remote to pods at home.",
            (),
            {(): back.open},
        )
        yield counter(
            "bridge_relay_back_connections",
            "Connections that have ended: done, failed (broken on either side), or reset at "
            "once: no-pod (none is ready), no-way (to one, or to the relay pod), limit, "
            "namespace-limit, service-limit.",
            ("result",),
            {(end,): back.results[end] for end in BACK_ENDS},
        )
        yield histogram(
            "bridge_relay_back_opening_duration_seconds",
            "How long ways took to open.",
            (),
            {(): back.open_seconds},
        )
        yield counter(
            "bridge_relay_back_bytes",
            "Bytes that connections have carried: in from the client, out to the client.",
            ("direction",),
            {(way,): back.bytes[way] for way in ("in", "out")},
        )


def _amounts(quantities: Mapping[str, str]) -> dict[tuple[str, ...], float]:
    return {(name,): float(quantity.parse_quantity(amount)) for name, amount in quantities.items()}
