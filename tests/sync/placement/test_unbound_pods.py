"""Placed pods that are not bound when their virtual node is lost."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.api_resources import NODES, PODS
from sync.placement import unbound_pods
from tests.sync.placement.placed_home import TIERS, Home


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unbound_pods, "LOST_SECONDS", 0.2)


def _exists(home: Home, name: str) -> bool:
    return home.api.find(PODS, name, "default") is not None and not home.ends(name)


@pytest.mark.parametrize("removed", [False, True], ids=["is lost", "is removed"])
async def test_unbound_pod_is_replaced_when_its_node(home: Home, removed: bool) -> None:
    home.policy(tiers=TIERS[1:])
    home.remote("c", 4000)
    home.remote("e", 4000, cls="expensive")
    home.pod("a", owner="web", kind="ReplicaSet")
    home.pod("runs", owner="web", kind="ReplicaSet")
    home.pod("once", owner="job")
    home.pod("alone")
    await home.placed(a="c", runs="c", once="c", alone="c")
    home.run("runs")
    if removed:
        home.api.remove(NODES, "c")
    else:
        home.lose("c")
    await home.api.until(lambda: not _exists(home, "a"))
    assert "its virtual node c was lost" in await home.event("PlacedNodeLost")
    home.pod("b", owner="web", kind="ReplicaSet")
    await home.placed(b="e")
    await asyncio.sleep(0.3)
    assert all(_exists(home, it) for it in ("runs", "once", "alone", "b"))


async def test_unbound_pod_stays_after_a_glitch(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unbound_pods, "LOST_SECONDS", 1.0)
    home.policy(tiers=TIERS[1:])
    home.remote("c", 4000)
    home.pod("a", owner="web", kind="ReplicaSet")
    await home.placed(a="c")
    for _ in range(2):
        home.lose("c")
        await asyncio.sleep(0.6)
        home.remote("c", 4000)
        await asyncio.sleep(0.2)
    assert _exists(home, "a")
