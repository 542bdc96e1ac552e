"""Clusters without a network between their pods, as most pairs are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.cluster import Cluster


@contextmanager
def without_routes(home: Cluster, remote: Cluster) -> Iterator[None]:
    """Neither knows a way to the other's pods while the block runs."""
    _route(home, remote, routed=False)
    yield
    _route(home, remote, routed=True)


def _route(home: Cluster, remote: Cluster, *, routed: bool) -> None:
    for one, other in ((home, remote), (remote, home)):
        one.route_pods(other, routed=routed)
