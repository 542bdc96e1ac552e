"""Connections from pods in the remote to pods at home, through a relay agent and a bridge."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import pytest

from bridge.base.join_settings import RelaySettings
from bridge.base.version import version
from bridge.net import splice
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse import control_connection
from bridge.relay.reverse import control_messages as messages
from bridge.relay.reverse.home_pod_connections import HomePodConnections
from bridge.relay.reverse.relay_agent import RelayAgent
from sync.kube.client import KubeClient
from sync.kube.layered_transport import reset_connection
from sync.kube.sockets import PeerState
from tests.bridge.kubelet.fake_api_servers import FakeRemote, access_for, wait_until
from tests.bridge.relay.fake_pods import Forward, WebSocketPod, serve_pods
from tests.bridge.relay.reverse.reverse_world import (
    HERE,
    POD,
    SHOP,
    ReverseWorld,
    Serving,
    at_home,
    relayed,
)
from tests.fakeapi import CLOSED_PORT
from translators.object_accessors import HomeNamespace
from translators.relay.reverse_plan import HomeTarget, ReverseRoute


def responds(name: bytes) -> Serving:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(name)
        await writer.drain()

    return serve


async def echo_data(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers when its client has ended its direction."""
    got = await reader.read()
    writer.write(b"got " + got)
    await writer.drain()


async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Breaks off in the middle of an answer."""
    await reader.read(100)
    writer.write(b"half of ")
    await writer.drain()
    await asyncio.sleep(0.1)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_connections_are_balanced_over_pods_at_home() -> None:
    async with relayed() as back, at_home(responds(b"a")) as one, at_home(responds(b"b")) as other:
        back.show(one, other)
        await back.ready()
        answers = [await back.ask() for _ in range(6)]
        assert Counter(answers) == {b"a": 3, b"b": 3}
        await wait_until(lambda: back.metrics.results["done"] == 6)
        assert back.metrics.bytes == {"in": 6 * 4, "out": 6}
        assert back.metrics.agents == 1
        assert back.forwards == 1 + 6


async def test_large_bodies_are_forwarded_unchanged_in_both_directions() -> None:
    body = bytes(range(256)) * 20_000
    async with relayed() as back, at_home(echo_data) as pod:
        back.show(pod)
        await back.ready()
        reader, writer = await asyncio.open_connection(HERE, back.port)
        got = b""
        async with asyncio.timeout(30):
            writer.write(body)
            while len(got) < len(body):
                got += await reader.read(1 << 20)
        assert got == body
        writer.close()
        await wait_until(lambda: back.metrics.open == 0)
        assert back.metrics.results == {"done": 1}


async def test_half_close_is_forwarded() -> None:
    async with relayed() as back, at_home(after_the_end) as pod:
        back.show(pod)
        await back.ready()
        reader, writer = await asyncio.open_connection(HERE, back.port)
        writer.write(b"all of it")
        writer.write_eof()
        async with asyncio.timeout(30):
            assert await reader.read() == b"got all of it"
        writer.close()


async def test_server_may_send_first() -> None:
    async def greets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await writer.drain()

    async with relayed() as back, at_home(greets) as pod:
        back.show(pod)
        await back.ready()
        assert await back.ask(b"") == b"welcome"


async def test_connection_lost_at_home_resets_the_client() -> None:
    async with relayed() as back, at_home(breaks) as pod:
        back.show(pod)
        await back.ready()
        with pytest.raises(ConnectionResetError):
            await back.ask()


async def test_client_close_reaches_the_pod_at_home() -> None:
    ended = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        ended.set()

    async with relayed() as back, at_home(stay_silent) as pod:
        back.show(pod)
        await back.ready()
        _, writer = await asyncio.open_connection(HERE, back.port)
        await wait_until(lambda: back.metrics.open == 1)
        writer.transport.abort()
        async with asyncio.timeout(30):
            await ended.wait()


async def test_broken_off_upload_is_reset_at_home() -> None:
    ends: asyncio.Queue[str] = asyncio.Queue()

    async def takes(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
            await ends.put("in order")
        except ConnectionResetError:
            await ends.put("reset")

    async with relayed() as back, at_home(takes) as pod:
        back.show(pod)
        await back.ready()
        _, writer = await asyncio.open_connection(HERE, back.port)
        writer.write(b"half of it")
        await wait_until(lambda: back.metrics.bytes["in"] == 10)
        reset_connection(cast("asyncio.Transport", writer.transport))
        assert await ends.get() == "reset"


async def test_pod_at_home_that_acknowledges_nothing_resets_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relayed() as back, at_home(echo_data) as pod:

        def state(sock: socket.socket) -> PeerState:
            is_pod = sock.getpeername()[1] == pod.port
            return PeerState.LOST if is_pod else PeerState.ACKNOWLEDGED

        back.show(pod)
        await back.ready()
        reader, writer = await asyncio.open_connection(HERE, back.port)
        writer.write(b"half of it")
        assert await reader.readexactly(10) == b"half of it"
        monkeypatch.setattr(splice, "peer_state", state)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await wait_until(lambda: back.metrics.results == {"failed": 1})


async def test_held_connection_is_served_by_the_next_bridge() -> None:
    async with relayed() as back, at_home(responds(b"a")) as pod:
        back.show(pod)
        await back.ready()
        back.forwarder.update(SHOP, [], {})
        await wait_until(lambda: back.metrics.agents == 0)
        asking = asyncio.create_task(back.ask())
        await asyncio.sleep(0.2)
        assert not asking.done()
        back.show(pod)
        assert await asking == b"a"


async def test_agent_stops_listening_without_a_bridge() -> None:
    async with relayed(hold_timeout=0.3) as back, at_home(responds(b"a")) as pod:
        back.show(pod)
        await back.ready()
        back.forwarder.update(SHOP, [], {})
        with pytest.raises(ConnectionResetError):
            await back.ask()

        async def refused() -> bool:
            try:
                await back.ask()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                return False
            return False

        async with asyncio.timeout(30):
            while not await refused():  # noqa: ASYNC110  # the condition has no event
                await asyncio.sleep(0.05)


async def test_second_bridge_replaces_the_first() -> None:
    async with relayed() as back, at_home(responds(b"a")) as pod, at_home(responds(b"b")) as other:
        back.show(pod)
        await back.ready()
        back.leads = False  # so that it does not come back
        another = HomePodConnections(
            KubeClient(access_for(back.remote.url, "remote")),
            settings=RelaySettings(),
            metrics=ReverseRelayMetrics(),
            is_leader=lambda: True,
        )
        forwarding = asyncio.create_task(another.run())
        await asyncio.sleep(0)
        another.update(SHOP, [POD], {back.port: ReverseRoute("web", (other,))})
        await wait_until(lambda: bool(another.agent_state(POD).listening))
        await wait_until(lambda: back.metrics.agents == 0)
        assert await back.ask() == b"b"
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)


async def test_draining_bridge_finishes_open_connections_and_takes_no_new_ones() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        await asyncio.sleep(0.3)
        writer.write(b"late")
        await writer.drain()

    async with relayed() as back, at_home(slow) as pod:
        back.show(pod)
        await back.ready()
        first = asyncio.create_task(back.ask())
        await wait_until(lambda: back.metrics.open == 1)
        finishing = asyncio.create_task(back.forwarder.drain())
        await wait_until(lambda: back.metrics.agents == 0)
        second = asyncio.create_task(back.ask())
        assert await first == b"late"
        await finishing
        assert not second.done()
        back.forwarder.update(SHOP, [], {})
        back.show(pod)
        assert await second == b"late"


async def test_standby_bridge_opens_no_control_connection() -> None:
    async with relayed() as back, at_home(responds(b"a")) as pod:
        back.leads = False
        back.show(pod)
        await asyncio.sleep(0.3)
        assert back.forwards == 0
        back.leads = True
        await back.ready()


async def test_client_is_reset_if_no_pod_at_home_is_reachable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relayed() as back:
        back.show()
        await back.ready()
        with pytest.raises(ConnectionResetError):
            await back.ask()
        assert back.metrics.results == {"no-pod": 1}
        back.show(HomeTarget(HERE, CLOSED_PORT))
        with pytest.raises(ConnectionResetError):
            await back.ask()
        await wait_until(lambda: back.metrics.results["no-way"] == 1)
        with pytest.raises(ConnectionResetError):
            await back.ask()
        await wait_until(lambda: back.metrics.results["no-way"] == 2)
    messages = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    [line] = [it for it in messages if "the bridge cannot connect to its pods at home" in it]
    assert "bridge install" in line, "what to do"


async def test_unreachable_pod_at_home_is_skipped() -> None:
    async with relayed() as back, at_home(responds(b"a")) as pod:
        back.show(HomeTarget(HERE, CLOSED_PORT), pod)
        await back.ready()
        assert [await back.ask() for _ in range(4)] == [b"a"] * 4


async def test_affinity_keeps_a_client_with_its_pod() -> None:
    async with relayed() as back, at_home(responds(b"a")) as one, at_home(responds(b"b")) as other:
        back.show(one, other, sticky=True)
        await back.ready()
        assert len({await back.ask() for _ in range(6)}) == 1


async def test_limits_in_all_and_of_a_service_are_kept() -> None:
    for settings, why in (
        (RelaySettings(connections=1), "limit"),
        (RelaySettings(connections=2), "namespace-limit"),
        (RelaySettings(service_connections=1), "service-limit"),
    ):
        async with relayed(settings) as back, at_home(echo_data) as pod:
            back.show(pod)
            await back.ready()
            _, writer = await asyncio.open_connection(HERE, back.port)
            await wait_until(partial(back.has, 1))
            with pytest.raises(ConnectionResetError):
                await back.ask()
            assert back.metrics.results[why] == 1
            writer.close()
            await wait_until(partial(back.has, 0))
            assert await _first(back) == b"x"


async def _first(back: ReverseWorld) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, back.port)
    writer.write(b"x")
    got = await reader.read(1)
    writer.close()
    return got


async def test_idle_connection_is_reset() -> None:
    async with relayed(RelaySettings(idle=0.2)) as back, at_home(echo_data) as pod:
        back.show(pod)
        await back.ready()
        with pytest.raises(ConnectionResetError):
            await back.ask(b"")


async def test_stopping_agent_ends_when_nothing_is_open() -> None:
    relay = RelayAgent(host=HERE, control_port=0)
    stop = asyncio.Event()
    running = asyncio.create_task(relay.run(stop))
    await wait_until(lambda: relay.control_port > 0)
    reader, writer = await asyncio.open_connection(HERE, relay.control_port)
    writer.write(messages.encode(control=messages.VERSION))
    await reader.readline()
    stop.set()
    await asyncio.sleep(0.1)
    assert not running.done(), "a bridge still speaks to it"
    writer.close()
    async with asyncio.timeout(30):
        await running


async def test_bridge_that_does_not_read_is_disconnected() -> None:
    """Each ping of a bridge is answered with what it contains."""

    async def ping(writer: asyncio.StreamWriter) -> None:
        for _ in range(1000):
            writer.write(messages.encode(ping="x" * 100_000))
            await writer.drain()

    async with relayed() as back:
        reader, writer = await asyncio.open_connection(HERE, back.relay.control_port)
        writer.write(messages.encode(control=messages.VERSION))
        await reader.readline()
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionError):
                await ping(writer)
        writer.close()


# -- who lies ----------------------------------------------------------------------------


class FakeAgent:
    """A compromised relay agent: sends the given lines."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines
        self.heard: list[bytes] = []
        self.begun = 0

    async def __call__(self, forward: Forward) -> None:
        self.begun += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.heard.append(await forward.receive())
            for line in self._lines:
                await forward.send(line)
            while data := await forward.receive():
                self.heard.append(data)


@asynccontextmanager
async def forwarding_to(
    remote: FakeRemote, metrics: ReverseRelayMetrics
) -> AsyncIterator[HomePodConnections]:
    """A bridge of this remote, without routes."""
    forwarder = HomePodConnections(
        KubeClient(access_for(remote.url, "remote")),
        settings=RelaySettings(),
        metrics=metrics,
        is_leader=lambda: True,
    )
    forwarding = asyncio.create_task(forwarder.run())
    await asyncio.sleep(0)
    try:
        yield forwarder
        assert not forwarding.done(), "the bridge has ended"
    finally:
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)


@asynccontextmanager
async def with_fake_agent(
    agent: WebSocketPod, routes: Mapping[int, ReverseRoute]
) -> AsyncIterator[tuple[HomePodConnections, ReverseRelayMetrics]]:
    """A bridge that speaks to it."""
    metrics = ReverseRelayMetrics()
    async with FakeRemote() as remote:
        serve_pods(remote, {"relay": agent})
        async with forwarding_to(remote, metrics) as forwarder:
            forwarder.update(SHOP, [POD], routes)
            yield forwarder, metrics
        assert metrics.open == 0


async def test_agent_reaches_only_ports_with_a_route() -> None:
    """It names ports of its own alone: which pod of home that is, the bridge decides."""
    connections: list[bytes] = []

    async def notes(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        connections.append(b"connected")

    async with at_home(notes) as secret:
        agent = FakeAgent(
            messages.encode(version=messages.VERSION),
            messages.encode(arrived="a", port=secret.port),
            messages.encode(arrived="b", port=22, address=HERE, target=[HERE, secret.port]),
        )
        async with with_fake_agent(agent, {20000: ReverseRoute("web", ())}) as (_, metrics):
            await wait_until(lambda: metrics.results["no-pod"] == 2)
            await wait_until(lambda: b"".join(agent.heard).count(b"refuse") == 2)
    assert not connections


#: As deep as a parser of JSON accepts it, and too deep to be formatted as text.
DEEP = b"[" * 1000 + b"]" * 1000
HELLO = messages.encode(version=messages.VERSION)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b'{"arrived": 7, "port": 20000}\n',
        b'{"arrived": %s, "port": 20000}\n' % DEEP,
        b'{"arrived": "a", "port": %s}\n' % DEEP,
        b'{"arrived": "a", "port": 20000, "from": %s}\n' % DEEP,
        b'{"arrived": "a", "port": 20000, "from": 7}\n',
        b'{"listening": %s}\n' % DEEP,
        b'{"dropped": %s}\n' % DEEP,
        b'{"dropped": {"queue": %s}}\n' % DEEP,
        b'{"arrived": "' + b"x" * 200 + b'", "port": 20000}\n',
        b'{"listening": [0, 70000, "x"]}\n',
        b"x" * (messages.MAX_LINE + 1),
    ],
)
async def test_malformed_message_ends_only_the_control_connection(
    line: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_connection, "RETRY_SECONDS", 30.0)
    async with with_fake_agent(FakeAgent(HELLO, line), {}) as (_, metrics):
        await asyncio.sleep(0.2)
        await wait_until(lambda: metrics.agents == 0)
    assert "defect" not in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        b'{"version": %s}\n' % DEEP,
        b'{"version": "1"}\n',
        b'{"version": 1, "release": %s}\n' % DEEP,
        b'{"version": 1, "release": 7}\n',
        b'{"version": 1, "datagrams": %s}\n' % DEEP,
        b'{"version": 1, "datagrams": 7}\n',
    ],
)
async def test_malformed_first_message_ends_only_the_control_connection(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = FakeAgent(line, messages.encode(listening=[20000]))
    async with with_fake_agent(agent, {}) as (forwarder, metrics):
        await wait_until(lambda: agent.begun >= 2)
        assert not forwarder.agent_state(POD).listening
        assert metrics.agents == 0
    assert "the first message is malformed" in caplog.text
    assert "defect" not in caplog.text


async def test_defect_in_the_handling_of_one_agent_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode_dropped(_: object) -> dict[str, int]:
        raise RuntimeError("secret of the remote")

    monkeypatch.setattr(messages, "decode_dropped", decode_dropped)
    other_pod = {"metadata": {**POD["metadata"], "name": "relay-2", "uid": "uid-relay-2"}}
    agent = FakeAgent(HELLO, messages.encode(dropped={}))
    other = FakeAgent(HELLO, messages.encode(listening=[20000]))
    async with FakeRemote() as remote:
        serve_pods(remote, {"relay": agent, "relay-2": other})
        async with forwarding_to(remote, ReverseRelayMetrics()) as forwarder:
            forwarder.update(SHOP, [POD, other_pod], {})
            await wait_until(lambda: agent.begun >= 3)
            assert other.begun == 1
            assert forwarder.agent_state(other_pod).listening == {20000}
    assert "relay agent shop-h/relay: a defect in the bridge; please report it" in caplog.text
    assert "secret of the remote" not in caplog.text


async def test_agent_with_another_protocol_version_is_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    agent = FakeAgent(
        messages.encode(version=99, release="9.0 \n\x1b[31m"),
        messages.encode(listening=[20000]),
        messages.encode(arrived="a", port=20000),
    )
    async with with_fake_agent(agent, {}) as (forwarder, metrics):
        await wait_until(lambda: "version 99" in caplog.text)
        assert "version 99" in forwarder.agent_state(POD).version_warning
        assert not forwarder.agent_state(POD).listening
        assert metrics.agents == 0
        await asyncio.sleep(0.3)
        assert agent.begun == 1, "the bridge must not retry at once"


async def test_agent_of_another_release_is_used_with_a_warning() -> None:
    lines = (
        messages.encode(release="0.0.1 \n\x1b", version=messages.VERSION),
        messages.encode(listening=[20000]),
    )
    async with with_fake_agent(FakeAgent(*lines), {}) as (forwarder, _):
        await wait_until(lambda: bool(forwarder.agent_state(POD).listening))
        assert (
            f"0.0.1???, and this bridge of {version()}"
            in forwarder.agent_state(POD).version_warning
        )
    async with relayed() as back, at_home(responds(b"a")) as pod:
        back.show(pod)
        await back.ready()
        assert not back.forwarder.agent_state(POD).version_warning


class Sleeper:
    """A relay agent that sends a first line on so many control connections, then stays silent."""

    def __init__(self, greets: int) -> None:
        self.greets = greets
        self.begun = 0

    async def __call__(self, forward: Forward) -> None:
        self.begun += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await forward.receive()
            if self.begun <= self.greets:
                await forward.send(messages.encode(version=messages.VERSION, release=version()))
            while await forward.receive():
                pass


@pytest.mark.parametrize("greets", [0, 1])
async def test_silent_agent_is_reported_unresponsive(greets: int) -> None:
    """Whether or not it has ever answered; one silent control connection is not enough."""
    sleeper = Sleeper(greets)
    begun: list[int] = []

    def note(_: object) -> None:
        if forwarder.agent_state(POD).unresponsive:
            begun.append(sleeper.begun)

    async with with_fake_agent(sleeper, {}) as (forwarder, metrics):
        forwarder.on_change(note)
        await wait_until(lambda: forwarder.agent_state(POD).unresponsive)
        assert begun[0] == 2
        assert metrics.agents == 0
        sleeper.greets = 100
        await wait_until(lambda: not forwarder.agent_state(POD).unresponsive)


@pytest.mark.parametrize("complains", [False, True])
async def test_unreachable_agent_is_not_unresponsive(*, complains: bool) -> None:
    """Nothing listens in it yet; the kubelet may hang up, or only say so."""
    begun = 0

    async def refuse(forward: Forward) -> None:
        nonlocal begun
        begun += 1
        await forward.fail("failed to connect to localhost:19999 inside namespace")
        await (forward.gone() if complains else forward.close())

    async with with_fake_agent(refuse, {}) as (forwarder, _):
        await wait_until(lambda: begun > 3)
        assert not forwarder.agent_state(POD).unresponsive


async def test_lost_control_connection_does_not_make_an_agent_unresponsive() -> None:
    """The bridge reconnects, and the agent answers."""
    sleeper = Sleeper(greets=100)
    unresponsive: list[bool] = []
    async with with_fake_agent(sleeper, {}) as (forwarder, _):
        forwarder.on_change(lambda _: unresponsive.append(forwarder.agent_state(POD).unresponsive))
        await wait_until(lambda: sleeper.begun == 4)
    assert not any(unresponsive)


async def test_unknown_keys_of_a_message_are_ignored() -> None:
    agent = FakeAgent(
        messages.encode(version=messages.VERSION), messages.encode(news="of a later version")
    )
    async with with_fake_agent(agent, {}) as (_, metrics):
        await wait_until(lambda: metrics.agents == 1)
        await asyncio.sleep(0.1)
        assert metrics.agents == 1


class Flooder:
    """A compromised relay agent: sends these lines for ever, and reads nothing."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = b"".join(lines * 1000)
        self.begun = 0

    async def __call__(self, forward: Forward) -> None:
        self.begun += 1
        sock = forward.request.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            await forward.send(messages.encode(version=messages.VERSION, release=version()))
            while True:
                await forward.send(self._lines)


async def test_flood_of_messages_is_slowed_down() -> None:
    flooder = Flooder(messages.encode(dropped={"queue": 1}))
    async with with_fake_agent(flooder, {}) as (_, metrics):
        await asyncio.sleep(2)
        assert 2000 <= metrics.dropped["queue"] <= 3200


async def test_flood_of_long_messages_is_slowed_down_further() -> None:
    flooder = Flooder(messages.encode(dropped={"queue": 1}, more="x" * 5000))
    async with with_fake_agent(flooder, {}) as (_, metrics):
        await asyncio.sleep(10)
        assert metrics.dropped["queue"] <= 300


async def test_changes_of_an_agents_ports_are_slowed_down() -> None:
    flooder = Flooder(messages.encode(listening=[20000]), messages.encode(listening=[]))
    changes: list[object] = []
    async with with_fake_agent(flooder, {}) as (forwarder, _):
        forwarder.on_change(changes.append)
        await asyncio.sleep(10)
        assert 10 <= len(changes) <= 60


async def test_agent_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_connection, "MESSAGE_RATE", 1e6)
    flooder = Flooder(messages.encode(arrived="x" * 99, port=20000))
    async with with_fake_agent(flooder, {}):
        await wait_until(lambda: flooder.begun > 1)


async def test_agent_that_hangs_up_is_reached_less_and_less_often() -> None:
    agent = FakeAgent(messages.encode(version=messages.VERSION), b"not json\n")
    async with with_fake_agent(agent, {}):
        await asyncio.sleep(60)
        assert 15 <= agent.begun <= 60


@asynccontextmanager
async def unreachable() -> AsyncIterator[HomeTarget]:
    """A pod whose network drops packets: its queue of new connections is full."""
    with socket.socket() as server:
        server.bind((HERE, 0))
        server.listen(0)
        waiting = [await asyncio.open_connection(*server.getsockname()) for _ in range(1)]
        yield HomeTarget(HERE, server.getsockname()[1])
        for _, writer in waiting:
            writer.close()


async def test_namespace_whose_pods_do_not_answer_delays_no_other() -> None:
    other = HomeNamespace("other")
    other_pod = {"metadata": {**POD["metadata"], "name": "relay-2", "uid": "uid-relay-2"}}
    hello = messages.encode(version=messages.VERSION, release=version())
    arrivals = [messages.encode(arrived=str(number), port=20000) for number in range(1000)]
    go_on = asyncio.Event()
    times: list[float] = []

    async def notes(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        times.append(asyncio.get_running_loop().time())

    async def later(forward: Forward) -> None:
        await forward.receive()
        await forward.send(hello)
        await go_on.wait()
        await forward.send(arrivals[0])
        await forward.gone()

    metrics = ReverseRelayMetrics()
    async with FakeRemote() as remote, unreachable() as hangs, at_home(notes) as reachable:
        serve_pods(remote, {"relay": FakeAgent(hello, *arrivals), "relay-2": later})
        async with forwarding_to(remote, metrics) as forwarder:
            forwarder.update(SHOP, [POD], {20000: ReverseRoute("web", (hangs,))})
            forwarder.update(other, [other_pod], {20000: ReverseRoute("web", (reachable,))})
            await asyncio.sleep(20)
            assert metrics.results["no-way"] > 100
            began = asyncio.get_running_loop().time()
            go_on.set()
            await wait_until(lambda: bool(times))
            assert times[0] - began < 0.5


async def test_unknown_token_takes_nothing() -> None:
    async with relayed() as back:
        reader, writer = await asyncio.open_connection(HERE, back.relay.control_port)
        writer.write(messages.encode(take="guessed", idle=10))
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(HERE, back.relay.control_port)
        writer.write(b"x" * (messages.MAX_FIRST_LINE + 1))
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
