"""Output of a join process that is rejected once its caches are filled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bridge.process import bridge
from tests.bridge.two_clusters import Clusters, clusters
from tests.fakeapi import Authority, FakeApi
from tests.sync.world import World

#: Processes are started: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[Clusters]:
    """Two clusters with TLS."""
    authority = Authority(tmp_path)
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=tls) as home, FakeApi(tls=tls) as remote:
        yield clusters(home, remote, tmp_path)


async def test_join_under_another_home_name_ends_with_one_error(
    encrypted: Clusters,
) -> None:
    world = World(encrypted.home, encrypted.remote)
    async with bridge(encrypted) as first:
        await first.says("is registered")
        world.pod("web")
        await encrypted.remote.until(lambda: world.remote_pod("web"))
        await first.stop()
    async with bridge(encrypted, home_name="other") as refused:
        assert await refused.ended() == 1
    lines = refused.said.splitlines()
    assert "join with the previous ones, or remove the pods first" in lines[-1]
    assert [line for line in lines[:-1] if not line.startswith("✓ ")] == []
