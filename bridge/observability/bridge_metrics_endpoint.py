"""Builds metric families for Prometheus, and serves them at ``/metrics``.

Families are collected when a client asks (`bridge.observability.metric_families`); nothing is
counted here. The process's own families (``process_*``, ``python_gc_*``) are those of
prometheus_client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

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


def gauge(series: str, description: str, values: float | Mapping[Any, float]) -> Metric:
    """A gauge. ``series`` is its name, with the names of its labels: ``bridge_up{side}``;
    ``values`` is the value, or the values by the value (or the tuple of values) of the labels."""
    return _family(GaugeMetricFamily, series, description, values)


def counter(series: str, description: str, values: float | Mapping[Any, float]) -> Metric:
    """A counter, as `gauge`; its samples are named ``NAME_total``."""
    return _family(CounterMetricFamily, series, description, values)


def histogram(series: str, description: str, values: Histogram | Mapping[Any, Histogram]) -> Metric:
    """A histogram, as `gauge`."""
    return _family(HistogramMetricFamily, series, description, values)


def _family(
    kind: Callable[..., GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily],
    series: str,
    description: str,
    values: Any,
) -> Metric:
    name, _, labels = series.removesuffix("}").partition("{")
    family = kind(name, description, labels=labels.split(",") if labels else [])
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        label_values = (key,) if isinstance(key, str) else key
        if isinstance(family, HistogramMetricFamily):
            bounds = [*map(str, value.bounds), "+Inf"]
            buckets = list(zip(bounds, itertools.accumulate(value.counts), strict=True))
            family.add_metric(label_values, buckets, value.total)
        else:
            family.add_metric(label_values, value)
    return family


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
