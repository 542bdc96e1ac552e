"""Removes the routes between the clusters' pod networks, which most pairs of clusters lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.cluster import Cluster


@contextmanager
def without_routes(home: Cluster, remote: Cluster) -> Iterator[None]:
    """Neither cluster has a route to the other's pods while the block runs."""
    _route(home, remote, routed=False)
    yield
    _route(home, remote, routed=True)


def _route(home: Cluster, remote: Cluster, *, routed: bool) -> None:
    for one, other in ((home, remote), (remote, home)):
        one.route_pods(other, routed=routed)
