"""No two clusters and no two sets share an address."""

from __future__ import annotations

import itertools
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.clusters.addresses import MAX_CLUSTERS, Plan, free_index, free_slot
from e2e.clusters.cluster import DEFAULT_NETWORK
from e2e.clusters.errors import InvalidRequest

SLOT = IPv4Network("10.213.0.0/16")


def test_ranges_of_a_full_set_do_not_overlap_and_stay_in_their_slot() -> None:
    plans = [Plan(SLOT, index) for index in range(MAX_CLUSTERS)]
    ranges = [plans[0].bridge.network]
    ranges += [network for plan in plans for network in (plan.pods, plan.services)]
    assert all(network.subnet_of(SLOT) for network in ranges)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(ranges, 2))


def test_nodes_are_neighbours_of_the_host() -> None:
    plans = [Plan(SLOT, index) for index in range(MAX_CLUSTERS)]
    assert len({plan.node.ip for plan in plans}) == MAX_CLUSTERS
    assert all(plan.node.network == plan.bridge.network for plan in plans)
    assert plans[0].host not in {plan.node.ip for plan in plans}
    assert str(plans[1].node) == "10.213.0.3/24"
    assert str(plans[1].api_service) == "10.213.144.1"


@given(st.sets(st.integers(0, 15), max_size=15))
def test_the_first_slot_that_nothing_touches_is_taken(taken: set[int]) -> None:
    slots = list(DEFAULT_NETWORK.subnets(new_prefix=16))
    # One used address makes the whole slot used.
    used = [next(iter(slots[index].subnets(new_prefix=32))) for index in taken]
    expected = min(set(range(16)) - taken)
    assert free_slot(DEFAULT_NETWORK, used) == slots[expected]


def test_a_route_that_covers_everything_leaves_no_slot() -> None:
    with pytest.raises(InvalidRequest, match="no free /16"):
        free_slot(DEFAULT_NETWORK, [IPv4Network("10.0.0.0/8")])


def test_the_lowest_free_index_is_taken_until_the_set_is_full() -> None:
    assert free_index([]) == 0
    assert free_index([0, 2]) == 1
    with pytest.raises(InvalidRequest, match="room for 7"):
        free_index(range(MAX_CLUSTERS))
