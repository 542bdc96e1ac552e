"""Connections to pod addresses, each forwarded to its own pod.

All addresses of 127.0.0.0/8 are local, so the tests need no route.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.base.join_settings import RelaySettings
from bridge.relay.forward import rtnetlink
from bridge.relay.forward.service_listeners import ServiceListeners
from bridge.relay.relay_counters import RelayMetrics
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.relay.forward_controller import PortUnavailableError
from tests.bridge.kubelet.fake_api_servers import FakeRemote, access_for, wait_until
from tests.bridge.relay import fake_pods
from tests.bridge.relay.fake_pods import Pod, answer_at, at_work, serve_pods
from translators.object_accessors import RemoteUid
from translators.relay.forward_plan import Backend
from translators.relay.headless_forward_plan import ListenAddress
from translators.relay.ipam import IpNetwork

CIDR = "127.77.0.0/24"
A, B = "127.77.0.1", "127.77.0.2"
WEB, ADMIN = Key("shop", "web"), Key("shop", "admin")


class Routes:
    """Fakes the node's routes."""

    def __init__(self) -> None:
        self.ours: list[str] = []
        self.refuse: int = 0

    def add(self, to: IpNetwork) -> None:
        if self.refuse:
            raise OSError(self.refuse, "no")
        self.ours.append(str(to))

    def remove(self, to: IpNetwork) -> None:
        self.ours.remove(str(to))


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Routes:
    found = Routes()
    monkeypatch.setattr(rtnetlink, "add_local_route", found.add)
    monkeypatch.setattr(rtnetlink, "remove_local_route", found.remove)
    return found


class Relay:
    """Doors at work, before a remote."""

    def __init__(self, client: KubeClient, settings: RelaySettings) -> None:
        self.metrics = RelayMetrics()
        self.reported: list[tuple[Key, str]] = []
        self.listeners = ServiceListeners(
            client, address="127.0.0.1", settings=settings, metrics=self.metrics
        )
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]

    def limited(self, key: Key, why: str) -> None:
        self.reported.append((key, why))

    def to(self, address: str, name: str) -> dict[ListenAddress, Backend]:
        """A pod's one port, at its address."""
        uid = RemoteUid(f"uid-{name}")
        return {ListenAddress(address, self.port): Backend("shop-h", name, uid, self.port)}

    async def open(self, addresses: dict[ListenAddress, Backend], key: Key = WEB) -> None:
        assert self.listeners.pod_listeners is not None
        await self.listeners.pod_listeners.listen(key, addresses)

    async def ask(self, address: str) -> bytes:
        return await answer_at(address, self.port, b"who?")


@asynccontextmanager
async def relaying(settings: RelaySettings | None = None, **played: Pod) -> AsyncIterator[Relay]:
    """A relay to these pods, which has the range."""
    async with FakeRemote() as remote:
        serve_pods(remote, played)
        made = Relay(
            KubeClient(access_for(remote.url, "remote")), settings or RelaySettings(cidr=CIDR)
        )
        async with at_work(made.listeners, made.limited, made.metrics):
            yield made


async def test_each_address_leads_to_its_own_pod_only(routes: Routes) -> None:
    named = fake_pods.respond_with_name
    async with relaying(a=named, b=named) as made:
        assert routes.ours == [CIDR]
        await made.open(made.to(A, "a") | made.to(B, "b"))
        assert [await made.ask(it) for it in (A, B, A, B)] == [b"a", b"b", b"a", b"b"]
        assert (made.metrics.listening, made.metrics.addresses) == (2, 2)
        await wait_until(lambda: made.metrics.results["done"] == 4)

        await made.open(made.to(B, "b"))
        with pytest.raises(ConnectionRefusedError):
            await made.ask(A)
        assert await made.ask(B) == b"b"
        assert (made.metrics.listening, made.metrics.addresses) == (1, 1)
    assert routes.ours == [], "the range goes with the bridge"


async def test_recreated_pod_keeps_its_address(routes: Routes) -> None:
    async with relaying(new=fake_pods.respond_with_name) as made:
        await made.open(made.to(A, "old"))
        with pytest.raises(ConnectionResetError):
            await made.ask(A)
        await made.open(made.to(A, "new"))
        assert await made.ask(A) == b"new"


async def test_two_services_share_one_port_of_a_pod(routes: Routes) -> None:
    async with relaying(a=fake_pods.respond_with_name) as made:
        await asyncio.gather(made.open(made.to(A, "a")), made.open(made.to(A, "a"), ADMIN))
        assert made.metrics.listening == 1
        await made.open({})
        assert await made.ask(A) == b"a", "the other still has it"
        await made.open({}, ADMIN)
        with pytest.raises(ConnectionRefusedError):
            await made.ask(A)


async def test_connections_count_against_their_service(routes: Routes) -> None:
    settings = RelaySettings(cidr=CIDR, service_connections=1)
    async with relaying(settings, a=fake_pods.stay_silent, b=fake_pods.stay_silent) as made:
        await made.open(made.to(A, "a") | made.to(B, "b"))
        _, writer = await asyncio.open_connection(A, made.port)
        await wait_until(lambda: made.metrics.dials["ok"] == 1)
        with pytest.raises(ConnectionResetError):
            await made.ask(B)
        assert made.metrics.results == {"service-limit": 1}
        assert [key for key, _ in made.reported] == [WEB]
        writer.close()


async def test_port_taken_on_the_node_is_reported(routes: Routes) -> None:
    async with relaying() as made:
        with (
            socket.create_server(("0.0.0.0", made.port)),
            pytest.raises(PortUnavailableError) as refused,
        ):
            await made.open(made.to(A, "a"))
        assert f"port {made.port} of {A}" in str(refused.value)
        assert "at all addresses" in str(refused.value)
        await made.open(made.to(A, "a"))
        assert made.metrics.listening == 1


async def test_nothing_listens_without_the_route(routes: Routes) -> None:
    routes.refuse = errno.EPERM
    async with relaying() as made:
        with pytest.raises(PortUnavailableError, match="CAP_NET_ADMIN"):
            await made.open(made.to(A, "a"))
        await made.open({})
