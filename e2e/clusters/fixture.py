"""The pytest fixture `clusters`: the same code as the command line, once for a test session.

Import it in a conftest.py. Clusters that were up before stay up; those that the fixture started
go down with the session. Environment variables say otherwise:

    CLUSTER_BRIDGE_E2E_PREFIX      the set of clusters to use (cb)
    CLUSTER_BRIDGE_E2E_BACKEND     auto, kind or native (auto)
    CLUSTER_BRIDGE_E2E_KUBERNETES  their version, as for --kubernetes
    CLUSTER_BRIDGE_E2E_NODES       real, or simulated=N (real)
    CLUSTER_BRIDGE_E2E_KEEP        not empty: leave up what was started, for the next session

Clusters that cannot be started are an error of every test that needs them, never a skip: a test
run that was green without its clusters would say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from e2e.clusters import (
    DEFAULT_PREFIX,
    Backend,
    Cluster,
    KubernetesVersion,
    Settings,
    down,
    find,
    specs,
    up,
)
from e2e.clusters.model import parse_nodes
from e2e.clusters.versions import DEFAULT_KUBERNETES

_VARIABLE = "CLUSTER_BRIDGE_E2E_"


def settings_from_environment() -> Settings:
    """Settings as the environment variables above say."""
    return Settings(
        prefix=_get("PREFIX", DEFAULT_PREFIX),
        backend=Backend(_get("BACKEND", Backend.AUTO)),
        kubernetes=KubernetesVersion.parse(_get("KUBERNETES", DEFAULT_KUBERNETES)),
    )


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> Iterator[dict[str, Cluster]]:
    """The clusters `home` and `remote`, by name, with every node Ready."""
    settings = settings_from_environment()
    nodes, count = parse_nodes(_get("NODES", "real"), 1)
    before = set(find(settings))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    # A first start builds for minutes: say so, whatever happens to the output of tests.
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        found = up(specs(nodes=nodes, node_count=count), settings, print)
    yield found
    started = [name for name in found if name not in before]
    if started and not _get("KEEP", ""):
        down(started, settings)


def _get(name: str, default: str) -> str:
    return os.environ.get(_VARIABLE + name) or default
