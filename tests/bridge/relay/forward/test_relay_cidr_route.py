"""The local route of `--relay-cidr`: its holder, stale routes, and conflicts.

The node's routes are faked; their effect is tested on real clusters
(`e2e/test_relay_headless.py`).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.relay.forward import relay_cidr_route as cidr_module
from bridge.relay.forward import rtnetlink
from bridge.relay.forward.relay_cidr_route import (
    LocalRoute,
    LocalRouteError,
    check_available,
    is_stale,
    remove_stale,
)
from bridge.relay.forward.rtnetlink import Route
from tests.bridge.kubelet.fake_api_servers import wait_until
from translators.relay.ipam import IpNetwork


class FakeNode:
    """Its routes."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.allows = True

    def has(self, to: str, *, ours: bool = False, gateway: bool = False) -> None:
        network = ipaddress.ip_network(to)
        self.routes.append(Route(network, is_local=ours, is_bridge_owned=ours, has_gateway=gateway))

    def ours(self) -> list[str]:
        return [str(it.destination) for it in self.routes if it.is_bridge_owned]

    def list_routes(self, version: int) -> list[Route]:
        return [it for it in self.routes if it.destination.version == version]

    def add_route(self, to: IpNetwork) -> None:
        if not self.allows:
            raise PermissionError(errno.EPERM, "no")
        if any(it.is_local and it.destination == to for it in self.routes):
            raise OSError(errno.EEXIST, "it is there")
        self.has(str(to), ours=True)

    def remove_route(self, to: IpNetwork) -> None:
        if not self.allows:
            raise PermissionError(errno.EPERM, "no")
        left = [it for it in self.routes if not (it.is_bridge_owned and it.destination == to)]
        if len(left) == len(self.routes):
            raise OSError(errno.ESRCH, "there is none")
        self.routes = left


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    found = FakeNode()
    monkeypatch.setattr(rtnetlink, "routes", found.list_routes)
    monkeypatch.setattr(rtnetlink, "add_local_route", found.add_route)
    monkeypatch.setattr(rtnetlink, "remove_local_route", found.remove_route)
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: found.allows)
    monkeypatch.setattr(cidr_module, "RETRY_SECONDS", 0.01)
    return found


@pytest.fixture
def cidr() -> str:
    """A different range per test, because the lock is visible on the whole node."""
    number = uuid.uuid4().int
    return f"10.{number % 256}.{number // 256 % 256}.0/24"


class Holding:
    """A bridge that wants the range, while the block runs."""

    def __init__(self, cidr: str) -> None:
        self.range = LocalRoute(cidr)

    async def __aenter__(self) -> LocalRoute:
        self._task = asyncio.create_task(self.range.hold())
        await asyncio.sleep(0)
        return self.range

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def test_route_exists_while_a_bridge_holds_it(node: FakeNode, cidr: str) -> None:
    async with Holding(cidr) as held:
        assert held.unavailable_reason == ""
        assert node.ours() == [cidr]
        assert not is_stale(cidr), "another process uses it"
        remove_stale(cidr)
        assert node.ours() == [cidr], "a running bridge keeps its route"
    assert held.unavailable_reason
    assert node.ours() == []


async def test_second_bridge_waits_for_the_range(node: FakeNode, cidr: str) -> None:
    async with Holding(cidr):
        async with Holding(cidr) as waiting:
            assert "another bridge on this node holds" in waiting.unavailable_reason
        assert node.ours() == [cidr], "a bridge that only waited must not remove the route"
        last = Holding(cidr)
        held = await last.__aenter__()
    await wait_until(lambda: held.unavailable_reason == "")
    assert node.ours() == [cidr]
    await last.__aexit__()


async def test_stale_route_is_taken_over(node: FakeNode, cidr: str) -> None:
    node.has(cidr, ours=True)
    assert is_stale(cidr)
    check_available(cidr)
    async with Holding(cidr) as held:
        assert held.unavailable_reason == ""
        assert node.ours() == [cidr]
    assert node.ours() == []


async def test_stale_route_can_be_removed(node: FakeNode, cidr: str) -> None:
    node.has("10.0.0.0/8", gateway=True)
    node.has(cidr, ours=True)
    remove_stale(cidr)
    assert [str(it.destination) for it in node.routes] == ["10.0.0.0/8"]
    remove_stale(cidr)
    node.has(cidr, ours=True)
    node.allows = False
    with pytest.raises(LocalRouteError, match="CAP_NET_ADMIN"):
        remove_stale(cidr)


async def test_route_of_others_is_not_touched(node: FakeNode, cidr: str) -> None:
    node.routes.append(
        Route(ipaddress.ip_network(cidr), is_local=True, is_bridge_owned=False, has_gateway=False)
    )
    async with Holding(cidr) as held:
        assert "through a route that no bridge created" in held.unavailable_reason
        node.routes.clear()
        await wait_until(lambda: held.unavailable_reason == "")
    assert node.ours() == []


async def test_route_removed_by_others_is_tolerated(node: FakeNode, cidr: str) -> None:
    async with Holding(cidr):
        node.routes.clear()


def test_unused_range_is_available(node: FakeNode) -> None:
    node.has("0.0.0.0/0", gateway=True)
    node.has("10.78.0.0/24")
    node.has("fd00::/8")
    node.has("10.77.0.0/24", gateway=True)  # As home's machines lead it to the bridge.
    check_available("10.77.0.0/24")


@pytest.mark.parametrize(
    "taken", ["10.77.0.0/16", "10.77.0.5/32", "10.0.0.0/8", "10.77.0.128/25", "10.77.0.0/24"]
)
def test_range_in_use_on_the_node_is_rejected(node: FakeNode, taken: str) -> None:
    node.has(taken)
    with pytest.raises(LocalRouteError, match=f"is in use: this node has a route to {taken}"):
        check_available("10.77.0.0/24")


def test_stale_route_of_another_range_does_not_conflict(node: FakeNode) -> None:
    node.has("10.77.0.0/16", ours=True)
    check_available("10.77.0.0/24")


def test_missing_capability_is_reported(node: FakeNode) -> None:
    node.allows = False
    with pytest.raises(LocalRouteError, match="CAP_NET_ADMIN"):
        check_available("10.77.0.0/24")


@given(
    st.ip_addresses().flatmap(lambda it: st.tuples(st.just(it), st.integers(0, it.max_prefixlen)))
)
def test_route_message_round_trips(
    given: tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int],
) -> None:
    network = ipaddress.ip_network(given, strict=False)
    assert rtnetlink.parse_route(rtnetlink.bridge_route_message(network)) == Route(
        network, is_local=True, is_bridge_owned=True, has_gateway=False
    )


def test_kernel_lists_the_loopback_route() -> None:
    assert any(
        it.is_local and it.destination.is_loopback and not it.is_bridge_owned
        for it in rtnetlink.routes(4)
    )


def test_can_change_routes_matches_the_capability() -> None:
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    has_it = bool(capabilities >> 12 & 1)  # CAP_NET_ADMIN (linux/capability.h)
    assert rtnetlink.can_change_routes(ipaddress.ip_network("198.51.100.0/24")) is has_it
    if not has_it:
        with pytest.raises(PermissionError):
            rtnetlink.remove_local_route(ipaddress.ip_network("198.51.100.0/24"))
