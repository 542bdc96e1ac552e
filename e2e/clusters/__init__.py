"""Two real Kubernetes clusters from one call, with Docker (kind) or without it (native).

    from e2e.clusters import Settings, specs, up, down, find

    clusters = up(specs(["home", "remote"]), Settings())
    clusters["home"].kubectl("get", "nodes")
    down(["home", "remote"], Settings())

Contract:

- `up` returns when all nodes of all clusters are Ready, a pod can be created, and (on real nodes)
  names resolve. It leaves a running cluster unchanged, but starts its stopped components.
- Pods of any cluster reach pods of any other, and the host, by address.
- `down` leaves no process, network namespace, interface, mount, rule or cgroup.
- Both may be interrupted anywhere: the next `up` or `down` finds and removes the remains.
- Sets of clusters with different prefixes share nothing but the cache of built programs.
- Failures raise a `ClusterError` with what failed, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from e2e.clusters import go_recipes, kind, native
from e2e.clusters.cluster import (
    DEFAULT_NAMES,
    DEFAULT_PREFIX,
    Backend,
    Cluster,
    ClusterSpec,
    Nodes,
    Progress,
    Settings,
    silent,
)
from e2e.clusters.cluster_record import Record, read_all
from e2e.clusters.errors import ClusterError, InvalidRequest
from e2e.clusters.go_build import locked, programs
from e2e.clusters.versions import KubernetesVersion

__all__ = [
    "DEFAULT_NAMES",
    "DEFAULT_PREFIX",
    "Backend",
    "Cluster",
    "ClusterError",
    "ClusterSpec",
    "InvalidRequest",
    "KubernetesVersion",
    "Nodes",
    "Settings",
    "build",
    "down",
    "find",
    "specs",
    "up",
]


def specs(
    names: Iterable[str] = DEFAULT_NAMES,
    *,
    nodes: Nodes = Nodes.REAL,
    node_count: int = 1,
    dns: bool = True,
) -> list[ClusterSpec]:
    """Specifications of clusters that differ in nothing but their names."""
    return [ClusterSpec(name, nodes, node_count, dns) for name in dict.fromkeys(names)]


def up(
    wanted: Sequence[ClusterSpec], settings: Settings | None = None, say: Progress = silent
) -> dict[str, Cluster]:
    """Starts these clusters and returns them by name, in the given order.

    :raises ClusterError: a cluster cannot be started; see `e2e.clusters.errors`.
    """
    settings = settings or Settings()
    backend = choose(settings, wanted)
    with _lock(settings):
        return _BACKENDS[backend].up(settings, wanted, say)


def build(settings: Settings | None = None, say: Progress = silent) -> None:
    """Builds what `up` and the core of the end-to-end tests use, so that no test waits for a build.

    :raises ClusterError: a program cannot be built.
    """
    settings = settings or Settings()
    if choose(settings, specs()) is Backend.NATIVE:
        native.provision(settings, specs(), say)
    programs(go_recipes.add_ons(), settings.cache, say)


def down(
    names: Iterable[str] | None = None, settings: Settings | None = None, say: Progress = silent
) -> None:
    """Stops and removes clusters of the set (default: all). Absent clusters are not an error.

    :raises ClusterError: something could not be removed.
    """
    settings = settings or Settings()
    if not settings.state.exists():
        return
    with _lock(settings):
        wanted = list(read_all(settings) if names is None else names)
        for backend in _BACKENDS.values():
            records = read_all(settings)
            own = [n for n in wanted if n in records and _BACKENDS[records[n].backend] is backend]
            if own or (backend is native and not records):
                backend.down(settings, own, say)


def find(settings: Settings | None = None) -> dict[str, Cluster]:
    """The clusters of the set that came up and were not taken down, by name."""
    settings = settings or Settings()
    return {
        name: _BACKENDS[record.backend].find(settings, record)
        for name, record in read_all(settings).items()
        if record.ready and record.this_boot
    }


def choose(settings: Settings, wanted: Sequence[ClusterSpec]) -> Backend:
    """Returns the backend for these clusters: that of the set's existing clusters, if it has any.

    :raises InvalidRequest: the requested backend does not support such nodes, or differs from the
        backend of the set.
    """
    simulated = any(spec.nodes is Nodes.SIMULATED for spec in wanted)
    several = any(spec.several_real for spec in wanted)
    present = {record.backend for record in read_all(settings).values()}
    if present and settings.backend not in {Backend.AUTO, *present}:
        raise InvalidRequest(
            f"the clusters of this set run on the backend {present.pop()}",
            where=f"--backend {settings.backend}",
            next_step="take them down first, or take another --prefix",
        )
    if settings.backend is Backend.KIND and simulated:
        raise InvalidRequest(
            "kind has no simulated nodes", next_step="take --backend native for these"
        )
    if present:
        found = present.pop()
    elif settings.backend is not Backend.AUTO:
        found = settings.backend
    else:
        found = Backend.KIND if not simulated and kind.available() else Backend.NATIVE
    if found is Backend.NATIVE and several:
        raise InvalidRequest(
            "a native cluster has one real node", next_step="take --backend kind for several"
        )
    return found


def _lock(settings: Settings) -> AbstractContextManager[None]:
    return locked(settings.state_root / f".{settings.prefix}.lock")


class _Module(Protocol):
    """The functions of each backend's module."""

    def up(
        self, settings: Settings, specs: Sequence[ClusterSpec], say: Progress
    ) -> dict[str, Cluster]: ...

    def down(self, settings: Settings, names: Iterable[str], say: Progress) -> None: ...

    def find(self, settings: Settings, record: Record) -> Cluster: ...


_BACKENDS: dict[Backend, _Module] = {Backend.KIND: kind, Backend.NATIVE: native}
