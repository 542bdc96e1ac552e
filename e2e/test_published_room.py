"""A bridge publishes its remote's room at home as soon as something there decides by it."""

from __future__ import annotations

from e2e import placement_process
from e2e.conftest import Bridged
from e2e.kubectl import get, wait_for

NAMESPACE = "cluster-bridge"


def test_room_is_published_once_home_defines_policies(bridged: Bridged) -> None:
    """Without a restart, and much sooner than a bridge without the permission to watch asks."""
    assert _rooms(bridged) == []
    with placement_process.installed(bridged.home):
        wait_for(lambda: _rooms(bridged) == [bridged.node], "the room is published", seconds=50)


def _rooms(bridged: Bridged) -> list[str]:
    """This bridge, if it publishes."""
    found = get(bridged.home, "configmaps", namespace=NAMESPACE, selector="cluster-bridge.io/room")
    name = f"room-{bridged.node}"
    return [bridged.node for it in found if it["metadata"]["name"] == name]
