"""Assignment of addresses to pods."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.relay import ipam
from translators.relay.ipam import AddressPool, PodName

SMALL = ipaddress.ip_network("10.77.0.0/29")

pods = st.builds(PodName, st.sampled_from(["shop", "bank"]), st.sampled_from("abcdefghi"))
addresses = st.integers(-1, 8).map(lambda it: str(SMALL.network_address + it)) | st.just("x")
#: Operations in any order: allocate, release, or restore from a slice.
steps = st.lists(
    st.tuples(st.just("of"), pods, st.none())
    | st.tuples(st.just("give back"), pods, st.none())
    | st.tuples(st.just("keep"), pods, addresses),
    max_size=60,
)


@given(steps)
def test_addresses_are_unique_and_stable(steps: list[tuple[str, PodName, str | None]]) -> None:
    book = AddressPool(SMALL)
    held: dict[PodName, str] = {}
    for what, pod, known_address in steps:
        if what == "of":
            address = book.allocate(pod)
            if address is None:
                assert pod not in held
                assert len(held) == ipam.pool_size(SMALL) == 6, "only if the pool is exhausted"
                continue
            assert held.setdefault(pod, address) == address, "the address is stable"
        elif what == "keep":
            assert known_address is not None
            if book.restore(pod, known_address):
                assert held.setdefault(pod, known_address) == known_address
        else:
            assert book.release(pod) == (held.pop(pod, None) is not None)
        assert len(set(held.values())) == len(held) == len(book)
        usable = [str(it) for it in SMALL.hosts()]
        assert set(held.values()) <= set(usable)


@given(st.lists(pods, unique=True, max_size=6))
def test_addresses_survive_a_restart(known: list[PodName]) -> None:
    before = AddressPool(SMALL)
    known_address = {pod: before.allocate(pod) for pod in known}
    after = AddressPool(SMALL)
    for pod, address in known_address.items():
        assert address is not None
        assert after.restore(pod, address)
    assert {pod: after.allocate(pod) for pod in reversed(known)} == known_address


@pytest.mark.parametrize("cidr", ["10.77.0.0/24", "fd00:77::/112"])
def test_re_created_pod_gets_its_address_again(cidr: str) -> None:
    network = ipaddress.ip_network(cidr)
    one, other = AddressPool(network), AddressPool(network)
    first = one.allocate(PodName("shop", "web-0"))
    assert first is not None
    assert ipaddress.ip_address(first) in network
    one.allocate(PodName("shop", "web-1"))
    assert one.release(PodName("shop", "web-0"))
    assert one.allocate(PodName("shop", "web-0")) == first
    assert other.allocate(PodName("shop", "web-0")) == first, "the address depends only on the name"
    assert other.allocate(PodName("bank", "web-0")) != first


def test_avoided_addresses_are_assigned_last() -> None:
    natural = AddressPool(SMALL).allocate(PodName("shop", "web-0"))
    pool = AddressPool(SMALL)
    assert pool.allocate(PodName("shop", "web-0"), lambda address: address == natural) != natural
    for number in range(1, 6):
        assert pool.allocate(PodName("shop", f"web-{number}"), lambda _: True)
    assert pool.allocate(PodName("shop", "web-6"), lambda _: True) is None


def test_address_of_another_range_is_not_restored() -> None:
    book = AddressPool(SMALL)
    pod = PodName("shop", "web-0")
    for known_address in (
        "10.78.0.1",
        "10.77.0.0",
        "10.77.0.7",
        "fd00::1",
        "010.077.0.1",
        "nothing",
    ):
        assert not book.restore(pod, known_address), known_address
    assert book.restore(pod, "10.77.0.5")
    assert book.restore(pod, "10.77.0.5"), "the pod already has it"
    assert not book.restore(PodName("shop", "web-1"), "10.77.0.5"), "another pod has it"
