"""Which versions there are, as far as can be known from here."""

from __future__ import annotations

import pytest

from bridge import versions
from bridge.version import version
from bridge.versions import VersionSettings
from tests.bridge.clusters import CANARY, Clusters
from tests.bridge.joined import joined
from tests.sync.world import NODE


@pytest.mark.usefixtures("soon")
async def test_of_a_node_that_is_served(two: Clusters) -> None:
    two.remote.api.version = "v1.33.1"
    async with joined(two):
        found = await versions.versions(VersionSettings(two.settings.home))
    assert found["client"]["version"] == version()
    assert found["home"] == {"version": "v1.34.4", "problem": ""}
    [its] = found["nodes"]
    assert (its["name"], its["bridge"]) == (NODE, version())
    assert its["remote"] == {"version": "v1.33.1", "problem": ""}
    assert "(pid " in its["servedBy"]


async def test_a_home_that_is_away_is_told(two: Clusters) -> None:
    await two.home.stop()
    found = await versions.versions(VersionSettings(two.settings.home))
    assert found["nodes"] == []
    assert found["home"]["version"] == ""
    assert found["home"]["problem"]
    assert CANARY not in str(found)
