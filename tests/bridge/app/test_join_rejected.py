"""Output of a join process that is rejected once its caches are filled."""

from __future__ import annotations

import pytest

from tests.bridge.join_process import join_process
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import EngineHarness

#: Starting processes takes long on a busy machine.
pytestmark = pytest.mark.timeout(120)


async def test_join_under_another_home_name_ends_with_one_error(encrypted: Clusters) -> None:
    harness = EngineHarness(encrypted.home, encrypted.remote)
    async with join_process(encrypted) as first:
        await first.wait_for_output("is registered")
        harness.pod("web")
        await encrypted.remote.until(lambda: harness.remote_pod("web"))
        await first.stop()
    async with join_process(encrypted, home_name="other") as refused:
        assert await refused.wait_for_exit() == 1
    lines = refused.stderr.splitlines()
    assert "join with the previous ones, or remove the pods first" in lines[-1]
    assert [line for line in lines[:-1] if not line.startswith(("✓ ", "! ", "… "))] == []
