"""Serves the bridge's metrics at ``/metrics``.

Families are collected when a client asks (`bridge.observability.metric_families`); nothing is
counted here.
"""

from __future__ import annotations

from aiohttp import web

from bridge.kubelet.routing import Route, RoutedRequest
from bridge.observability import metric_exposition
from bridge.observability.metric_families import BridgeCollector, MetricSources
from translators.pod_metrics.exposition import CONTENT_TYPE


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
        if self._sources is None:
            raise RuntimeError("the server starts after the first `expose`")
        body = metric_exposition.render(BridgeCollector(self._sources))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
