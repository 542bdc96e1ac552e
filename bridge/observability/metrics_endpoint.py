"""Builds metric families for Prometheus, and serves them at ``/metrics``.

Families are collected when a client asks (`bridge.observability.metric_families`); nothing is
counted here. The process's own families (``process_*``, ``python_gc_*``) are those of
prometheus_client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

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

V = TypeVar("V")
#: The value of the label, or the values of the labels in their order.
K = TypeVar("K", bound=str | tuple[str, ...])


def gauge(series: str, description: str, values: float | Mapping[K, float]) -> Metric:
    """A gauge; ``series`` is its name, with the names of its labels: ``bridge_up{side}``."""
    return _with_numbers(GaugeMetricFamily, series, description, values)


def counter(series: str, description: str, values: float | Mapping[K, float]) -> Metric:
    """A counter; its samples are named ``NAME_total``."""
    return _with_numbers(CounterMetricFamily, series, description, values)


def histogram(series: str, description: str, values: Histogram | Mapping[K, Histogram]) -> Metric:
    name, labels = _split(series)
    family = HistogramMetricFamily(name, description, labels=labels)
    for key, it in _by_labels(values):
        bounds = [*map(str, it.bounds), "+Inf"]
        cumulative = itertools.accumulate(it.counts)
        family.add_metric(key, list(zip(bounds, cumulative, strict=True)), it.total)
    return family


def _with_numbers(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    series: str,
    description: str,
    values: float | Mapping[K, float],
) -> Metric:
    name, labels = _split(series)
    family = kind(name, description, labels=labels)
    for key, value in _by_labels(values):
        family.add_metric(key, value)
    return family


def _split(series: str) -> tuple[str, list[str]]:
    name, _, labels = series.removesuffix("}").partition("{")
    return name, labels.split(",") if labels else []


def _by_labels(values: V | Mapping[Any, V]) -> Iterator[tuple[tuple[str, ...], V]]:
    if not isinstance(values, Mapping):
        yield (), values
        return
    for key, value in values.items():
        yield (key,) if isinstance(key, str) else key, value


class MetricsEndpoint:
    """Handles ``/metrics`` with the families of the collector of the last `expose`."""

    def __init__(self) -> None:
        self._exposed: Collector | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    @property
    def route(self) -> Route:
        return Route("/metrics", frozenset({"GET"}), self._serve, is_node_independent=True)

    def expose(self, collector: Collector) -> None:
        """Replaces the collector."""
        if self._exposed is not None:
            self._registry.unregister(self._exposed)
        self._exposed = collector
        self._registry.register(collector)

    async def _serve(self, _: RoutedRequest) -> web.StreamResponse:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE}
        )
