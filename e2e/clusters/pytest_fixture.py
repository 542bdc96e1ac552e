"""The pytest fixture `clusters`: the clusters of the command line, once per test session.

Import it in a conftest.py. Clusters that were up before stay up; clusters that the fixture
started are removed at the end of the session. Environment variables:

    CLUSTER_BRIDGE_E2E_PREFIX      the set of clusters to use (cb); a worker of pytest-xdist adds
                                   its number, so that each has a separate set
    CLUSTER_BRIDGE_E2E_BACKEND     auto, kind or native (auto)
    CLUSTER_BRIDGE_E2E_NODE_IMAGE  image of kind's nodes, as for --node-image (auto)
    CLUSTER_BRIDGE_E2E_KUBERNETES  Kubernetes version, as for --kubernetes, or one for each cluster:
                                   home=1.34,remote=1.36
    CLUSTER_BRIDGE_E2E_NODES       real, or simulated=N (real)
    CLUSTER_BRIDGE_E2E_KEEP        not empty: keep started clusters for the next session

Tests whose clusters cannot be started fail and are never skipped: a run that passes without its
clusters would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from e2e.clusters import (
    DEFAULT_PREFIX,
    Backend,
    Cluster,
    ClusterSpec,
    KubernetesVersion,
    Settings,
    down,
    find,
    specs,
    up,
)
from e2e.clusters.cluster import parse_nodes
from e2e.clusters.versions import DEFAULT_KUBERNETES, parse_versions

_VARIABLE = "CLUSTER_BRIDGE_E2E_"


def settings_from_environment() -> Settings:
    """Settings from the environment variables above."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return Settings(
        prefix=_get("PREFIX", DEFAULT_PREFIX) + worker,
        backend=Backend(_get("BACKEND", Backend.AUTO)),
        kubernetes=next(iter(_versions().values())),
        node_image=_get("NODE_IMAGE", "auto"),
    )


def _versions() -> dict[str, KubernetesVersion]:
    return parse_versions(_get("KUBERNETES", DEFAULT_KUBERNETES))


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> Iterator[dict[str, Cluster]]:
    """The clusters `home` and `remote`, by name, with every node Ready."""
    nodes, count = parse_nodes(_get("NODES", "real"), 1)
    wanted = specs(nodes=nodes, node_count=count)
    with running(request, wanted, settings_from_environment()) as found:
        yield found


@contextmanager
def running(
    request: pytest.FixtureRequest, wanted: Sequence[ClusterSpec], settings: Settings
) -> Iterator[dict[str, Cluster]]:
    """Starts these clusters for the block, as the module's docstring describes; by name."""
    before = set(find(settings))
    versions = _versions()
    own = {spec.name: versions.get(spec.name, settings.kubernetes) for spec in wanted}
    capture = request.config.pluginmanager.getplugin("capturemanager")
    # A first start builds for minutes: show progress even if the output of tests is captured.
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        found: dict[str, Cluster] = {}
        for version in dict.fromkeys(own.values()):
            alike = [spec for spec in wanted if own[spec.name] == version]
            found |= up(alike, replace(settings, kubernetes=version), print)
    yield found
    started = [name for name in found if name not in before]
    if started and not _get("KEEP", ""):
        down(started, settings)


def _get(name: str, default: str) -> str:
    return os.environ.get(_VARIABLE + name) or default
