"""Families of Prometheus' metrics, made of plain numbers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from sync.base.histograms import Histogram

#: Names of labels, or their values.
Labels = tuple[str, ...]


def by_part(counters: Mapping[str, Mapping[str, int]]) -> dict[Labels, int]:
    """The counters of several parts, with the part as the first label."""
    return {(part, key): count for part, it in counters.items() for key, count in it.items()}


def _numbers(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    told: str,
    labels: Labels,
    values: Mapping[Labels, float],
) -> Metric:
    family = kind(name, told, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


gauge = functools.partial(_numbers, GaugeMetricFamily)
counter = functools.partial(_numbers, CounterMetricFamily)


def histogram(name: str, told: str, labels: Labels, values: Mapping[Labels, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, told, labels=labels)
    for key, it in values.items():
        bounds = [*(str(bound) for bound in it.bounds), "+Inf"]
        # Prometheus' buckets hold all that is at most their bound.
        sums = itertools.accumulate(it.counts)
        family.add_metric(key, list(zip(bounds, sums, strict=True)), it.total)
    return family
