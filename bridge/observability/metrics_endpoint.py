"""``/metrics``: renders declared metric families (`bridge.observability.metric_families`) for
Prometheus.

Families are read when a client asks; nothing is counted here. The process's own families
(``process_*``, ``python_gc_*``) are those of prometheus_client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from bridge.kubelet.routing import Route, RoutedRequest
from sync.base.histograms import Histogram
from translators.pod_metrics.exposition import CONTENT_TYPE

Source = TypeVar("Source")
#: Names of labels, or their values in the same order.
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family(Generic[Source]):
    """A metric family: its description, and how to read its values from a source."""

    name: str
    description: str
    labels: Labels
    collect: Callable[[Source], Metric]


def gauge(
    name: str, description: str, labels: Labels, read: Callable[[Source], Mapping[Labels, float]]
) -> Family[Source]:
    """Declares a gauge; ``read`` returns the values by label values."""
    return _numbers(GaugeMetricFamily, name, description, labels, read)


def counter(
    name: str, description: str, labels: Labels, read: Callable[[Source], Mapping[Labels, float]]
) -> Family[Source]:
    """Declares a counter; its samples are named ``NAME_total``."""
    return _numbers(CounterMetricFamily, name, description, labels, read)


def _numbers(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    description: str,
    labels: Labels,
    read: Callable[[Source], Mapping[Labels, float]],
) -> Family[Source]:
    def collect(source: Source) -> Metric:
        family = kind(name, description, labels=labels)
        for values, number in read(source).items():
            family.add_metric(values, number)
        return family

    return Family(name, description, labels, collect)


def histogram(
    name: str,
    description: str,
    labels: Labels,
    read: Callable[[Source], Mapping[Labels, Histogram]],
) -> Family[Source]:
    """Declares a histogram; ``read`` returns the histograms by label values."""

    def collect(source: Source) -> Metric:
        family = HistogramMetricFamily(name, description, labels=labels)
        for values, it in read(source).items():
            bounds = [*(str(bound) for bound in it.bounds), "+Inf"]
            cumulative = itertools.accumulate(it.counts)
            family.add_metric(values, list(zip(bounds, cumulative, strict=True)), it.total)
        return family

    return Family(name, description, labels, collect)


class _Families(Collector, Generic[Source]):
    def __init__(self, families: Sequence[Family[Source]], source: Source) -> None:
        self._families = families
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """All families with their current values."""
        return (family.collect(self._source) for family in self._families)


class MetricsEndpoint:
    """Handles ``/metrics`` with the families of the last `expose`."""

    def __init__(self) -> None:
        self._exposed: Collector | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    @property
    def route(self) -> Route:
        """The route for the kubelet API."""
        return Route("/metrics", frozenset({"GET"}), self._serve, is_node_independent=True)

    def expose(self, families: Sequence[Family[Source]], source: Source) -> None:
        """Replaces the families, and the source of their values."""
        if self._exposed is not None:
            self._registry.unregister(self._exposed)
        self._exposed = _Families(families, source)
        self._registry.register(self._exposed)

    async def _serve(self, _: RoutedRequest) -> web.StreamResponse:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE}
        )
