"""Collects the metric families of the placer's process.

To add one: as in `bridge.observability.metric_families`; the row belongs to the placer's table of
docs/reference/metrics.md. Families with clients, watches and queues have the names that they have
in a bridge.

Labels with names of objects are limited to existing policies and virtual nodes, and in number
(`placement_counters.MAX_NAMED`): users who create pods can write any name into annotations.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bridge.base.version import version
from bridge.observability import controller_families
from bridge.observability.metric_exposition import counter, gauge, histogram
from bridge.placement.placer_report import PlacerReport
from sync.placement import placer_lease
from sync.placement.home_state import HomeState
from sync.placement.placement_counters import MAX_NAMED, PlacementCounters
from sync.placement.placer import Placer
from translators.object_accessors import name_of
from translators.placement.decision import HOME
from translators.placement.wait_reason import WAIT_REASONS

#: The value of the label ``lease``.
LEASE = f"{placer_lease.NAMESPACE}/{placer_lease.NAME}"
_OTHER = ("other", "other")


@dataclass(frozen=True, slots=True, eq=False)
class PlacerCollector(Collector):
    """Collects all families."""

    report: PlacerReport

    def collect(self) -> Iterator[Metric]:
        """All families with their current values, in the order of the response."""
        report = self.report
        yield gauge(
            "bridge_placement_build_info{version,python}",
            "Versions of the placer and of Python.",
            {(version(), platform.python_version()): 1},
        )
        yield gauge(
            "bridge_placement_leader{lease}",
            "1 while this process holds the Lease and places pods, 0 while it stands by.",
            {LEASE: int(report.is_leader)},
        )
        yield counter(
            "bridge_placement_leader_transitions{lease}",
            "How often this process acquired the Lease.",
            {LEASE: report.transitions},
        )
        yield from _present(report.placer)
        yield from _counted(report.counters)
        yield from controller_families.up(report.informers, ("home",))
        yield from controller_families.requests([report.home])
        yield from controller_families.watches([report.home], report.informers)
        yield from controller_families.work_queues(report.controllers)


def _present(placer: Placer | None) -> Iterator[Metric]:
    state = placer.state if placer is not None else HomeState()
    reasons = placer.waiting_pods.by_reason if placer is not None else Counter()
    yield gauge(
        "bridge_placement_policies{state}",
        "PlacementPolicies: valid, or invalid and ignored.",
        {"valid": len(state.policies), "invalid": len(state.invalid_policies)},
    )
    yield gauge(
        "bridge_placement_pods_waiting{reason}",
        "Pods that wait for the placer, by the reason of their last decision.",
        {it: reasons[it] for it in WAIT_REASONS},
    )
    yield gauge(
        "bridge_placement_oldest_wait_seconds",
        "Time since the creation of the pod that has waited the longest.",
        placer.oldest_wait() if placer is not None else 0.0,
    )
    yield gauge(
        "bridge_placement_pods{policy,place}",
        "Placed pods that have not ended, by policy and virtual node; (home) is home itself.",
        placed_pods(state),
    )


def placed_pods(state: HomeState) -> dict[tuple[str, str], int]:
    """The placed pods by policy and candidate; ``other`` for those that do not exist, and beyond
    the limit."""
    candidates = {HOME, *(name_of(it) for it in state.virtual_nodes())}
    found: Counter[tuple[str, str]] = Counter()
    for policy, counts in state.counts_by_policy().items():
        for candidate, count in counts.items():
            exists = policy in state.policies and candidate in candidates
            key = (policy, candidate)
            found[key if exists and len(found) < MAX_NAMED else _OTHER] += count
    return dict(found)


def _counted(counters: PlacementCounters) -> Iterator[Metric]:
    yield counter(
        "bridge_placement_placed{policy,place}",
        "Pods that this process placed, by policy and virtual node; (home) is home itself.",
        counters.placed.counts,
    )
    yield counter(
        "bridge_placement_released{reason}",
        "Pods that this process released to home's scheduler without a place.",
        counters.released,
    )
    yield counter(
        "bridge_placement_refused{node}",
        "Placed pods that a remote refused, by virtual node.",
        counters.refused.counts,
    )
    yield counter(
        "bridge_placement_evictions{reason,result}",
        "Evictions of pods, to return to an earlier tier or because their node was lost: done, or "
        "blocked by a PodDisruptionBudget or a failure.",
        counters.evicted,
    )
    yield histogram(
        "bridge_placement_wait_duration_seconds",
        "Time from the creation of pods until they were placed.",
        counters.wait,
    )
    yield histogram(
        "bridge_placement_bind_duration_seconds",
        "Time from then until home's scheduler had bound them.",
        counters.binding,
    )
