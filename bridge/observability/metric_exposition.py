"""Builds metric families for Prometheus, and renders them in its text format.

The process's own families (``process_*``, ``python_gc_*``) are those of prometheus_client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from sync.base.histograms import Histogram


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


def render(collector: Collector) -> bytes:
    """The families of the process and of ``collector`` with their current values."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(collector)
    return generate_latest(registry)
