"""Port-forwards over sessions that are kept, against a kubelet on a real socket."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bridge.net import port_forward_sessions, spdy_session
from bridge.net.port_forward_sessions import PortForwards
from bridge.net.spdy_session import ForwardedStream, SpdySession
from bridge.net.splice import Tunnel
from bridge.net.unsent_budget import MIN_BUFFER, UnsentBudget
from sync.kube.api_errors import KubeError
from sync.kube.client import KubeClient
from sync.kube.layered_transport import LayeredTransport
from sync.kube.portions import PORTION
from tests.bridge.kubelet.fake_api_servers import FakeRemote, UpgradeRequest, access_for, wait_until
from tests.bridge.net.test_port_forward_connection import Below
from tests.bridge.relay import fake_pods
from tests.bridge.relay.fake_pods import AnyForward, Pod, serve_pods
from tests.bridge.relay.fake_spdy import (
    GOAWAY,
    PING,
    RST_STREAM,
    SYN_STREAM,
    SpdyForward,
    SpdyServer,
    control,
    data_frame,
)
from tests.sync.kube.test_sockets import LOCKED, SO_BUF_LOCK
from translators.object_accessors import RemoteUid
from translators.relay.forward_plan import Backend


def backend(pod: str = "a", uid: str = "") -> Backend:
    return Backend("shop-h", pod, RemoteUid(uid or f"uid-{pod}"), 8080)


class Client(asyncio.Protocol):
    """One connection's protocol above the transport."""

    def __init__(self) -> None:
        self.data = b""
        self.errors: list[str] = []
        self.is_lost = False
        self.has_ended_in_order = False
        self.transport: LayeredTransport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.has_ended_in_order = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    async def received(self, data: bytes) -> None:
        await wait_until(lambda: self.data == data)

    async def ended(self) -> None:
        await wait_until(lambda: self.is_lost)


class Rig:
    """A remote and its port-forwards."""

    def __init__(self, remote: FakeRemote) -> None:
        self.remote = remote
        self.forwards = PortForwards(KubeClient(access_for(remote.url, "remote")))

    @property
    def sessions(self) -> int:
        """Sessions opened so far."""
        return sum(it.method == "POST" for it in self.remote.requests)

    async def connect(self, to: Backend | None = None) -> Client:
        client = Client()
        opened = await self.forwards.open(to or backend())
        client.transport = opened.attach(client, client.errors.append)
        return client

    async def exchange(self, to: Backend | None = None) -> Client:
        """A connection that sends a request and has its response."""
        client = await self.connect(to)
        client.transport.write(b"hello")
        await client.received(b"hello")
        return client


@asynccontextmanager
async def pods(**played: Pod) -> AsyncIterator[Rig]:
    async with FakeRemote() as remote:
        serve_pods(remote, played)
        rig = Rig(remote)
        try:
            yield rig
        finally:
            rig.forwards.close()


@asynccontextmanager
async def session(serve: Callable[[SpdyForward], Awaitable[None]]) -> AsyncIterator[Rig]:
    """One pod, with what only SPDY has."""

    async def handler(request: UpgradeRequest) -> None:
        await SpdyServer(request, "a", serve).run()

    async with pods() as rig:
        rig.remote.handler = handler
        yield rig


async def test_connections_one_after_the_other_share_a_session() -> None:
    async with pods(a=fake_pods.echo_data) as rig:
        for _ in range(5):
            client = await rig.exchange()
            client.transport.close()
            await client.ended()
            assert client.errors == []
        assert rig.sessions == 1


async def test_tunnel_bounds_the_receive_buffer_of_the_session() -> None:
    """The kernel would let it grow to megabytes if its size were not set."""
    async with pods(a=fake_pods.echo_data) as rig:
        tunnel = Tunnel(UnsentBudget().share("shop"))
        transport = (await rig.forwards.open(backend())).attach(tunnel.remote, print)
        sock = transport.receiving_socket
        assert sock is not None
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == MIN_BUFFER
        assert sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) == LOCKED
        tunnel.abort()


async def test_connections_at_the_same_time_have_sessions_of_their_own() -> None:
    async with pods(a=fake_pods.echo_data) as rig:
        clients = [await rig.exchange() for _ in range(3)]
        assert rig.sessions == 3
        for client in clients:
            client.transport.close()
        clients = [await rig.exchange() for _ in range(3)]
        assert rig.sessions == 3


async def test_released_connection_still_receives_beside_the_next_one() -> None:
    async with pods(a=fake_pods.echo_data) as rig:
        first = await rig.exchange()
        assert isinstance(first.transport, ForwardedStream)
        first.transport.release()
        second = await rig.exchange()
        assert rig.sessions == 1
        first.transport.write(b"more")
        await first.received(b"hellomore")
        second.transport.write(b"!")
        await second.received(b"hello!")


async def test_sessions_belong_to_one_pod() -> None:
    async with pods(a=fake_pods.echo_data, b=fake_pods.echo_data) as rig:
        for to in (backend("a"), backend("b"), backend("a", uid="its successor's")):
            (await rig.exchange(to)).transport.close()
        assert rig.sessions == 3
        (await rig.exchange(backend("b"))).transport.close()
        assert rig.sessions == 3


async def test_abandoned_connection_leaves_its_session_to_the_next() -> None:
    async with pods(a=fake_pods.echo_data) as rig:
        (await rig.forwards.open(backend())).close()
        await rig.exchange()
        assert rig.sessions == 1


async def test_idle_session_is_closed_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward_sessions, "IDLE_SECONDS", 0.05)
    async with pods(a=fake_pods.respond_with_name) as rig:
        client = await rig.connect()
        client.transport.write(b"who?")
        await client.ended()
        await wait_until(lambda: rig.remote.ended == 1)
        assert client.data == b"a"
        assert client.errors == []


async def test_idle_sessions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward_sessions, "MAX_IDLE", 2)
    async with pods(a=fake_pods.respond_with_name) as rig:
        clients = [await rig.connect() for _ in range(5)]
        for client in clients:
            client.transport.write(b"who?")
        await wait_until(lambda: rig.remote.ended == 3)
        assert all(it.data == b"a" and not it.errors for it in clients)


async def test_report_of_the_kubelet_is_an_error_of_one_connection() -> None:
    async with pods(a=fake_pods.refuse) as rig:
        client = await rig.connect()
        await client.ended()
        assert client.errors == ["failed to connect to localhost:8080 inside namespace"]


async def test_reset_stream_is_an_error_of_one_connection() -> None:
    async def reset(forward: SpdyForward) -> None:
        if await forward.receive() == b"reset":
            await forward.reset()
        await forward.gone()

    async with session(reset) as rig:
        first = await rig.connect()
        first.transport.write(b"wait")
        assert isinstance(first.transport, ForwardedStream)
        first.transport.release()
        second = await rig.connect()
        second.transport.write(b"reset")
        await second.ended()
        assert second.errors == ["the pod's node has reset the connection"]
        assert not first.is_lost
        assert rig.sessions == 1


async def test_lost_session_is_an_error_of_all_its_connections() -> None:
    async def cut(forward: AnyForward) -> None:
        await forward.receive()
        await forward.cut()

    async with pods(a=cut) as rig:
        client = await rig.connect()
        client.transport.write(b"x")
        await client.ended()
        assert client.errors == ["the remote's API server hung up"]
        await rig.connect()
        assert rig.sessions == 2


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(struct.pack("!HHI", 0x8002, 6, 4) + b"\x00" * 4, id="another version"),
        pytest.param(
            control(SYN_STREAM, struct.pack("!IIH", 2, 0, 0)), id="a stream of the server"
        ),
        pytest.param(struct.pack("!HHI", 0x8003, 4, 0xFFFFFF), id="an endless frame"),
    ],
)
async def test_violation_ends_the_session(frames: bytes) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await SpdyServer(request, "a", fake_pods.stay_silent).run(frames)

    async with pods() as rig:
        rig.remote.handler = handler
        client = await rig.connect()
        await client.ended()
        assert client.errors == ["the remote's API server sent what is no port-forward"]


async def test_session_that_the_server_winds_down_takes_no_more_streams() -> None:
    async def handler(request: UpgradeRequest) -> None:
        goaway = control(GOAWAY, struct.pack("!II", 0, 0))
        await SpdyServer(request, "a", fake_pods.echo_data).run(goaway)

    async with pods() as rig:
        rig.remote.handler = handler
        (await rig.exchange()).transport.close()
        (await rig.exchange()).transport.close()
        assert rig.sessions == 2


async def test_session_is_replaced_after_its_last_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy_session, "MAX_PAIRS", 2)
    async with pods(a=fake_pods.echo_data) as rig:
        for _ in range(5):
            (await rig.exchange()).transport.close()
        assert rig.sessions == 3
        await wait_until(lambda: rig.remote.ended == 2)


async def test_ping_is_answered_and_other_data_goes_on() -> None:
    async def pings(forward: AnyForward) -> None:
        await forward.ping()
        await fake_pods.echo_data(forward)

    async with pods(a=pings) as rig:
        client = await rig.exchange()
        assert client.errors == []


@pytest.mark.parametrize("count", [1, PORTION - 1, 100 * PORTION])
async def test_flood_of_pings_ends_the_session(count: int) -> None:
    async def floods(forward: AnyForward) -> None:
        await forward.receive()
        await forward.request.send(control(PING, struct.pack("!I", 2)) * count)
        await fake_pods.echo_data(forward)

    async with pods(a=floods) as rig:
        client = await rig.connect()
        client.transport.write(b"go")
        if count < PORTION:
            await asyncio.sleep(1)
            client.transport.write(b"hello")
            await client.received(b"hello")
        else:
            await client.ended()
            assert client.errors == ["the remote's API server sent what is no port-forward"]


async def test_flood_of_small_frames_leaves_turns_to_other_work() -> None:
    async def pours(forward: AnyForward) -> None:
        await forward.receive()
        assert isinstance(forward, SpdyForward)
        small = data_frame(forward.stream, b"x") + control(PING, struct.pack("!I", 2))
        await forward.request.send(small * 10_000)
        await forward.close()

    async with pods(a=pours) as rig:
        client = await rig.connect()
        pieces: list[int] = []
        client.transport.write(b"go")
        while not client.is_lost:
            pieces.append(len(client.data))
            await asyncio.sleep(0)
        assert client.data == b"x" * 10_000
        assert client.errors == []
        steps = [after - before for before, after in itertools.pairwise(pieces)]
        assert max(steps) <= PORTION


async def test_paused_connection_pauses_its_session() -> None:
    async def pours(forward: AnyForward) -> None:
        await forward.receive()
        for _ in range(64):
            await forward.send(b"x" * 65536)
        await forward.close()

    async with pods(a=pours) as rig:
        client = await rig.connect()
        client.transport.pause_reading()
        client.transport.write(b"go")
        await asyncio.sleep(0.1)
        assert client.data == b""
        client.transport.resume_reading()
        await client.ended()
        assert len(client.data) == 64 * 65536
        assert client.errors == []


async def test_many_connections_that_end_in_one_moment_end_in_order() -> None:
    """As those of a pod that exits do."""
    forwards: list[SpdyForward] = []

    async def ends_all(forward: SpdyForward) -> None:
        forwards.append(forward)
        await forward.send(await forward.receive())
        if len(forwards) == PORTION:
            await asyncio.sleep(0.1)
            streams = [number for each in forwards for number in (each.stream, each.stream - 2)]
            frames = (data_frame(number, b"", is_last=True) for number in streams)
            await forward.request.send(b"".join(frames))
        await forward.gone()

    async with session(ends_all) as rig:
        clients: list[Client] = []
        for _ in range(PORTION):
            client = await rig.exchange()
            assert isinstance(client.transport, ForwardedStream)
            client.transport.release()
            clients.append(client)
        await clients[-1].ended()
        assert all(client.has_ended_in_order for client in clients)
        assert [client.errors for client in clients] == [[]] * PORTION
        assert rig.sessions == 1


async def pours_after_more(forward: AnyForward) -> None:
    """Echoes, and pours data after ``more``."""
    while data := await forward.receive():
        await forward.send(data)
        for _ in range(200 if data.endswith(b"more") else 0):
            await forward.send(b"x" * 65536)


@pytest.mark.parametrize("pauses", ["before", "during"])
async def test_released_connection_that_stops_reading_does_not_delay_the_next_one(
    pauses: str,
) -> None:
    async with pods(a=pours_after_more) as rig:
        first = await rig.exchange()
        assert isinstance(first.transport, ForwardedStream)
        first.transport.release()
        opened = await rig.forwards.open(backend())
        if pauses == "before":
            first.transport.pause_reading()
        second = Client()
        second.transport = opened.attach(second, second.errors.append)
        if pauses == "during":
            second.transport.write(b"he")
            await second.received(b"he")
            first.transport.write(b"more")
            await asyncio.sleep(0.1)
            first.transport.pause_reading()
        second.transport.write(b"llo")
        await wait_until(lambda: second.data.endswith(b"llo"))
        await first.ended()
        assert not first.has_ended_in_order
        assert second.errors == []
        assert rig.sessions == 1


async def test_connection_that_was_slow_keeps_its_session() -> None:
    """It is not reset for the sake of another one."""
    async with pods(a=fake_pods.echo_data) as rig:
        first = await rig.exchange()
        assert isinstance(first.transport, ForwardedStream)
        first.transport.pause_reading()
        first.transport.resume_reading()
        first.transport.release()
        second = await rig.exchange()
        assert rig.sessions == 2
        first.transport.pause_reading()
        second.transport.write(b"!")
        await second.received(b"hello!")
        assert not first.is_lost


async def test_aborted_connection_ends_the_pods_and_not_the_session() -> None:
    ended = asyncio.Event()

    async def notices(forward: AnyForward) -> None:
        await forward.gone()
        ended.set()

    async with pods(a=notices) as rig:
        client = await rig.connect()
        client.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)
        await client.ended()
        await rig.connect()
        assert rig.sessions == 1


async def test_remote_without_spdy_gets_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_pods, "speaks_spdy", False)
    async with pods(a=fake_pods.echo_data) as rig:
        for _ in range(2):
            (await rig.exchange()).transport.close()
        assert [it.method for it in rig.remote.requests] == ["POST", "GET", "GET"]
        monkeypatch.setattr(fake_pods, "speaks_spdy", True)
        monkeypatch.setattr(port_forward_sessions, "RETRY_SECONDS", 0.0)
        rig.forwards = PortForwards(KubeClient(access_for(rig.remote.url, "remote")))
        await rig.exchange()
        assert rig.remote.requests[-1].method == "POST"


async def test_pod_without_port_forwards_leaves_spdy_to_other_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pods(a=fake_pods.echo_data) as rig:
        with monkeypatch.context() as patch:
            patch.setattr(fake_pods, "speaks_spdy", False)
            with pytest.raises(KubeError, match="no such pod"):
                await rig.forwards.open(backend("unscheduled"))
        await rig.exchange()
        assert [request.method for request in rig.remote.requests] == ["POST", "GET", "POST"]


async def test_missing_pod_is_an_error() -> None:
    async with pods() as rig:
        with pytest.raises(KubeError, match="no such pod"):
            await rig.forwards.open(backend())
        assert rig.sessions == 1


async def test_stream_that_the_kubelet_does_not_end_is_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spdy_session, "CLOSE_GRACE", 0.05)
    monkeypatch.setattr(port_forward_sessions, "IDLE_SECONDS", 0.05)
    never = asyncio.Event()

    async def stays(_: AnyForward) -> None:
        await never.wait()

    async with pods(a=stays) as rig:
        client = await rig.connect()
        client.transport.close()
        await client.ended()
        reader = rig.remote.requests[0].reader
        await wait_until(reader.at_eof)


@pytest.mark.parametrize("ends", ["data", "reset", "abort"])
async def test_connection_whose_error_stream_stays_open_is_forgotten(ends: str) -> None:
    """A kubelet that never ends it would fill the memory; its late frames are no violation."""
    session, below, client = SpdySession(lambda _: None), Below(), Client()
    session.connection_made(below)
    session.reserve()
    stream = session.open_stream(80, client, client.errors.append)
    if ends == "data":
        session.data_received(data_frame(3, b"x", is_last=True))
    elif ends == "reset":
        session.data_received(control(RST_STREAM, struct.pack("!II", 3, 6)))
    else:
        stream.abort()
    await client.ended()
    errors, kept = client.errors.copy(), weakref.ref(client)
    session.data_received(data_frame(1, b"late"))
    await asyncio.sleep(0.1)
    assert client.errors == errors
    del client, stream
    gc.collect()
    assert kept() is None
    session.data_received(data_frame(1, b"", is_last=True))
    session.data_received(control(RST_STREAM, struct.pack("!II", 1, 6)))
    await asyncio.sleep(0.1)
    assert session.is_usable


async def test_nothing_is_written_between_the_loss_and_the_last_frame() -> None:
    """The write once raised RuntimeError into the code that had data to send."""
    session, below, client = SpdySession(lambda _: None), Below(), Client()
    session.connection_made(below)
    session.reserve()
    stream = session.open_stream(80, client, client.errors.append)
    session.data_received(data_frame(3, b"x") * (2 * PORTION))
    below.ended = "lost"
    session.connection_lost(None)
    assert not client.is_lost
    stream.write(b"more")
    await client.ended()
    assert len(client.data) == 2 * PORTION
