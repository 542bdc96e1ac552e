"""``/metrics``: the bridge's own numbers, for Prometheus.

`Exporter` reads what the parts count for themselves (`sync.measures` and the like) when somebody
asks, and counts nothing itself: parts know nothing of it. Everything is named ``cluster_bridge_*``
but for the process' own (``process_*``, ``python_gc_*``), which are prometheus_client's. Labels are
kinds, names of queues, methods and codes; no name of an object, and nothing of a credential.
docs/metrics.md has the table of all (a test holds it against this).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from bridge.kubelet.routing import Call, Route
from bridge.kubelet.server import KubeletServer
from bridge.metrics.endpoints import Metrics
from sync.engine import Engine
from sync.measures import Histogram
from translators.exposition import CONTENT_TYPE

#: All that a pod's ``status.phase`` can be: a phase that no pod is in is 0, not missing.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
SIDES = ("home", "remote")

#: Names of labels, or their values.
_Labels = tuple[str, ...]


class Exporter:
    """Answers ``/metrics``; whose numbers it tells is said by `show`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    @property
    def route(self) -> Route:
        """What the kubelet API is to serve."""
        return Route("/metrics", frozenset({"GET"}), self._serve)

    def show(self, parts: Parts) -> None:
        """Shows the numbers of these parts from now on."""
        self._registry.register(parts)

    async def _serve(self, _: Call) -> web.StreamResponse:
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": CONTENT_TYPE},
        )


class Parts(Collector):
    """The parts of one join, and what each says."""

    def __init__(
        self, version: str, engine: Engine, server: KubeletServer, metrics: Metrics
    ) -> None:
        self._version = version
        self._clients = (engine.home_pods.client, engine.remote_pods.client)
        self._engine = engine
        self._server = server
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily(
            "cluster_bridge_build", "The bridge's version.", {"version": self._version}
        )
        yield from self._what_is()
        yield from self._requests()
        yield from self._queues()
        yield from self._kubelet_api()

    def _what_is(self) -> Iterator[Metric]:
        store = self._engine.home_pods.store
        phases = Counter(str((pod.get("status") or {}).get("phase")) for pod in store)
        yield _gauge(
            "pods",
            "Pods bound to the virtual node, by phase.",
            ("phase",),
            {(phase,): phases[phase] for phase in PHASES},
        )
        failing = {it.client.side for it in self._engine.informers if it.error is not None}
        yield _gauge(
            "up",
            "1 while all that is watched in this cluster can be watched, else 0.",
            ("side",),
            {(side,): int(side not in failing) for side in SIDES},
        )

    def _requests(self) -> Iterator[Metric]:
        measures = {client.side: client.measures for client in self._clients}
        yield _counter(
            "api_requests",
            "Requests to API servers, by method (STREAM: watches and logs) and status code.",
            ("side", "method", "code"),
            {
                (side, *key): count
                for side, it in measures.items()
                for key, count in it.answered.items()
            },
        )
        yield _histogram(
            "api_request_duration_seconds",
            "How long requests to API servers took, without streams.",
            ("side", "method"),
            {
                (side, method): histogram
                for side, it in measures.items()
                for method, histogram in it.seconds.items()
            },
        )
        yield _counter(
            "watch_lists",
            "Full lists for watches: at the start, and where a watch could not go on.",
            ("side", "resource"),
            _by_part({side: it.lists for side, it in measures.items()}),
        )
        yield _counter(
            "watches",
            "Watches that were begun; servers end each after some minutes.",
            ("side", "resource"),
            _by_part({side: it.watches for side, it in measures.items()}),
        )
        yield _counter(
            "watch_failures",
            "Lists and watches that failed.",
            ("side", "resource"),
            _by_part({side: it.watch_failures for side, it in measures.items()}),
        )

    def _queues(self) -> Iterator[Metric]:
        queues = {(it.name,): it.queue for it in self._engine.controllers}
        name = ("name",)
        yield _gauge(
            "workqueue_depth",
            "Keys that wait for a worker.",
            name,
            {key: len(queue) for key, queue in queues.items()},
        )
        yield _counter(
            "workqueue_adds",
            "Keys that were added.",
            name,
            {key: queue.adds for key, queue in queues.items()},
        )
        yield _counter(
            "workqueue_retries",
            "Keys that were to be tried again.",
            name,
            {key: queue.retries for key, queue in queues.items()},
        )
        yield _histogram(
            "workqueue_queue_duration_seconds",
            "How long keys waited for a worker.",
            name,
            {key: queue.waited for key, queue in queues.items()},
        )
        yield _histogram(
            "workqueue_work_duration_seconds",
            "How long reconciles took.",
            name,
            {(it.name,): it.worked for it in self._engine.controllers},
        )
        yield _counter(
            "reconciles",
            "Reconciles by result: success, waiting (for something that is no failure), failure "
            "(of a request), defect (of the bridge).",
            ("name", "result"),
            _by_part({it.name: it.results for it in self._engine.controllers}),
        )

    def _kubelet_api(self) -> Iterator[Metric]:
        yield _gauge(
            "streams",
            "Open streams of the kubelet API.",
            ("kind",),
            {(kind,): count for kind, count in self._server.streams.counts.items()},
        )
        yield _counter(
            "stream_bytes",
            "Bytes that streams have carried: in from the caller, out to the caller.",
            ("kind", "direction"),
            {(kind, way): n for (kind, way), n in self._server.streams.bytes.items()},
        )
        yield _counter(
            "reviews",
            "Answers to who calls the kubelet API and whether they may: asked of home's API "
            "server, or remembered.",
            ("kind", "answer"),
            self._server.reviews,
        )
        yield _counter(
            "scrapes",
            "Answers on what pods use: complete, or partial where a kubelet of the remote (or its "
            "metrics API) was silent.",
            ("path", "result"),
            self._metrics.scrapes,
        )


def _by_part(counters: Mapping[str, Mapping[str, int]]) -> dict[_Labels, int]:
    """The counters of several parts, with the part as the first label."""
    return {(part, key): count for part, it in counters.items() for key, count in it.items()}


def _numbers(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    told: str,
    labels: _Labels,
    values: Mapping[_Labels, int],
) -> Metric:
    family = kind(f"cluster_bridge_{name}", told, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


_gauge = functools.partial(_numbers, GaugeMetricFamily)
_counter = functools.partial(_numbers, CounterMetricFamily)


def _histogram(
    name: str, told: str, labels: _Labels, values: Mapping[_Labels, Histogram]
) -> Metric:
    family = HistogramMetricFamily(f"cluster_bridge_{name}", told, labels=labels)
    bounds = [*(str(bound) for bound in Histogram.BOUNDS), "+Inf"]
    for key, histogram in values.items():
        # Prometheus' buckets hold all that is at most their bound.
        sums = itertools.accumulate(histogram.counts)
        family.add_metric(key, list(zip(bounds, sums, strict=True)), histogram.total)
    return family
