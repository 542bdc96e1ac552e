"""Opening an upgrade: what is sent, what is read, and what is left when it fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from sync.base.clock import now
from sync.kube.api_errors import ApiServerCertificateError, Unreachable
from sync.kube.client import KubeClient
from sync.kube.connections import Dialer
from sync.kube.credentials import Credentials
from sync.kube.endpoint import Credential, Endpoint
from sync.kube.http1 import HEAD_LIMIT
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.transport import REQUEST_TIMEOUT
from tests.fakeapi import CLOSED_PORT
from tests.fakeapi.credentials import StaticCredentials
from tests.fakeapi.http_proxy import proxying
from tests.fakeapi.tls import Authority

Play = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"


class Server:
    """Plays ``play`` with each head that it gets."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.requested = asyncio.Event()
        self.play: Play
        self.port = 0
        self.open = 0
        """How many connections are not ended yet."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            self.requested.set()
            await self.play(self.heads[-1], reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.open -= 1

    def answers(self, *pieces: bytes) -> None:
        """Each piece is sent on its own, a moment after the one before."""

        async def play(_: str, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)

        self.play = play


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server on a port of its own."""
    server = Server()
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server
        async with asyncio.timeout(30):
            while server.open:  # noqa: ASYNC110  # nothing may be left of a connection
                await asyncio.sleep(0.005)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server without TLS."""
    async with serving() as made:
        yield made


class RenewedCredentials(StaticCredentials):
    """Credentials that are renewed as often as ``tokens`` has one."""

    def __init__(self, url: str, *tokens: str) -> None:
        super().__init__(url, "remote", token=next(iter(tokens), None))
        self._left = list(tokens[1:])

    async def renew(self, seen: int) -> bool:
        assert seen == self.generation
        if not self._left:
            return False
        self.credential = Credential(authorization=f"Bearer {self._left.pop(0)}")
        self.generation += 1
        return True


def access(server: Server, *credentials: str, prefix: str = "") -> RenewedCredentials:
    """Credentials for a server without TLS."""
    return RenewedCredentials(f"http://127.0.0.1:{server.port}{prefix}", *credentials)


async def opened(to: Credentials) -> UpgradeResponse:
    """An upgrade as the others ask for it."""
    headers = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4"), ("X-A", "1")]
    query = [("command", "a b"), ("command", "\udcff&"), ("stdin", "true")]
    return await open_upgrade(KubeClient(to), "POST", "/api/v1/pods/a%2Fb/exec", query, headers)


class Reader(asyncio.Protocol):
    """Records the calls of a transport."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()


async def test_request_head_of_an_upgrade(server: Server) -> None:
    server.answers(SWITCH)
    upgraded = await opened(access(server, "token", prefix="/k8s/c1"))
    assert upgraded.status == 101
    assert upgraded.head.values("upgrade") == ["SPDY/3.1"]
    assert server.heads[0].split("\r\n") == [
        "POST /k8s/c1/api/v1/pods/a%2Fb/exec?command=a%20b&command=%FF%26&stdin=true HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "User-Agent: cluster-bridge",
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        "X-Stream-Protocol-Version: v4",
        "X-A: 1",
        "Authorization: Bearer token",
        "",
        "",
    ]
    assert "token" not in repr(upgraded)
    upgraded.close()
    upgraded.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [SWITCH + b"early", b"late"],
        [SWITCH[:20], SWITCH[20:-1], SWITCH[-1:] + b"early", b"late"],
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + SWITCH,
            b"earlylate",
        ],
        [SWITCH, b"early", b"late"],
    ],
)
@pytest.mark.parametrize("wait", [0, 0.1])
async def test_bytes_after_the_head_are_delivered_first(
    server: Server, pieces: list[bytes], wait: float
) -> None:
    server.answers(*pieces)
    upgraded = await opened(access(server))
    await asyncio.sleep(wait)
    reader = Reader()
    upgraded.take(reader)
    await asyncio.wait_for(reader.lost.wait(), 5)
    assert reader.data == b"earlylate"
    with pytest.raises(RuntimeError):
        upgraded.take(reader)


async def test_buffer_before_take_is_bounded(server: Server) -> None:
    sent = 0

    async def play(_: str, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SWITCH)
        while sent < 30_000_000:
            writer.write(bytes(50_000))
            await writer.drain()
            sent += 50_000

    server.play = play
    upgraded = await opened(access(server))
    await asyncio.sleep(0.5)
    assert sent < 20_000_000
    reader = Reader()
    upgraded.take(reader)
    await asyncio.wait_for(reader.lost.wait(), 10)
    assert len(reader.data) == 30_000_000


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"Content-Length: 4\r\n\r\nbody and more", b"body"),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n", b"body"),
        (b"\r\nbody", b"body"),
        (b"Content-Length: 0\r\n\r\n", b""),
    ],
)
async def test_rejected_upgrade_has_its_body(server: Server, answer: bytes, body: bytes) -> None:
    server.answers(b"HTTP/1.1 403 Forbidden\r\nX-A: b\r\n" + answer)
    upgraded = await opened(access(server))
    assert (upgraded.status, upgraded.body) == (403, body)
    assert upgraded.head.values("X-A") == ["b"]
    with pytest.raises(RuntimeError):
        upgraded.take(Reader())


async def test_credential_that_is_read_meanwhile_is_not_sent_to_the_previous_address(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = access(server, "previous")
    connect = Dialer.connect

    async def read_meanwhile(*args: Any, **kwargs: Any) -> Any:
        connection = await connect(*args, **kwargs)
        to.endpoint = Endpoint("http://127.0.0.1:1")
        to.credential = Credential(authorization="Bearer next")
        return connection

    monkeypatch.setattr(Dialer, "connect", read_meanwhile)
    server.answers(SWITCH)
    (await opened(to)).close()
    assert "Bearer previous" in server.heads[0]


async def test_after_401_the_credential_is_renewed_once(server: Server) -> None:
    async def play(head: str, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = b"101 Switching Protocols" if "Bearer new" in head else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    server.play = play
    upgraded = await opened(access(server, "old", "new"))
    assert upgraded.status == 101
    upgraded.close()
    assert (await opened(access(server, "old"))).status == 401
    assert (await opened(access(server, "old", "older", "new"))).status == 401
    assert len(server.heads) == 5


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection before it answered"),
        (b"HTTP/1.1 101 Swi", "closed the connection before it answered"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\ncut", "cut short"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is not HTTP/1.1"),
        (b"HTTP/1.1 101 OK\r\nA: " + b"a" * 2 * HEAD_LIMIT, "head is too long"),
        (b"HTTP/1.1 101 OK\r\nA: " + b"a" * 2 * HEAD_LIMIT + b"\r\n\r\n", "head is too long"),
        (
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000,
            "too many parts",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "too many parts"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "response to an upgrade has status 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "response to an upgrade has status 302"),
    ],
)
async def test_malformed_responses_are_unreachable(
    server: Server, answer: bytes, words: str
) -> None:
    server.answers(answer)
    with pytest.raises(Unreachable, match=words) as error:
        await opened(access(server, "s3cret"))
    assert str(error.value).startswith("remote: POST /api/v1/pods/a%2Fb/exec (upgrade): ")
    assert "s3cret" not in str(error.value)
    assert "a b" not in str(error.value)


async def test_connection_failures_name_the_address() -> None:
    with pytest.raises(Unreachable, match=r"connection refused by 127\.0\.0\.1:1"):
        await opened(RenewedCredentials(f"http://127.0.0.1:{CLOSED_PORT}"))
    with pytest.raises(Unreachable, match=r"none\.invalid: "):
        await opened(RenewedCredentials("http://none.invalid"))


async def test_silent_server_times_out(server: Server) -> None:
    left = asyncio.Event()

    async def play(_: str, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        left.set()

    server.play = play
    started = now()
    with pytest.raises(Unreachable, match="in time"):
        await opened(access(server))
    assert now() - started == pytest.approx(REQUEST_TIMEOUT, abs=0.1)
    await asyncio.wait_for(left.wait(), 2)


async def test_being_cancelled_leaves_nothing(server: Server) -> None:
    left = asyncio.Event()

    async def play(_: str, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        left.set()

    server.play = play
    opening = asyncio.create_task(opened(access(server)))
    await server.requested.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.wait_for(left.wait(), 2)


@pytest.fixture
async def secure(authority: Authority) -> AsyncIterator[Server]:
    """A server with TLS, which takes client certificates."""
    pair = authority.issue("upgrade-server", address="127.0.0.1")
    async with serving(authority.server_context(pair)) as made:
        yield made


def trusting(
    authority: Authority, server: Server, *, by_name: str | None = None
) -> RenewedCredentials:
    """Credentials for a server with TLS."""
    made = RenewedCredentials(f"https://127.0.0.1:{server.port}", "token")
    made.tls = ssl.create_default_context(cafile=authority.cert)
    made.tls.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    made.endpoint = replace(made.endpoint, tls_server_name=by_name)
    return made


async def test_over_tls(secure: Server, authority: Authority) -> None:
    secure.answers(SWITCH + b"hello")
    upgraded = await opened(trusting(authority, secure))
    reader = Reader()
    upgraded.take(reader)
    await asyncio.wait_for(reader.lost.wait(), 5)
    assert reader.data == b"hello"


async def test_untrusted_certificate_is_a_certificate_error(
    secure: Server, authority: Authority
) -> None:
    to = trusting(authority, secure)
    to.tls = ssl.create_default_context()
    with pytest.raises(ApiServerCertificateError, match="certificate-authority"):
        await opened(to)
    with pytest.raises(ApiServerCertificateError):
        await opened(trusting(authority, secure, by_name="other.example"))
    assert not secure.heads


async def test_through_a_proxy(secure: Server, authority: Authority) -> None:
    secure.answers(SWITCH + b"hello", b" you")
    to = trusting(authority, secure)
    async with proxying() as (proxy, port):
        to.endpoint = replace(to.endpoint, proxy=f"http://me:p%40ss@127.0.0.1:{port}")
        upgraded = await opened(to)
        reader = Reader()
        upgraded.take(reader)
        await asyncio.wait_for(reader.lost.wait(), 5)
    assert reader.data == b"hello you"
    assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{secure.port} HTTP/1.1\r\n")
    credential = base64.b64encode(b"me:p@ss").decode()
    assert f"Proxy-Authorization: Basic {credential}\r\n" in proxy.heads[0]
    assert "token" not in proxy.heads[0]
    assert "Bearer token" in secure.heads[0]


async def test_rejecting_proxy_is_named_without_its_password(
    secure: Server, authority: Authority
) -> None:
    to = trusting(authority, secure)
    async with proxying() as (proxy, port):
        proxy.connect_response = (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
        )
        to.endpoint = replace(to.endpoint, proxy=f"http://me:s3cret@127.0.0.1:{port}")
        with pytest.raises(
            Unreachable, match=f"the proxy for .*: 127.0.0.1:{port}: .*407"
        ) as error:
            await opened(to)
    assert "s3cret" not in str(error.value)
