"""Connections to ports of the bridge, carried to pods of a remote by port-forwards."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.base.settings import PortRange, RelaySettings
from bridge.relay.forward import connections as connections_module
from bridge.relay.forward.service_listeners import ServiceListeners
from bridge.relay.metrics import RelayMetrics
from sync.cache.store import Key
from sync.kube.credentials import ClientConfig
from sync.relay.forward import PortUnavailableError
from tests.bridge.kubelet.fakes import Asked, FakeRemote, access_for, until
from tests.bridge.relay import fake_pods
from tests.bridge.relay.fake_pods import Forward, Pod, answer_at, at_work, playing, server_frame
from translators.objects import RemoteUid
from translators.relay import forward as relay
from translators.relay.forward import Backend, EndpointPort, ForwardPlan

WEB = Key("shop", "web")
HERE = "127.0.0.1"


def plan(*names: str, affinity: float | None = None) -> ForwardPlan:
    """One port of a Service with these pods."""
    behind = tuple(Backend("shop-h", name, RemoteUid(f"uid-{name}"), 8080) for name in names)
    return ForwardPlan({"http": behind} if behind else {}, affinity)


class Relay:
    """Listeners at work, before a remote."""

    def __init__(self, remote: FakeRemote, asked: RelaySettings) -> None:
        self.remote = remote
        self.measures = RelayMetrics()
        self.told: list[tuple[Key, str]] = []
        self.listeners = ServiceListeners(
            access_for(remote.url, "remote"), address=HERE, settings=asked, metrics=self.measures
        )

    def limited(self, key: Key, why: str) -> None:
        self.told.append((key, why))

    async def serve(self, wanted: ForwardPlan, key: Key = WEB) -> dict[EndpointPort, int]:
        return await self.listeners.serve(key, wanted, {})

    async def ask(self, port: int, data: bytes = b"who?") -> bytes:
        """What a client gets that asks once. Raises ConnectionResetError."""
        return await answer_at(HERE, port, data)


@asynccontextmanager
async def relaying(asked: RelaySettings | None = None, **played: Pod) -> AsyncIterator[Relay]:
    """A relay to these pods."""
    async with FakeRemote() as remote:
        playing(remote, played)
        made = Relay(remote, asked or RelaySettings())
        async with at_work(made.listeners, made.limited, made.measures):
            yield made


async def test_connections_are_spread_over_pods_and_answered() -> None:
    named = fake_pods.says_its_name
    async with relaying(a=named, b=named, c=named) as made:
        found = await made.serve(plan("a", "b", "c"))
        assert sorted(found) == [
            EndpointPort("http", 0),
            EndpointPort("http", 1),
            EndpointPort("http", 2),
        ]
        ports = [*found.values()]
        answers = [await made.ask(port) for port in ports * 3]
        assert Counter(answers) == {b"a": 3, b"b": 3, b"c": 3}
        asked = made.remote.asked[0]
        assert asked.target.endswith("/portforward?ports=8080")
        assert asked.target.startswith("/api/v1/namespaces/shop-h/pods/")
        await until(lambda: made.measures.results["done"] == 9)
        assert made.measures.dials == {"ok": 9}
        assert made.measures.bytes == {"in": 9 * 4, "out": 9}


async def test_large_bodies_go_through_both_ways_unchanged() -> None:
    body = bytes(range(256)) * 20_000
    async with relaying(a=fake_pods.echoes) as made:
        (port,) = (await made.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        got = b""
        async with asyncio.timeout(30):
            writer.write(body)
            while len(got) < len(body):
                got += await reader.read(1 << 20)
        assert got == body
        writer.close()


async def test_a_client_that_ends_its_direction_still_gets_its_answer() -> None:
    async def late(forward: Forward) -> None:
        await forward.receive()
        await asyncio.sleep(0.1)
        await forward.send(b"late")
        await forward.close()

    async with relaying(a=late) as made:
        (port,) = (await made.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x")
        writer.write_eof()
        async with asyncio.timeout(5):
            assert await reader.read() == b"late"
        writer.close()


async def test_the_rest_of_an_answer_comes_after_the_clients_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "LINGERING_TIMEOUT", 0.2)

    async def in_parts(forward: Forward) -> None:
        await forward.receive()
        await forward.send(b"first")
        await asyncio.sleep(1.5)
        await forward.send(b"late")
        await forward.close()

    async with relaying(RelaySettings(per_service=10), a=in_parts) as made:
        (port,) = (await made.serve(plan("a"))).values()

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(HERE, port)
            writer.write(b"x")
            assert await reader.readexactly(5) == b"first"
            writer.write_eof()
            rest = await reader.read()
            writer.close()
            return rest

        async with asyncio.timeout(10):
            assert await ask() == b"late"
            answers = await asyncio.gather(ask(), ask())
        assert sorted(answers) == [b"", b"late"], "there is room for one that waits so long"


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_a_pod_says_first_is_not_lost(goes_on: bool) -> None:
    """Though it comes together with the answer to the port-forward, before there is a tunnel."""
    greeting, close = server_frame(2, b"\x00hello "), server_frame(8, b"\x03\xe8")

    async def greets(asked: Asked) -> None:
        forward = Forward(asked, "a", 8080)
        await asked.send(forward.opening() + greeting + (b"" if goes_on else close))
        if goes_on:
            await forward.send(await forward.receive())
            await forward.close()

    async with relaying(a=fake_pods.waits) as made:
        made.remote.play = greets
        (port,) = (await made.serve(plan("a"))).values()
        assert await made.ask(port, b"world") == (b"hello world" if goes_on else b"hello ")


async def test_a_pod_to_which_there_is_no_way_is_passed_over() -> None:
    async with relaying(b=fake_pods.says_its_name) as made:
        ports = await made.serve(plan("gone", "b"))
        answers = [await made.ask(port) for port in [*ports.values()] * 3]
        assert set(answers) == {b"b"}
        assert made.measures.dials["failed"] <= 1, "then it is avoided"


async def test_where_there_is_no_way_at_all_the_client_is_reset() -> None:
    async with relaying() as made:
        (port, _) = (await made.serve(plan("a", "b"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.measures.results == {"no-way": 1}


async def test_where_no_pod_is_ready_any_more_the_client_is_reset() -> None:
    async with relaying(a=fake_pods.says_its_name) as made:
        (port,) = (await made.serve(plan("a"))).values()
        assert await made.serve(relay.NO_FORWARDING) == {}
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.measures.results == {"no-pod": 1}


async def test_a_port_on_which_nothing_listens_resets_the_client() -> None:
    async with relaying(a=fake_pods.refuses) as made:
        (port,) = (await made.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        await until(lambda: made.measures.results["failed"] == 1)


async def test_a_part_is_not_taken_for_the_whole() -> None:
    """The remote's API server goes down in the middle of an answer."""

    async def half(forward: Forward) -> None:
        await forward.receive()
        await forward.send(b"half of it")

    async with relaying(a=half) as made:
        (port,) = (await made.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)


class Nowhere(asyncio.Transport):
    """A connection of which there is nothing left."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class LostAtOnce:
    """A way to a pod that ends as it is taken, in order or not."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def take(self, protocol: asyncio.Protocol) -> None:
        protocol.connection_made(Nowhere())
        protocol.data_received(self._said)
        protocol.connection_lost(None)


async def test_a_way_that_is_lost_before_it_is_joined_ends_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = b""

    async def lost(access: ClientConfig, backend: Backend) -> LostAtOnce:
        return LostAtOnce(said)

    monkeypatch.setattr(connections_module, "open_port_forward", lost)
    async with relaying() as made:
        (port,) = (await made.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        said = server_frame(8, b"\x03\xe8")
        assert await made.ask(port, b"") == b""
        await until(lambda: made.measures.open == 0)
        assert made.measures.results == {"failed": 1, "done": 1}


async def test_what_is_open_outlives_its_pods_readiness() -> None:
    async with relaying(a=fake_pods.echoes) as made:
        (port,) = (await made.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"one")
        assert await reader.read(10) == b"one"
        await made.serve(relay.NO_FORWARDING)
        writer.write(b"two")
        assert await reader.read(10) == b"two"
        writer.close()


async def test_a_place_is_listened_on_for_a_while_and_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relaying(a=fake_pods.says_its_name, b=fake_pods.says_its_name) as made:
        monkeypatch.setattr(made.listeners, "_linger", 0.1)
        two = await made.serve(plan("a", "b"))
        one = await made.serve(plan("a"))
        assert one == {EndpointPort("http", 0): two[EndpointPort("http", 0)]}
        assert await made.ask(two[EndpointPort("http", 1)]) == b"a", "kube-proxy may not know yet"
        assert await made.serve(plan("a", "b")) == two
        await made.serve(plan("a"))
        await until(lambda: made.measures.listening == 1)
        with pytest.raises(ConnectionRefusedError):
            await made.ask(two[EndpointPort("http", 1)])


async def test_the_ports_of_before_are_asked_for_first() -> None:
    with socket.create_server((HERE, 0)) as taken, socket.create_server((HERE, 0)) as free:
        used, wish = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        async with relaying(a=fake_pods.says_its_name) as made:
            known = {EndpointPort("http", 0): wish, EndpointPort("http", 1): used}
            found = await made.listeners.serve(WEB, plan("a", "b"), known)
            assert found[EndpointPort("http", 0)] == wish
            assert found[EndpointPort("http", 1)] not in (used, 0)


async def test_a_range_of_ports_is_kept_to_and_its_end_is_told() -> None:
    with socket.create_server((HERE, 0)) as probe:
        first = probe.getsockname()[1]
    asked = RelaySettings(ports=PortRange(first, first))
    async with relaying(asked, a=fake_pods.says_its_name) as made:
        assert await made.serve(plan("a")) == {EndpointPort("http", 0): first}
        with pytest.raises(PortUnavailableError, match=f"{first}-{first}"):
            await made.serve(plan("a"), Key("shop", "other"))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (RelaySettings(connections=3), "namespace-limit"),
        (RelaySettings(per_service=2), "service-limit"),
    ],
)
async def test_more_connections_than_there_may_be_are_reset(asked: RelaySettings, why: str) -> None:
    async with relaying(asked, a=fake_pods.waits) as made:
        (port,) = (await made.serve(plan("a"))).values()
        held = [await asyncio.open_connection(HERE, port) for _ in range(2)]
        await until(lambda: made.measures.open == 2)
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.measures.results == {why: 1}
        for _, writer in held:
            writer.close()
        await until(lambda: made.measures.open == 0)


async def test_one_namespace_cannot_use_up_the_connections_of_others() -> None:
    """Nor by many Services; the limit of all holds as well."""
    async with relaying(RelaySettings(connections=4), a=fake_pods.waits) as made:
        (web,) = (await made.serve(plan("a"))).values()
        (api,) = (await made.serve(plan("a"), Key("shop", "api"))).values()
        (other,) = (await made.serve(plan("a"), Key("other", "web"))).values()
        (third,) = (await made.serve(plan("a"), Key("third", "web"))).values()
        held = [await asyncio.open_connection(HERE, port) for port in (web, api)]
        await until(lambda: made.measures.open == 2)
        with pytest.raises(ConnectionResetError):
            await made.ask(web)
        assert made.told == [
            (WEB, "namespace shop has 2 connections open, its share of 4 (--relay-connections)")
        ]
        held += [await asyncio.open_connection(HERE, port) for port in (other, third)]
        await until(lambda: made.measures.open == 4)
        with pytest.raises(ConnectionResetError):
            await made.ask(other)
        assert made.measures.results == {"namespace-limit": 1, "limit": 1}
        for _, writer in held:
            writer.close()
        await until(lambda: made.measures.open == 0)


async def test_one_namespace_cannot_use_up_the_listeners_of_others() -> None:
    async with relaying(RelaySettings(listeners=4), a=fake_pods.says_its_name) as made:
        assert made.measures.listening_limit == 4
        for name in ("one", "two"):
            await made.serve(plan("a"), Key("shop", name))
        with pytest.raises(PortUnavailableError, match=r"2 ports for namespace shop.*4 in all"):
            await made.serve(plan("a"), Key("shop", "three"))
        (port,) = (await made.serve(plan("a"), Key("other", "web"))).values()
        assert await made.ask(port) == b"a"
        await made.serve(plan("a"), Key("third", "web"))
        with pytest.raises(PortUnavailableError, match="listens on 4 ports, which is the limit"):
            await made.serve(plan("a"), Key("fourth", "web"))
        assert made.measures.listening == 4


async def test_a_listener_that_is_closed_makes_room_for_another() -> None:
    async with relaying(RelaySettings(listeners=1), a=fake_pods.says_its_name) as made:
        made.listeners._linger = 0.0
        await made.serve(plan("a"))
        await made.serve(plan())
        await until(lambda: made.measures.listening == 0)
        await made.serve(plan("a"), Key("other", "web"))


async def test_what_is_refused_is_told_of_its_service() -> None:
    async with relaying(RelaySettings(per_service=1), a=fake_pods.waits) as made:
        (port,) = (await made.serve(plan("a"))).values()
        _, writer = await asyncio.open_connection(HERE, port)
        await until(lambda: made.measures.open == 1)
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.told == [(WEB, "it has 1 connections open (--relay-service-connections)")]
        writer.close()


async def test_connections_that_come_too_fast_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "RATE_WAIT", 0.0)
    async with relaying(RelaySettings(service_rate=0.01), a=fake_pods.says_its_name) as made:
        (port,) = (await made.serve(plan("a"))).values()
        assert await made.ask(port) == b"a"
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await made.ask(port)
        assert made.measures.results["service-rate"] == 2
        assert made.told[0] == (
            WEB,
            "it gets more than 0.01 connections per second (--relay-service-rate)",
        )


async def test_connections_that_come_a_little_too_fast_wait() -> None:
    async with relaying(RelaySettings(service_rate=20), a=fake_pods.says_its_name) as made:
        (port,) = (await made.serve(plan("a"))).values()
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await asyncio.gather(*(made.ask(port) for _ in range(25)))
        assert found == [b"a"] * 25
        assert loop.time() - began > 0.2
        assert made.told == []


async def test_a_service_with_very_many_connections_does_not_keep_another_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rate in all is used up by one; the next turns are both's."""
    monkeypatch.setattr(connections_module, "SLOT_WAIT", 60.0)
    asked = RelaySettings(rate=20, service_rate=1000)
    async with relaying(asked, a=fake_pods.says_its_name, b=fake_pods.says_its_name) as made:
        (flood,) = (await made.serve(plan("a"))).values()
        (other,) = (await made.serve(plan("b"), Key("shop", "other"))).values()
        many = [asyncio.create_task(made.ask(flood)) for _ in range(60)]
        await until(lambda: made.measures.open > 30)
        assert await made.ask(other) == b"b"
        assert sum(task.done() for task in many) < 50, "it was before those that came first"
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)


async def test_one_service_does_not_take_anothers_room() -> None:
    asked = RelaySettings(per_service=1)
    async with relaying(asked, a=fake_pods.waits, b=fake_pods.says_its_name) as made:
        (full,) = (await made.serve(plan("a"))).values()
        (other,) = (await made.serve(plan("b"), Key("shop", "other"))).values()
        _, writer = await asyncio.open_connection(HERE, full)
        await until(lambda: made.measures.open == 1)
        assert await made.ask(other) == b"b"
        writer.close()


async def test_one_that_is_silent_for_too_long_is_closed() -> None:
    async with relaying(RelaySettings(idle=0.1), a=fake_pods.waits) as made:
        (port,) = (await made.serve(plan("a"))).values()
        assert await made.ask(port) == b""


async def test_a_client_that_goes_is_gone_in_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "ANSWERED_TIMEOUT", 0.5)
    gone = asyncio.Event()

    async def notices(forward: Forward) -> None:
        await forward.gone()
        gone.set()

    async with relaying(a=notices) as made:
        (port,) = (await made.serve(plan("a"))).values()
        _, writer = await asyncio.open_connection(HERE, port)
        await until(lambda: made.measures.dials["ok"] == 1)
        writer.transport.abort()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_a_slow_reader_stops_the_pod() -> None:
    sent = 0

    async def pours(forward: Forward) -> None:
        nonlocal sent
        await forward.receive()
        while True:
            await forward.send(b"x" * 65536)
            sent += 65536

    async with relaying(a=pours) as made:
        (port,) = (await made.serve(plan("a"))).values()
        reader, writer = await asyncio.open_connection(HERE, port, limit=1)
        writer.write(b"go")
        await reader.read(1)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 32 * 1024 * 1024, "more than the system's buffers hold"
        writer.transport.abort()


async def test_an_answer_that_is_no_port_forward_is_no_way() -> None:
    async with relaying() as made:

        async def other(asked: Asked) -> None:
            await asked.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")

        made.remote.play = other
        (port,) = (await made.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.measures.results == {"no-way": 1}


async def test_a_pod_that_is_not_reached_in_time_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.net.port_forward.OPEN_TIMEOUT", 0.1)
    monkeypatch.setattr(connections_module, "TRIES", 1)
    async with relaying() as made:

        async def silent(asked: Asked) -> None:
            await asked.gone()

        made.remote.play = silent
        (port,) = (await made.serve(plan("a"))).values()
        with pytest.raises(ConnectionResetError):
            await made.ask(port)
        assert made.measures.dials == {"failed": 1}
