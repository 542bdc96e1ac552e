"""The messages about datagrams that a bridge and a relay agent accept from each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from bridge.base.version import version
from bridge.relay.reverse import control_messages as messages
from bridge.relay.reverse.datagram_stream import DatagramStream, Flow, packed_address
from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.bridge.relay.fake_pods import Forward, serve_pods
from tests.bridge.relay.reverse.reverse_world import HERE, POD, SHOP, ReverseWorld, relayed
from tests.bridge.relay.reverse.udp_world import (
    PATIENCE,
    Client,
    first_answer,
    free_udp_port,
    named,
    route,
    serve,
    udp_pod,
)
from translators.relay.reverse_plan import HomeTarget, ReverseRoute


async def open_stream(
    back: ReverseWorld, first_line: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the agent's control port, by someone who may open port-forwards."""
    reader, writer = await asyncio.open_connection(HERE, back.relay.control_port)
    writer.write(first_line)
    return reader, writer


@pytest.mark.parametrize("token", ["", "guessed", None, 1])
async def test_stream_without_the_token_is_rejected(token: object) -> None:
    async with relayed() as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            reader, writer = await open_stream(back, messages.encode(datagrams=token))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            assert await client.ask(b"1") == b"a:1", "the bridge's stream stays"


async def test_agent_sends_only_to_clients_that_sent_to_it() -> None:
    async with relayed() as back:
        port = free_udp_port()
        control, writer = await open_stream(back, messages.encode(control=messages.VERSION))
        hello = orjson.loads(await control.readline())
        writer.write(messages.encode(listen=[], listen_datagrams=[port]))
        listening = orjson.loads(await control.readline())
        assert listening == {"listening": [], "listening_datagrams": [port]}
        received: list[tuple[Flow, bytes]] = []
        loop = asyncio.get_running_loop()
        stream = DatagramStream(
            lambda _, flow, datagram: received.append((flow, datagram)),
            preface=messages.encode(datagrams=hello["datagrams"]),
        )
        transport, _ = await loop.create_connection(lambda: stream, HERE, back.relay.control_port)
        with Client(port) as client, Client(port) as stranger:
            async with asyncio.timeout(PATIENCE):
                while not received:  # the agent may not have taken the stream yet
                    client.sock.send(b"hello")
                    await asyncio.sleep(0.05)
            flow, datagram = received[0]
            assert datagram == b"hello"
            assert flow.client_address == HERE
            there = stranger.sock.getsockname()[1]
            stream.send(Flow(port, there, packed_address(HERE)), b"unsolicited")
            stream.send(flow, b"solicited")
            assert await client.receive() == b"solicited"
            assert not await stranger.received(0.2)
            dropped: dict[str, int] = {}
            async with asyncio.timeout(PATIENCE):
                while "no-way" not in dropped:
                    dropped = orjson.loads(await control.readline()).get("dropped", {})
            assert dropped["no-way"] == 1
        transport.close()
        writer.close()


class OldAgent:
    """An agent of a release that does not forward datagrams."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    async def __call__(self, forward: Forward) -> None:
        async for line in self._lines(forward):
            assert "datagrams" not in line
            self.lines.append(line)
            if "control" in line:
                hello = messages.encode(version=messages.VERSION, release=version())
                await forward.send(hello)
            if "listen" in line:
                await forward.send(messages.encode(listening=line["listen"]))

    async def _lines(self, forward: Forward) -> AsyncIterator[dict[str, Any]]:
        rest = b""
        while data := await forward.receive():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield orjson.loads(line)


async def test_agent_of_an_older_release_forwards_tcp_alone() -> None:
    async with relayed() as back:
        agent = OldAgent()
        serve_pods(back.remote, {"relay": agent})
        target = HomeTarget("10.1.0.1", 53)
        routes = {20000: ReverseRoute("dns", (target,), port="tcp"), 20001: route(target)}
        back.forwarder.update(SHOP, [POD], routes)
        await wait_until(lambda: back.forwarder.agent_state(POD).listening == {20000})
        assert back.forwarder.agent_state(POD).unsupported == {20001}
        back.forwarder.update(SHOP, [POD], {20000: routes[20000]})
        assert back.forwarder.agent_state(POD).unsupported == frozenset()


async def test_bridge_of_an_older_release_is_served() -> None:
    async with relayed() as back:
        reader, writer = await open_stream(back, messages.encode(control=messages.VERSION))
        assert orjson.loads(await reader.readline())["version"] == messages.VERSION
        writer.write(messages.encode(listen=[back.port]))
        assert orjson.loads(await reader.readline())["listening"] == [back.port]
        writer.close()


@pytest.mark.parametrize("dropped", [{"queue": -1}, {"queue": 1 << 48}, {"queue": "x"}, 7])
async def test_malformed_report_of_an_agent_ends_the_connection(dropped: object) -> None:
    connections = 0

    async def agent(forward: Forward) -> None:
        nonlocal connections
        connections += 1
        await forward.receive()
        await forward.send(messages.encode(version=messages.VERSION, release=version()))
        await forward.send(messages.encode(dropped=dropped))
        await forward.gone()

    async with relayed() as back:
        serve_pods(back.remote, {"relay": agent})
        back.forwarder.update(SHOP, [POD], {})
        await wait_until(lambda: connections >= 2)
        assert not back.metrics.dropped


async def test_reasons_of_a_later_release_are_left_out() -> None:
    async def agent(forward: Forward) -> None:
        await forward.receive()
        await forward.send(messages.encode(version=messages.VERSION, release=version()))
        await forward.send(messages.encode(dropped={"of-a-later-release": 1, "queue": 2}))
        await forward.gone()

    async with relayed() as back:
        serve_pods(back.remote, {"relay": agent})
        back.forwarder.update(SHOP, [POD], {})
        await wait_until(lambda: back.metrics.dropped["queue"] >= 2)
        assert back.metrics.dropped.keys() == {"queue"}
