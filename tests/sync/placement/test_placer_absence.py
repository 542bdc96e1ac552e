"""A bridge releases held pods when no placer renews its Lease."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.api_resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
)
from sync.placement import placer_absence, placer_lease, room_publisher
from sync.placement.placer_absence import NO_PLACER
from tests import objects
from tests.sync.engine_harness import NODE, EngineHarness
from translators.object_accessors import Object
from translators.placement import placed_pod


@pytest.fixture
def watching(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> EngineHarness:
    """A harness whose bridge waits a moment for a placer; a pod is held."""
    monkeypatch.setattr(room_publisher, "SPACING", 0.01)
    monkeypatch.setattr(placer_absence, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(placer_absence, "ABSENT_SECONDS", 0.3)
    harness.publish_room = "on"
    harness.home.put(objects.node(NODE))
    harness.home.put(NAMESPACES.manifest({"name": placer_lease.NAMESPACE}))
    harness.home.put(placed_pod.gated(objects.pod("held")))
    return harness


def lease(renewed: str) -> Object:
    meta = {"name": placer_lease.NAME, "namespace": placer_lease.NAMESPACE}
    return LEASES.manifest(meta, spec={"holderIdentity": "placer", "renewTime": renewed})


def is_held(harness: EngineHarness) -> bool:
    return placed_pod.has_gate(harness.home.get(PODS, "held", "default"))


async def test_pods_are_released_once_the_lease_is_not_renewed(watching: EngineHarness) -> None:
    watching.home.put(lease("2030-01-01T00:00:00.000000Z"))
    await watching.start()
    await watching.home.until(lambda: not is_held(watching))
    [event] = await watching.events_with_reason(NO_PLACER)
    assert event["involvedObject"]["name"] == "held"


async def test_pods_stay_held_while_the_lease_is_renewed(watching: EngineHarness) -> None:
    watching.home.put(lease("2030-01-01T00:00:00.000000Z"))
    await watching.start()
    for second in range(8):
        watching.home.put(lease(f"2030-01-01T00:00:{second:02}.500000Z"))
        await asyncio.sleep(0.1)
        assert is_held(watching)


async def test_pods_stay_held_where_no_placer_ever_ran(watching: EngineHarness) -> None:
    await watching.start()
    await watching.home.until(
        lambda: len(watching.home.requests("GET", f"*/leases/{placer_lease.NAME}")) > 20
    )
    assert is_held(watching)


async def test_lease_is_not_read_where_home_has_no_policies(watching: EngineHarness) -> None:
    watching.publish_room = "auto"
    await watching.start()
    await watching.home.until(lambda: watching.home.open_watches(CUSTOM_RESOURCE_DEFINITIONS))
    await watching.settle()
    assert not watching.home.requests("GET", f"*/leases/{placer_lease.NAME}")
    assert watching.home.find(NODES, NODE) is not None
