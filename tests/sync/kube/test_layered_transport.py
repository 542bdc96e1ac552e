"""TLS over a transport: nothing is lost at the end, and one direction can end alone."""

from __future__ import annotations

import asyncio
import collections
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pytest
import uvloop

from sync.kube.layered_transport import TlsLayer
from sync.kube.sockets import READ_SIZE
from tests.fakeapi.tls import Authority
from tests.tls_control_records import ControlRecords

#: Bytes of a socket's buffer, which would otherwise grow to several MB.
SOCKET_BUFFER = 65536

Factory = Callable[[], asyncio.AbstractEventLoop]


def both_loops() -> Mapping[str, Factory]:
    """The loops that these tests run on, by name."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=both_loops())
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Runs coroutines on one of the two loops."""
    with asyncio.Runner(loop_factory=both_loops()[request.param]) as made:
        yield made


@pytest.fixture(scope="session")
def server_tls(authority: Authority) -> ssl.SSLContext:
    """A server at 127.0.0.1."""
    return authority.server_context(authority.issue("tls-server", address="127.0.0.1"))


@pytest.fixture
def client_tls(authority: Authority) -> ssl.SSLContext:
    """A client that trusts it."""
    context = ssl.create_default_context(cafile=authority.cert)
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


class Recorder(asyncio.Protocol):
    """Records the calls of a transport."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.data = bytearray()
        self.eof = False
        self.transport: asyncio.Transport
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._keep_open = keep_open
        self.pause_after = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert not self.eof
        self.data += data
        if self.pause_after and len(self.data) >= self.pause_after:
            self.pause_after = 0
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.3, self.transport.resume_reading)

    def eof_received(self) -> bool:
        self.eof = True
        return self._keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@contextmanager
def blocking_server(play: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server in a thread: it can end a connection at once, as programs in Go do."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)

    def run() -> None:
        sock, _ = listener.accept()
        sock.settimeout(5)
        play(sock)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join()
        listener.close()


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true; the test's own limit bounds it."""
    while not condition():  # noqa: ASYNC110  # others change it, and know nothing of tests
        await asyncio.sleep(0.01)


async def connected(
    recorder: Recorder, context: ssl.SSLContext, port: int, name: str = "127.0.0.1"
) -> TlsLayer:
    layer = TlsLayer(context, lambda: recorder, server_hostname=name)
    await asyncio.get_running_loop().create_connection(lambda: layer, "127.0.0.1", port)
    await layer.ready
    return layer


@pytest.mark.parametrize("notify", [True, False])
def test_data_sent_before_the_peer_disconnects_arrives_despite_a_pause(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, notify: bool
) -> None:
    def play(sock: socket.socket) -> None:
        with server_tls.wrap_socket(sock, server_side=True) as tls:
            tls.sendall(bytes(20_000))
            threading.Event().wait(0.1)
            tls.sendall(bytes(130_000))
            if notify:
                tls.setblocking(False)
                with pytest.raises(ssl.SSLWantReadError):
                    tls.unwrap()

    async def main(port: int) -> None:
        recorder = Recorder()
        recorder.pause_after = 1
        await connected(recorder, client_tls, port)
        assert await recorder.lost is None
        assert len(recorder.data) == 150_000
        assert recorder.eof

    with blocking_server(play) as port:
        runner.run(main(port))


def test_write_eof_keeps_the_other_direction_open(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        served: list[Recorder] = []

        def accept() -> Recorder:
            served.append(Recorder(keep_open=True))
            return served[0]

        server = await loop.create_server(
            lambda: TlsLayer(server_tls, accept, server_side=True), "127.0.0.1", 0
        )
        recorder = Recorder()
        layer = await connected(recorder, client_tls, server.sockets[0].getsockname()[1])
        layer.writelines([b"the ", bytearray(b"question"), memoryview(b"?")])
        layer.write_eof()
        layer.write(b"too late")
        await until(lambda: bool(served) and served[0].eof)
        assert served[0].data == b"the question?"
        for _ in range(100):
            served[0].transport.write(bytes(50_000))
        served[0].transport.close()
        assert await recorder.lost is None
        assert len(recorder.data) == 5_000_000
        assert await served[0].lost is None
        server.close()

    runner.run(main())


def test_write_eof_is_sent_after_received_data_is_delivered(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    """OpenSSL takes unread data for a fault of the peer, when it ends our direction."""

    def play(sock: socket.socket) -> None:
        with server_tls.wrap_socket(sock, server_side=True) as tls:
            tls.sendall(bytes(300_000))
            assert tls.recv(10) == b""
            tls.sendall(b"the end")

    async def main(port: int) -> None:
        recorder = Recorder(keep_open=True)
        recorder.pause_after = 1
        layer = await connected(recorder, client_tls, port)
        await until(lambda: bool(recorder.data))
        layer.write_eof()
        await until(lambda: recorder.eof)
        assert len(recorder.data) == 300_007
        layer.close()
        await recorder.lost

    with blocking_server(play) as port:
        runner.run(main(port))


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_peer_that_requests_new_keys_again_and_again_is_disconnected(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, version: str
) -> None:
    """It does not read OpenSSL's replies."""
    layers: list[TlsLayer] = []

    def accept() -> TlsLayer:
        layers.append(TlsLayer(server_tls, Recorder, server_side=True))
        return layers[-1]

    def attack(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            records = ControlRecords(sock, client_tls, version=version).records()
            many = itertools.islice(records, 500_000)
            with pytest.raises(ConnectionError):
                collections.deque(map(sock.sendall, many), maxlen=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(accept, "127.0.0.1", 0)
        await asyncio.to_thread(attack, listener.sockets[0].getsockname()[1])
        assert layers[0].is_closing()
        listener.close()

    runner.run(main())


def test_other_connections_have_a_turn_after_each_read(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    size = 4_000_000

    def send(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as sock,
            client_tls.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
        ):
            tls.sendall(bytes(size))
            tls.unwrap()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        recorder = Recorder()
        listener = await loop.create_server(
            lambda: TlsLayer(server_tls, lambda: recorder, server_side=True), "127.0.0.1", 0
        )
        sending = asyncio.create_task(asyncio.to_thread(send, listener.sockets[0].getsockname()[1]))
        received = 0
        while received < size:
            await asyncio.sleep(0)
            assert len(recorder.data) - received <= 2 * READ_SIZE
            received = len(recorder.data)
        await sending
        listener.close()

    runner.run(main())


def test_pause_reading_stops_the_sender(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    sent = 0

    def play(sock: socket.socket) -> None:
        nonlocal sent
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        with server_tls.wrap_socket(sock, server_side=True) as tls:
            while sent < 30_000_000:
                tls.sendall(bytes(100_000))
                sent += 100_000

    async def main(port: int) -> None:
        recorder = Recorder()
        layer = await connected(recorder, client_tls, port)
        layer.pause_reading()
        layer.pause_reading()
        assert not layer.is_reading()
        layer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER
        )
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 2_000_000, "the layer reads ahead what its owner does not take"
        assert not recorder.data
        layer.resume_reading()
        assert await recorder.lost is None
        assert len(recorder.data) == 30_000_000

    with blocking_server(play) as port:
        runner.run(main(port))


@pytest.mark.parametrize("name", ["10.0.0.1", "other.example"])
def test_certificate_for_another_name_is_rejected(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, name: str
) -> None:
    def play(sock: socket.socket) -> None:
        with pytest.raises(ssl.SSLError), server_tls.wrap_socket(sock, server_side=True) as tls:
            tls.recv(1)
        sock.close()

    async def main(port: int) -> None:
        recorder = Recorder()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(recorder, client_tls, port, name)
        assert not recorder.lost.done()

    with blocking_server(play) as port:
        runner.run(main(port))


def test_peer_without_tls_fails_the_handshake(
    runner: asyncio.Runner, client_tls: ssl.SSLContext
) -> None:
    async def main(port: int, expected: type[Exception]) -> None:
        with pytest.raises(expected):
            await connected(Recorder(), client_tls, port)

    def speak(sock: socket.socket) -> None:
        with sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            sock.recv(1000)

    for play, expected in ((speak, ssl.SSLError), (socket.socket.close, ConnectionResetError)):
        with blocking_server(play) as port:
            runner.run(main(port, expected))


def test_handshake_times_out(runner: asyncio.Runner, client_tls: ssl.SSLContext) -> None:
    def play(sock: socket.socket) -> None:
        with sock:
            while sock.recv(1000):
                pass

    async def main(port: int) -> None:
        layer = TlsLayer(client_tls, Recorder, server_hostname="x", handshake_timeout=0.1)
        await asyncio.get_running_loop().create_connection(lambda: layer, "127.0.0.1", port)
        with pytest.raises(TimeoutError):
            await layer.ready

    with blocking_server(play) as port:
        runner.run(main(port))


def test_extra_info_has_the_peer_certificate(
    runner: asyncio.Runner, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    def play(sock: socket.socket) -> None:
        with server_tls.wrap_socket(sock, server_side=True) as tls:
            assert tls.recv(1) == b""

    async def main(port: int) -> None:
        recorder = Recorder()
        layer = await connected(recorder, client_tls, port)
        assert "tls-server" in str(layer.get_extra_info("peercert")["subject"])
        assert layer.get_extra_info("sslcontext") is client_tls
        assert layer.get_extra_info("ssl_object") is not None
        assert layer.get_extra_info("peername")[1] == port
        assert layer.get_extra_info("nothing", 7) == 7
        assert layer.get_protocol() is recorder
        assert layer.can_write_eof()
        assert layer.get_write_buffer_size() == 0
        layer.set_write_buffer_limits(high=10)
        assert layer.get_write_buffer_limits()[1] == 10
        layer.close()
        layer.close()
        assert layer.is_closing()
        assert await recorder.lost is None

    with blocking_server(play) as port:
        runner.run(main(port))
