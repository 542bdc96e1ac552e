"""Connections to ports of the bridge, forwarded to pods in the remote by port-forwards."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.base.join_settings import PortRange, RelaySettings
from bridge.net import port_forward_sessions, splice
from bridge.relay.forward import remote_pod_connections as connections_module
from bridge.relay.forward import service_listeners
from bridge.relay.forward.service_listeners import ServiceListeners
from bridge.relay.relay_counters import RelayMetrics
from sync.cache.store import Key
from sync.kube import sockets
from sync.kube.client import KubeClient
from sync.relay.forward_controller import PortUnavailableError
from tests.bridge.kubelet.fake_api_servers import (
    FakeRemote,
    UpgradeRequest,
    access_for,
    drop_packets,
    respond,
    wait_until,
)
from tests.bridge.relay import fake_pods
from tests.bridge.relay.fake_pods import (
    AnyForward,
    Forward,
    Pod,
    answer_at,
    at_work,
    serve_pods,
    server_frame,
)
from translators.object_accessors import RemoteUid
from translators.relay import forward_plan as forward_translator
from translators.relay.forward_plan import Backend, EndpointPort, ForwardPlan

WEB = Key("shop", "web")
HERE = "127.0.0.1"


def plan(*names: str, affinity: float | None = None) -> ForwardPlan:
    """One port of a Service with these pods."""
    behind = tuple(Backend("shop-h", name, RemoteUid(f"uid-{name}"), 8080) for name in names)
    return ForwardPlan({"http": behind} if behind else {}, affinity)


class Relay:
    """Listeners at work, before a remote."""

    def __init__(self, remote: FakeRemote, settings: RelaySettings) -> None:
        self.remote = remote
        self.metrics = RelayMetrics()
        self.reported: list[tuple[Key, str]] = []
        self.listeners = ServiceListeners(
            KubeClient(access_for(remote.url, "remote")),
            address=HERE,
            settings=settings,
            metrics=self.metrics,
        )

    def limited(self, key: Key, why: str) -> None:
        self.reported.append((key, why))

    async def serve(self, wanted: ForwardPlan, key: Key = WEB) -> dict[EndpointPort, int]:
        return await self.listeners.serve(key, wanted, {})

    async def ask(self, port: int, data: bytes = b"who?") -> bytes:
        """Sends one request and returns the response. Raises ConnectionResetError."""
        return await answer_at(HERE, port, data)


@pytest.fixture(autouse=True, params=["spdy", "websocket"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The protocol of the remote's port-forwards."""
    monkeypatch.setattr(fake_pods, "speaks_spdy", request.param == "spdy")
    return str(request.param)


@asynccontextmanager
async def relaying(settings: RelaySettings | None = None, **played: Pod) -> AsyncIterator[Relay]:
    """A relay to these pods."""
    async with FakeRemote() as remote:
        serve_pods(remote, played)
        relay = Relay(remote, settings or RelaySettings())
        async with at_work(relay.listeners, relay.limited, relay.metrics):
            yield relay


async def test_connections_are_balanced_over_pods(protocol: str) -> None:
    named = fake_pods.respond_with_name
    async with relaying(a=named, b=named, c=named) as relay:
        found = await relay.serve(plan("a", "b", "c"))
        assert sorted(found) == [
            EndpointPort("http", 0),
            EndpointPort("http", 1),
            EndpointPort("http", 2),
        ]
        ports = [*found.values()]
        answers = [await relay.ask(port) for port in ports * 3]
        assert Counter(answers) == {b"a": 3, b"b": 3, b"c": 3}
        request = relay.remote.requests[-1]
        query = "?ports=8080" if protocol == "websocket" else ""
        assert request.target.endswith(f"/portforward{query}")
        assert request.target.startswith("/api/v1/namespaces/shop-h/pods/")
        await wait_until(lambda: relay.metrics.results["done"] == 9)
        assert relay.metrics.dials == {"ok": 9}
        assert relay.metrics.bytes == {"in": 9 * 4, "out": 9}


async def test_large_bodies_are_forwarded_unchanged_in_both_directions() -> None:
    body = bytes(range(256)) * 20_000
    async with relaying(a=fake_pods.echo_data) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        got = b""
        async with asyncio.timeout(30):
            writer.write(body)
            while len(got) < len(body):
                got += await reader.read(1 << 20)
        assert got == body
        writer.close()


async def test_half_closed_client_still_gets_its_response() -> None:
    async def late(forward: AnyForward) -> None:
        await forward.receive()
        await asyncio.sleep(0.1)
        await forward.send(b"late")
        await forward.close()

    async with relaying(a=late) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x")
        writer.write_eof()
        async with asyncio.timeout(30):
            assert await reader.read() == b"late"
        writer.close()


async def in_parts(forward: AnyForward) -> None:
    """Answers in two parts, the second after a pause."""
    await forward.receive()
    await forward.send(b"first")
    await asyncio.sleep(1.5)
    await forward.send(b"late")
    await forward.close()


async def ask(port: int) -> bytes:
    """Sends a request and EOF after the first part; returns the second, or "reset"."""
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(b"x")
    assert await reader.readexactly(5) == b"first"
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


async def test_response_continues_after_the_clients_eof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "LINGERING_TIMEOUT", 0.2)

    async with relaying(RelaySettings(service_connections=10), a=in_parts) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        async with asyncio.timeout(10):
            assert await ask(port) == b"late"
            answers = await asyncio.gather(ask(port), ask(port))
        assert sorted(answers) == [b"late", b"reset"], "there is room for one that waits so long"


async def test_lingering_connections_of_a_namespace_shorten_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "LINGERING_TIMEOUT", 0.2)

    async with relaying(RelaySettings(service_connections=10), a=in_parts) as relay:
        (many,) = (await relay.serve(plan("a"))).values()
        (one,) = (await relay.serve(plan("a"), Key("other", "web"))).values()
        lingering = [asyncio.create_task(ask(many)) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert await ask(one) == b"late"
        await asyncio.gather(*lingering)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_first_bytes_of_a_pod_are_not_lost(goes_on: bool) -> None:
    """Though it comes together with the answer to the port-forward, before there is a tunnel."""
    greeting, close = server_frame(2, b"\x00hello "), server_frame(8, b"\x03\xe8")

    async def greets(request: UpgradeRequest) -> None:
        if request.method == "POST":
            await respond(request, 400, b"no SPDY here")
            return
        forward = Forward(request, "a", 8080)
        await request.send(forward.opening() + greeting + (b"" if goes_on else close))
        if goes_on:
            await forward.send(await forward.receive())
            await forward.close()

    async with relaying(a=fake_pods.stay_silent) as relay:
        relay.remote.handler = greets
        (port,) = (await relay.serve(plan("a"))).values()
        assert await relay.ask(port, b"world") == (b"hello world" if goes_on else b"hello ")


async def test_unreachable_pod_is_skipped() -> None:
    async with relaying(b=fake_pods.respond_with_name) as relay:
        ports = await relay.serve(plan("gone", "b"))
        answers = [await relay.ask(port) for port in [*ports.values()] * 3]
        assert set(answers) == {b"b"}
        assert relay.metrics.dials["failed"] <= 1, "then it is avoided"


async def test_client_is_reset_if_no_pod_is_reachable() -> None:
    async with relaying() as relay:
        (port, _) = (await relay.serve(plan("a", "b"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.metrics.results == {"no-way": 1}


async def test_client_is_reset_if_no_pod_is_ready() -> None:
    async with relaying(a=fake_pods.respond_with_name) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        assert await relay.serve(forward_translator.NO_FORWARDING) == {}
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.metrics.results == {"no-pod": 1}


async def test_client_is_reset_if_the_pods_port_is_closed() -> None:
    async with relaying(a=fake_pods.refuse) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        await wait_until(lambda: relay.metrics.results["failed"] == 1)


async def test_client_is_reset_if_the_response_is_cut_short() -> None:
    """The remote's API server goes down in the middle of an answer."""

    async def half(forward: AnyForward) -> None:
        await forward.receive()
        await forward.send(b"half of it")
        await forward.cut()

    async with relaying(a=half) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod that answers every client in part. The first connection to it then is dead: the remote
    gets no more packets, which the bridge detects after a second."""
    monkeypatch.setattr(sockets, "USER_TIMEOUT_MILLISECONDS", 1000)
    monkeypatch.setattr(splice, "CHECK_INTERVAL", 0.1)
    dead: list[AnyForward] = []

    async def answer(forward: AnyForward) -> None:
        while await forward.receive():
            await forward.send(b"part")
            if not dead:
                dead.append(forward)
                await asyncio.sleep(0.1)  # for the acknowledgement
                drop_packets(forward.request.writer)

    return answer


@pytest.mark.real_time  # the kernel's timers
async def test_client_is_reset_if_the_remote_acknowledges_nothing_any_more(dies: Pod) -> None:
    async with relaying(a=dies) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"who?")
        assert await reader.readexactly(4) == b"part"
        await asyncio.sleep(0.2)
        writer.write(b"and?")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await wait_until(lambda: relay.metrics.results["failed"] == 1)


@pytest.mark.real_time  # the kernel's timers
async def test_dead_connection_of_the_remote_serves_no_other_client(dies: Pod) -> None:
    """Nor while it is not known to be dead, and its client has given up."""
    async with relaying(a=dies) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"who?")
        assert await reader.readexactly(4) == b"part"
        await asyncio.sleep(0.2)
        writer.write(b"and?")
        await asyncio.sleep(0.5)
        writer.transport.abort()
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(HERE, port)
            writer.write(b"who?")
            assert await reader.readexactly(4) == b"part"
            writer.close()


class Nowhere(asyncio.Transport):
    """A connection of which there is nothing left."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class LostAtOnce:
    """A port-forward that ends at once, in order or not."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, protocol: asyncio.Protocol) -> None:
        protocol.connection_made(Nowhere())
        protocol.data_received(self._data)
        protocol.connection_lost(None)


async def test_client_is_reset_if_the_port_forward_is_lost_before_splicing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake_pods, "speaks_spdy", False)
    data = b""

    async def lost(client: KubeClient, backend: Backend) -> LostAtOnce:
        return LostAtOnce(data)

    monkeypatch.setattr(port_forward_sessions, "open_port_forward", lost)
    async with relaying(a=fake_pods.stay_silent) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        data = server_frame(8, b"\x03\xe8")
        assert await relay.ask(port, b"") == b""
        await wait_until(lambda: relay.metrics.open == 0)
        assert relay.metrics.results == {"failed": 1, "done": 1}


async def test_open_connection_outlives_pod_readiness() -> None:
    async with relaying(a=fake_pods.echo_data) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"one")
        assert await reader.read(10) == b"one"
        await relay.serve(forward_translator.NO_FORWARDING)
        writer.write(b"two")
        assert await reader.read(10) == b"two"
        writer.close()


async def test_unpublished_port_lingers_and_can_be_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relaying(a=fake_pods.respond_with_name, b=fake_pods.respond_with_name) as relay:
        monkeypatch.setattr(service_listeners, "LINGER", 0.1)
        two = await relay.serve(plan("a", "b"))
        one = await relay.serve(plan("a"))
        assert one == {EndpointPort("http", 0): two[EndpointPort("http", 0)]}
        assert await relay.ask(two[EndpointPort("http", 1)]) == b"a", "kube-proxy may not know yet"
        assert await relay.serve(plan("a", "b")) == two
        await relay.serve(plan("a"))
        await wait_until(lambda: relay.metrics.listening == 1)
        with pytest.raises(ConnectionRefusedError):
            await relay.ask(two[EndpointPort("http", 1)])


async def test_previous_ports_are_requested_first() -> None:
    with socket.create_server((HERE, 0)) as taken, socket.create_server((HERE, 0)) as free:
        used, wish = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        async with relaying(a=fake_pods.respond_with_name) as relay:
            known = {EndpointPort("http", 0): wish, EndpointPort("http", 1): used}
            found = await relay.listeners.serve(WEB, plan("a", "b"), known)
            assert found[EndpointPort("http", 0)] == wish
            assert found[EndpointPort("http", 1)] not in (used, 0)


async def test_previous_port_outside_the_systems_range_is_not_used() -> None:
    """A user can forge the slice that names it."""
    async with relaying(a=fake_pods.respond_with_name) as relay:
        forged = {EndpointPort("http", 0): 8099}
        assert (await relay.listeners.serve(WEB, plan("a"), forged)) != forged


async def test_port_range_is_respected_and_its_exhaustion_reported() -> None:
    with socket.create_server((HERE, 0)) as probe:
        first = probe.getsockname()[1]
    settings = RelaySettings(ports=PortRange(first, first))
    async with relaying(settings, a=fake_pods.respond_with_name) as relay:
        assert await relay.serve(plan("a")) == {EndpointPort("http", 0): first}
        with pytest.raises(PortUnavailableError, match=f"{first}-{first}"):
            await relay.serve(plan("a"), Key("shop", "other"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (RelaySettings(connections=3), "namespace-limit"),
        (RelaySettings(service_connections=2), "service-limit"),
    ],
)
async def test_connections_beyond_the_limit_are_reset(settings: RelaySettings, why: str) -> None:
    async with relaying(settings, a=fake_pods.stay_silent) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        held = [await asyncio.open_connection(HERE, port) for _ in range(2)]
        await wait_until(lambda: relay.metrics.open == 2)
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.metrics.results == {why: 1}
        for _, writer in held:
            writer.close()
        await wait_until(lambda: relay.metrics.open == 0)


async def test_namespace_cannot_use_up_all_connections() -> None:
    """Nor by many Services; the limit of all holds as well."""
    async with relaying(RelaySettings(connections=4), a=fake_pods.stay_silent) as relay:
        (web,) = (await relay.serve(plan("a"))).values()
        (api,) = (await relay.serve(plan("a"), Key("shop", "api"))).values()
        (other,) = (await relay.serve(plan("a"), Key("other", "web"))).values()
        (third,) = (await relay.serve(plan("a"), Key("third", "web"))).values()
        held = [await asyncio.open_connection(HERE, port) for port in (web, api)]
        await wait_until(lambda: relay.metrics.open == 2)
        with pytest.raises(ConnectionResetError):
            await relay.ask(web)
        assert relay.reported == [(WEB, "namespace shop has 2 connections open, its share of 4")]
        held += [await asyncio.open_connection(HERE, port) for port in (other, third)]
        await wait_until(lambda: relay.metrics.open == 4)
        with pytest.raises(ConnectionResetError):
            await relay.ask(other)
        assert relay.metrics.results == {"namespace-limit": 1, "limit": 1}
        for _, writer in held:
            writer.close()
        await wait_until(lambda: relay.metrics.open == 0)


async def test_namespace_cannot_use_up_all_listeners() -> None:
    async with relaying(RelaySettings(listeners=4), a=fake_pods.respond_with_name) as relay:
        assert relay.metrics.listening_limit == 4
        for name in ("one", "two"):
            await relay.serve(plan("a"), Key("shop", name))
        with pytest.raises(PortUnavailableError, match=r"2 ports for namespace shop.*4 in all"):
            await relay.serve(plan("a"), Key("shop", "three"))
        (port,) = (await relay.serve(plan("a"), Key("other", "web"))).values()
        assert await relay.ask(port) == b"a"
        await relay.serve(plan("a"), Key("third", "web"))
        with pytest.raises(PortUnavailableError, match="listens on 4 ports, which is the limit"):
            await relay.serve(plan("a"), Key("fourth", "web"))
        assert relay.metrics.listening == 4


async def test_closed_listener_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_listeners, "LINGER", 0.0)
    async with relaying(RelaySettings(listeners=1), a=fake_pods.respond_with_name) as relay:
        await relay.serve(plan("a"))
        await relay.serve(plan())
        await wait_until(lambda: relay.metrics.listening == 0)
        await relay.serve(plan("a"), Key("other", "web"))


async def test_rejection_is_reported_for_its_service() -> None:
    async with relaying(RelaySettings(service_connections=1), a=fake_pods.stay_silent) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        _, writer = await asyncio.open_connection(HERE, port)
        await wait_until(lambda: relay.metrics.open == 1)
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.reported == [(WEB, "it has 1 connections open, the limit of a Service")]
        writer.close()


async def test_connections_beyond_the_rate_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "RATE_WAIT", 0.0)
    async with relaying(RelaySettings(service_rate=0.01), a=fake_pods.respond_with_name) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        assert await relay.ask(port) == b"a"
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await relay.ask(port)
        assert relay.metrics.results["service-rate"] == 2
        assert relay.reported[0] == (
            WEB,
            "it gets more than 0.01 connections per second",
        )


async def test_connections_slightly_beyond_the_rate_wait() -> None:
    async with relaying(RelaySettings(service_rate=20), a=fake_pods.respond_with_name) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await asyncio.gather(*(relay.ask(port) for _ in range(25)))
        assert found == [b"a"] * 25
        assert loop.time() - began > 0.2
        assert relay.reported == []


async def test_flooded_service_does_not_delay_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rate in all is used up by one; the next turns are both's."""
    monkeypatch.setattr(connections_module, "SLOT_WAIT", 60.0)
    settings = RelaySettings(rate=20, service_rate=1000)
    async with relaying(
        settings, a=fake_pods.respond_with_name, b=fake_pods.respond_with_name
    ) as relay:
        (flood,) = (await relay.serve(plan("a"))).values()
        (other,) = (await relay.serve(plan("b"), Key("shop", "other"))).values()
        many = [asyncio.create_task(relay.ask(flood)) for _ in range(60)]
        await wait_until(lambda: relay.metrics.open > 30)
        assert await relay.ask(other) == b"b"
        assert sum(task.done() for task in many) < 50, "it was before those that came first"
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)


async def test_many_services_of_a_namespace_do_not_delay_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "SLOT_WAIT", 60.0)
    settings = RelaySettings(rate=20, service_rate=1000)
    async with relaying(
        settings, a=fake_pods.respond_with_name, b=fake_pods.respond_with_name
    ) as relay:
        ports: list[int] = []
        for number in range(30):
            ports += (await relay.serve(plan("a"), Key("many", f"s{number}"))).values()
        (other,) = (await relay.serve(plan("b"), Key("shop", "other"))).values()
        many = [asyncio.create_task(relay.ask(port)) for port in ports for _ in range(2)]
        await wait_until(lambda: relay.metrics.open > 30)
        assert await relay.ask(other) == b"b"
        assert sum(task.done() for task in many) < 35, "it was before Services that came first"
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)


async def test_service_limit_leaves_capacity_for_others() -> None:
    settings = RelaySettings(service_connections=1)
    async with relaying(settings, a=fake_pods.stay_silent, b=fake_pods.respond_with_name) as relay:
        (full,) = (await relay.serve(plan("a"))).values()
        (other,) = (await relay.serve(plan("b"), Key("shop", "other"))).values()
        _, writer = await asyncio.open_connection(HERE, full)
        await wait_until(lambda: relay.metrics.open == 1)
        assert await relay.ask(other) == b"b"
        writer.close()


async def test_idle_connection_is_reset() -> None:
    async with relaying(RelaySettings(idle=0.1), a=fake_pods.stay_silent) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)


async def test_client_close_reaches_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "ANSWERED_TIMEOUT", 0.5)
    gone = asyncio.Event()

    async def notices(forward: AnyForward) -> None:
        await forward.gone()
        gone.set()

    async with relaying(a=notices) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        _, writer = await asyncio.open_connection(HERE, port)
        await wait_until(lambda: relay.metrics.dials["ok"] == 1)
        writer.transport.abort()
        async with asyncio.timeout(30):
            await gone.wait()


async def test_slow_client_applies_back_pressure_to_the_pod() -> None:
    sent = 0

    async def pours(forward: AnyForward) -> None:
        nonlocal sent
        await forward.receive()
        while True:
            await forward.send(b"x" * 65536)
            sent += 65536

    async with relaying(a=pours) as relay:
        (port,) = (await relay.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port, limit=1)
        writer.write(b"go")
        await reader.read(1)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 32 * 1024 * 1024, "more than the system's buffers hold"
        writer.transport.abort()


async def test_response_without_port_forward_is_a_failed_dial() -> None:
    async with relaying() as relay:

        async def other(request: UpgradeRequest) -> None:
            await request.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")

        relay.remote.handler = other
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.metrics.results == {"no-way": 1}


async def test_port_forward_timeout_is_a_failed_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.net.port_forward_connection.OPEN_TIMEOUT", 0.1)
    monkeypatch.setattr(connections_module, "TRIES", 1)
    async with relaying() as relay:

        async def silent(request: UpgradeRequest) -> None:
            await request.wait_closed()

        relay.remote.handler = silent
        (port,) = (await relay.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await relay.ask(port)
        assert relay.metrics.dials == {"failed": 1}
