"""The placer at a fake home; the test plays home's scheduler, bridges and users."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import pytest

from sync.kube.api_resources import CONFIG_MAPS, NODES, PLACEMENT_POLICIES, PODS
from sync.placement import home_state
from tests import objects
from tests.sync.placement.placed_home import TIERS, Home
from translators.fit import published_room
from translators.placement import placed_pod
from translators.placement.decision import HOME
from translators.timestamps import format_time, parse_time


async def test_tiers_are_filled_in_order(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    home.remote("c", 2000)
    home.remote("e", 1000, cls="expensive")
    for name, choice in {"a": HOME, "b": "c", "d": "c", "e": "e"}.items():
        home.pod(name)
        await home.placed(**{name: choice})


async def test_burst_never_gets_more_room_than_there_is(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.remote("c", 2000, 1500)
    home.remote("e", 1000, cls="expensive")
    for number in range(8):
        home.pod(f"p{number}")
    await home.api.until(
        lambda: sorted(filter(None, (home.choice(f"p{it}") for it in range(8)))) == [*"ccce"]
    )
    assert "no node of the remote fits" in await home.event("WaitingForPlacement")


async def test_room_of_a_joining_remote_is_awaited(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.joining("c")
    home.remote("e", 4000, cls="expensive")
    home.pod("a")
    assert "has not published the remote's room yet" in await home.event("WaitingForPlacement")
    assert home.choice("a") is None
    home.room("c", 2000)
    await home.placed(a="c")


async def test_room_is_not_awaited_for_ever(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_state, "ROOM_SECONDS", 0.3)
    home.policy(tiers=TIERS[1:])
    home.joining("c")
    home.remote("e", 4000, cls="expensive")
    home.pod("a")
    await home.event("WaitingForPlacement")
    await home.placed(a="e")


async def test_room_of_an_earlier_node_of_the_name_is_ignored(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.remote("c", 2000)
    home.api.remove(NODES, "c")
    home.joining("c")
    home.pod("a")
    await home.event("WaitingForPlacement")
    assert home.choice("a") is None
    home.api.remove(CONFIG_MAPS, "room-c", published_room.NAMESPACE)
    home.room("c", 2000)
    await home.placed(a="c")


async def test_stopped_bridge_gives_no_room_twice(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its room shows pods that it has not seen as free."""
    home.policy(tiers=TIERS[1:])
    home.remote("c", 2000)
    home.pod("a")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    now = monotonic()
    monkeypatch.setattr(home_state, "monotonic", lambda: now + 120)
    home.room("c", 2000, 500)
    home.pod("b", "2")
    await home.event("WaitingForPlacement")
    assert home.choice("b") is None


async def test_offloading_limits_the_policy(home: Home) -> None:
    home.policy()
    home.node("worker", "9")
    home.remote("c", 1000)
    home.offload("remote-only")
    home.pod("a")
    await home.placed(a="c")
    home.pod("b")
    message = await home.event("WaitingForPlacement")
    assert "(home): namespace default is offloaded remote-only (bridge offload)" in message
    home.offload("local-only")
    await home.placed(b=HOME)


async def test_reason_names_the_pods_own_namespace(home: Home) -> None:
    """One policy for two offloaded namespaces, with equal pods."""
    home.policy(namespaces=["default", "other"])
    home.offload("remote-only")
    home.offload("remote-only", "other")
    home.pod("a")
    assert "namespace default is offloaded" in await home.event("WaitingForPlacement")
    home.api.put(placed_pod.gated(objects.pod("b", "other")))
    message = await home.event("WaitingForPlacement", "other")
    assert "namespace other is offloaded" in message


async def test_pod_that_fits_no_single_node_waits_for_room(home: Home) -> None:
    home.policy()
    home.remote("c", 2000, 2000, 2000)
    home.pod("big", "3")
    await home.event("WaitingForPlacement")
    assert home.choice("big") is None
    home.room("c", 2000, 4000)
    await home.placed(big="c")


async def test_unplaceable_pods_do_not_delay_a_small_one(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    for number in range(50):
        home.pod(f"big{number}", "64")
    home.pod("small")
    await home.placed(small="c")


async def test_waiting_pods_cost_no_requests(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    home.pod("big", "64")
    await home.event("WaitingForPlacement")
    home.api.clear_log()
    home.room("c", 1000)
    home.pod("small", "1")
    await home.placed(small="c")
    assert not [it for it in home.api.writes() if "/pods/big" in it.path]


async def test_refused_pod_goes_to_the_next_remote(home: Home) -> None:
    home.policy()
    home.remote("c", 4000)
    home.remote("e", 4000, cls="expensive")
    home.pod("a", owner="job")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    refused = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no GPU"}
    home.api.update(PODS, "a", {"status": refused}, "default")
    home.pod("b", owner="job")
    await home.placed(b="e")
    home.pod("other", owner="other")
    await home.placed(other="c")


async def test_pods_of_a_lost_remote_go_to_the_next_tier(home: Home) -> None:
    """Except a pod with data there: it waits for its remote."""
    home.policy(tiers=TIERS[1:])
    home.remote("c", 4000)
    home.remote("e", 4000, cls="expensive")
    home.volume("data", node="c")
    home.lose("c")
    mounted = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    home.pod("has-data", owner="db", kind="ReplicaSet", volumes=[mounted])
    home.pod("has-none", owner="web", kind="ReplicaSet")
    await home.placed(**{"has-none": "e"})
    reason = await home.event("WaitingForPlacement")
    assert "c: the node is not Ready: RemoteUnreachable" in reason
    assert "e: PersistentVolume" in reason
    assert home.choice("has-data") is None
    home.remote("c", 4000, minutes=0)
    await home.placed(**{"has-data": "c"})


async def test_ended_pod_gives_its_room_back(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    home.pod("a")
    await home.placed(a=HOME)
    home.api.bind("a", "worker", "default")
    home.pod("b")
    await home.event("WaitingForPlacement")
    home.api.update(PODS, "a", {"status": {"phase": "Succeeded"}}, "default")
    await home.placed(b=HOME)


async def test_max_wait_hands_the_pod_to_the_scheduler(home: Home) -> None:
    home.policy(maxWait="1m")
    home.remote("c", 1000)
    home.pod("big", "64")
    await home.event("WaitingForPlacement")
    home.now = format_time(parse_time(home.now) + timedelta(minutes=2))
    home.room("c", 1500)
    assert "maxWait" in await home.event("PlacementTimedOut")
    await home.api.until(lambda: not placed_pod.has_gate(home.api.get(PODS, "big", "default")))


async def test_pod_without_policy_is_released(home: Home) -> None:
    home.pod("a")
    await home.api.until(lambda: not placed_pod.has_gate(home.api.get(PODS, "a", "default")))


async def test_invalid_policy_and_room_are_ignored(home: Home) -> None:
    home.policy()
    home.api.put(PLACEMENT_POLICIES.manifest({"name": "bad"}, spec={"priority": 9}))
    home.remote("c", 4000)
    home.remote("x", 4000)
    room = home.api.get(CONFIG_MAPS, "room-x", published_room.NAMESPACE)
    home.api.put({**room, "data": {"room": "[{}]"}})
    home.pod("a")
    await home.placed(a="c")


async def test_room_that_accounts_for_a_pod_is_not_reduced_twice(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    home.pod("a")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    version = int(home.api.get(PODS, "a", "default")["metadata"]["resourceVersion"])
    home.pod("b", "2")
    await home.event("WaitingForPlacement")
    home.room("c", 2000, version=version)
    await home.placed(b="c")
