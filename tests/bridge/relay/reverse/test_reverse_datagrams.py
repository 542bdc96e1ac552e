"""Datagrams from pods in the remote to pods at home, through a relay agent and a bridge."""

from __future__ import annotations

import asyncio
import gc

import pytest

from bridge.base.join_settings import RelaySettings
from bridge.relay.reverse import agent_datagrams, home_pod_datagrams
from bridge.relay.reverse.datagram_stream import DatagramStream
from tests.bridge.kubelet.fake_api_servers import UpgradeRequest, respond, wait_until
from tests.bridge.relay.reverse.reverse_world import HERE, POD, SHOP, relayed
from tests.bridge.relay.reverse.udp_world import (
    LONGEST,
    PATIENCE,
    Client,
    echo,
    first_answer,
    named,
    route,
    serve,
    silent,
    udp_pod,
)
from tests.fakeapi import CLOSED_PORT
from translators.relay.reverse_plan import HomeTarget


async def test_datagrams_are_answered_by_a_pod_at_home() -> None:
    async with relayed() as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            assert await client.ask(b"1") == b"a:1"
            assert await client.ask(b"2") == b"a:2"
        assert len(pod.peers) == 1, "one flow"
        assert back.metrics.flows == 1
        assert back.metrics.datagrams["in"] == back.metrics.datagrams["out"] >= 3
        assert (back.metrics.bytes["in"], back.metrics.bytes["out"] % 2) == (2, 0)
        assert back.forwards == 2, "the control connection and one stream for all datagrams"
    assert back.metrics.flows == 0


@pytest.mark.parametrize("pod_address", [HERE, "::1"])
async def test_both_families_are_forwarded_to_either(pod_address: str) -> None:
    """The remote's family need not be home's: an agent in a dual-stack network has both."""
    async with relayed(host="") as back, udp_pod(named(b"a"), pod_address) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as four, Client(port, "::1") as six:
            await first_answer(four)
            assert await six.ask(b"6") == b"a:6"
            assert await four.ask(b"4") == b"a:4"
        assert len(pod.peers) == 2


async def test_boundaries_are_kept_up_to_the_longest_datagram() -> None:
    async with relayed() as back, udp_pod(echo) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            for size in (0, 1, 1200, 1500, 9000, LONGEST):
                body = bytes(it % 251 for it in range(size))
                assert await client.ask(body) == body
        assert not sum(back.metrics.dropped[it] for it in ("queue", "too-long", "no-way"))


async def test_client_keeps_its_pod_through_any_port_of_the_agent() -> None:
    """kube-proxy may forget a flow before the bridge does, and choose another endpoint."""
    async with relayed() as back, udp_pod(named(b"a")) as one, udp_pod(named(b"b")) as other:
        ports = await serve(back, one.target, other.target, count=2)
        seen = set()
        for _ in range(12):
            with Client(ports[0]) as client:
                first = (await first_answer(client))[:1]
                seen.add(first)
                for port in (*ports, *ports):
                    client.sock.connect((HERE, port))
                    assert (await client.ask())[:1] == first
        assert seen == {b"a", b"b"}, "clients are balanced"


async def test_client_moves_only_when_its_pod_is_not_ready() -> None:
    async with relayed() as back, udp_pod(named(b"a")) as one, udp_pod(named(b"b")) as other:
        pods = {b"a": one, b"b": other}
        (port,) = await serve(back, one.target)
        with Client(port) as client:
            assert (await first_answer(client))[:1] == b"a"
            back.forwarder.update(SHOP, [POD], {port: route(one.target, other.target)})
            for _ in range(3):
                assert (await client.ask())[:1] == b"a", "a new pod takes no flow of another"
            back.forwarder.update(SHOP, [POD], {port: route(other.target)})
            assert back.metrics.flows == 0
            assert (await client.ask())[:1] == b"b"
            back.forwarder.update(SHOP, [POD], {port: route()})
            client.sock.send(b"who?")
            await wait_until(lambda: back.metrics.dropped["no-pod"] == 1)
        assert len(pods[b"a"].peers) == 1


async def test_session_affinity_ignores_the_client_port() -> None:
    async with relayed() as back, udp_pod(named(b"a")) as one, udp_pod(named(b"b")) as other:
        (port,) = await serve(back, one.target, other.target, sticky=True)
        seen = set()
        for _ in range(12):
            with Client(port) as client:
                seen.add((await first_answer(client))[:1])
        assert len(seen) == 1


async def test_only_the_pod_of_a_flow_can_answer() -> None:
    async with relayed() as back, udp_pod(named(b"a")) as pod, udp_pod(silent) as stranger:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            stranger.sock.sendto(b"forged", pod.peers[0])
            assert await client.ask(b"1") == b"a:1"
            assert b"forged" not in await client.received(0.2)


async def test_idle_flow_is_forgotten_and_keeps_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_pod_datagrams, "EXCHANGE_TIMEOUT", 0.2)
    monkeypatch.setattr(home_pod_datagrams, "SWEEP_INTERVAL", 0.05)
    async with relayed() as back, udp_pod(named(b"a")) as one, udp_pod(named(b"b")) as other:
        (port,) = await serve(back, one.target, other.target)
        with Client(port) as client:
            first = await first_answer(client)
            await wait_until(lambda: back.metrics.flows == 0)
            before = len(one.peers) + len(other.peers)
            assert (await client.ask())[:1] == first[:1]
            assert len(one.peers) + len(other.peers) > before, "by another socket"


async def test_lasting_flow_is_remembered_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_pod_datagrams, "EXCHANGE_TIMEOUT", 0.2)
    monkeypatch.setattr(home_pod_datagrams, "EXCHANGE_SECONDS", 0.0)
    monkeypatch.setattr(home_pod_datagrams, "SWEEP_INTERVAL", 0.05)
    async with relayed() as back, udp_pod(named(b"a")) as pod, udp_pod(silent) as mute:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            await asyncio.sleep(0.5)
            assert back.metrics.flows == 1
            back.forwarder.update(SHOP, [POD], {port: route(mute.target)})
            client.sock.send(b"who?")
            await wait_until(lambda: len(mute.peers) == 1)
            await wait_until(lambda: back.metrics.flows == 0)  # it was not answered


async def test_flows_are_limited_and_the_longest_idle_one_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the limit is left to other namespaces."""
    monkeypatch.setattr(home_pod_datagrams, "EVICT_IDLE", 1000.0)
    async with relayed(RelaySettings(connections=4)) as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as first, Client(port) as second, Client(port) as third:
            await first_answer(first)
            await first_answer(second)
            third.sock.send(b"who?")
            await wait_until(lambda: back.metrics.dropped["flows"] >= 1)
            assert back.metrics.flows == 2
            monkeypatch.setattr(home_pod_datagrams, "EVICT_IDLE", 0.0)
            await first.ask()
            assert await third.ask(b"3") == b"a:3"
            assert back.metrics.flows == 2
            peers = len(pod.peers)
            await first.ask()
            assert len(pod.peers) == peers, "the second one gave way"


async def test_pod_that_does_not_listen_is_counted() -> None:
    async with relayed() as back, udp_pod(silent) as other:
        (port,) = await serve(back, other.target)
        back.forwarder.update(SHOP, [POD], {port: route(HomeTarget(HERE, CLOSED_PORT))})
        with Client(port) as client:
            async with asyncio.timeout(PATIENCE):
                while not back.metrics.dropped["no-way"]:
                    client.sock.send(b"who?")
                    await asyncio.sleep(0.05)


async def test_agent_without_a_bridge_drops_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next bridge gets the counts."""
    monkeypatch.setattr(agent_datagrams, "REPORT_INTERVAL", 0.05)
    async with relayed() as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        with Client(port) as client:
            await first_answer(client)
            back.forwarder.update(SHOP, [], {})
            await wait_until(lambda: back.metrics.agents == 0)
            for _ in range(20):  # the agent may not know yet
                client.sock.send(b"lost")
                await asyncio.sleep(0.05)
            back.forwarder.update(SHOP, [POD], {port: route(pod.target)})
            await wait_until(lambda: back.metrics.dropped["no-bridge"] >= 1)
            assert (await first_answer(client)).startswith(b"a:"), "the port stays open"


async def test_port_is_closed_with_its_route() -> None:
    async with relayed() as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        await serve(back, pod.target)
        with Client(port) as client, pytest.raises(ConnectionRefusedError):
            await client.ask()


async def test_same_number_is_not_shared_between_protocols() -> None:
    """The bridge does not accept a TCP connection for a UDP port that an agent announces."""
    async with relayed() as back, udp_pod(named(b"a")) as pod:
        (port,) = await serve(back, pod.target)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HERE, port)


async def test_rejected_streams_leave_nothing_to_the_garbage_collector() -> None:
    """A hostile remote once filled the memory with them until the collector took half a second."""
    async with relayed() as back, udp_pod(echo) as pod:
        accept, rejected = back.remote.handler, 0

        async def handle(request: UpgradeRequest) -> None:
            nonlocal rejected
            if back.forwards:
                rejected += 1
                await respond(request, 500, b"{}")
            else:
                await accept(request)

        back.remote.handler = handle
        gc.collect()
        gc.disable()
        try:
            await serve(back, pod.target)
            await wait_until(lambda: rejected > 3)
            streams = [found for found in gc.get_objects() if isinstance(found, DatagramStream)]
        finally:
            gc.enable()
    assert streams == []
