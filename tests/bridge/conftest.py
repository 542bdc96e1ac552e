"""Fixtures for whole commands: two clusters, and short delays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.base import join_settings
from bridge.node import node_controller
from sync.cache import watcher
from sync.cleanup import remote_inventory
from sync.runtime import workqueue
from tests.bridge.two_clusters import Clusters, clusters, tls_api
from tests.fakeapi import Authority, FakeApi
from tests.sync.informer_harness import ShortenedBackoff


@pytest.fixture
async def two(home_api: FakeApi, remote_api: FakeApi, tmp_path: Path) -> Clusters:
    """Home and a remote with their kubeconfigs."""
    return clusters(home_api, remote_api, tmp_path)


@pytest.fixture
async def tls_two(home_api: FakeApi, tmp_path: Path) -> AsyncIterator[Clusters]:
    """As `two`, with TLS in the remote, without which a kubeconfig's credential is not read."""
    async with tls_api(tmp_path) as remote:
        yield clusters(home_api, remote, tmp_path)


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[Clusters]:
    """As `two`, with TLS in both clusters."""
    authority = Authority(tmp_path)
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=tls) as home, FakeApi(tls=tls) as remote:
        yield clusters(home, remote, tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens delays before retries and after changes."""
    ShortenedBackoff(monkeypatch)
    monkeypatch.setattr(watcher, "SHORT_WATCH", 0.02)
    monkeypatch.setattr(node_controller, "SETTLE", 0.01)
    monkeypatch.setattr(workqueue, "RETRY_FIRST", 0.005)
    monkeypatch.setattr(remote_inventory, "POLL", 0.005)


@pytest.fixture
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has copies and remote namespaces deleted with the last pod that needs them."""
    monkeypatch.setattr(join_settings, "NAMESPACE_LINGER", 0.0)
