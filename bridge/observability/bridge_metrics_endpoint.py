"""Serves the bridge's metrics at ``/metrics``.

Families are collected when a client asks (`bridge.observability.metric_families`); nothing is
counted here. prometheus_client is imported at the first request: without Prometheus, a bridge does
not need it (`bridge.base.memory_savings`).
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from bridge.election.elector import LeaderElector
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.kubelet.server import KubeletServer
from bridge.pod_metrics.kubelet_metrics_endpoints import PodMetricsEndpoints
from bridge.relay.relay_counters import RelayMetrics
from sync.engine.engine import Engine
from translators.pod_metrics.exposition import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of one join that the families are collected from."""

    version: str
    engine: Engine
    server: KubeletServer
    pod_metrics: PodMetricsEndpoints
    election: LeaderElector
    relay: RelayMetrics


class MetricsEndpoint:
    """Handles ``/metrics`` with the sources of the last `expose`."""

    def __init__(self) -> None:
        self._sources: MetricSources | None = None

    @property
    def route(self) -> Route:
        return Route("/metrics", frozenset({"GET"}), self._serve, is_node_independent=True)

    def expose(self, sources: MetricSources) -> None:
        """Replaces the sources."""
        self._sources = sources

    async def _serve(self, _: RoutedRequest) -> web.StreamResponse:
        from bridge.observability import metric_exposition
        from bridge.observability.metric_families import BridgeCollector

        if self._sources is None:
            raise RuntimeError("the server starts after the first `expose`")
        body = metric_exposition.render(BridgeCollector(self._sources))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
