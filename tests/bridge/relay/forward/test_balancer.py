"""The choice of a pod for a connection."""

from __future__ import annotations

from collections import Counter

from bridge.relay.forward import balancer
from bridge.relay.forward.balancer import Balancer
from translators.object_accessors import RemoteUid
from translators.relay.forward_plan import Backend


def backends(*names: str) -> list[Backend]:
    return [Backend("shop-h", name, RemoteUid(f"uid-{name}"), 8080) for name in names]


def showing(*names: str, affinity: float | None = None) -> Balancer:
    made = Balancer()
    made.update(backends(*names), affinity)
    return made


def chosen(of: Balancer, client: str = "c", now: float = 0.0) -> str:
    found = of.pick(client, now)
    return found.name if found is not None else ""


def test_pods_take_turns() -> None:
    of = showing("a", "b", "c")
    assert Counter(chosen(of) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_pick_returns_none_without_pods() -> None:
    assert chosen(showing()) == ""
    of = showing("a")
    assert of.pick("c", 0.0, tried=backends("a")) is None


def test_client_with_affinity_keeps_its_pod() -> None:
    of = showing("a", "b", "c", affinity=10.0)
    first = {client: chosen(of, client) for client in "xyz"}
    assert set(first.values()) == {"a", "b", "c"}
    assert all(chosen(of, client, now=9.0) == pod for client, pod in first.items())
    # Since the last connection.
    assert all(chosen(of, client, now=18.0) == pod for client, pod in first.items())
    of.update(backends("a", "b"), 10.0)
    gone = next(client for client, pod in first.items() if pod == "c")
    moved = chosen(of, gone, now=19.0)
    assert moved in "ab"
    assert chosen(of, gone, now=20.0) == moved


def test_affinity_expires() -> None:
    of = showing("a", "b", affinity=10.0)
    first = chosen(of, "x")
    assert chosen(of, "x", now=11.0) != first


def test_failed_pod_is_avoided_for_a_while() -> None:
    of = showing("a", "b")
    (a, _) = backends("a", "b")
    of.mark_failed(a, now=0.0)
    assert {chosen(of, now=1.0) for _ in range(4)} == {"b"}
    assert {chosen(of, now=balancer.AVOID_SECONDS + 0.1) for _ in range(4)} == {"a", "b"}
    alone = showing("a")
    alone.mark_failed(a, now=0.0)
    assert chosen(alone, now=1.0) == "a"


def test_number_of_remembered_clients_is_bounded() -> None:
    of = showing("a", "b", affinity=1e9)
    first = chosen(of, client="first")
    assert {chosen(of, client="first") for _ in range(4)} == {first}, "it is remembered"
    for number in range(balancer.MAX_CLIENTS):
        chosen(of, client=str(number))
    assert chosen(of, client="first") != first, "it was forgotten, and takes its turn"
    assert chosen(of, client=str(number)) == chosen(of, client=str(number))
