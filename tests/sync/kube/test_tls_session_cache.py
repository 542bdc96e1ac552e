"""TLS sessions that later connections go on with, and what they must not be taken for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sync.kube import tls_session_cache as sessions_module
from sync.kube.tls_over_transport import TlsLayer
from sync.kube.tls_session_cache import TlsSessionCache
from tests.fakeapi.tls import Authority

NAME = "127.0.0.1"


class Hello(asyncio.Protocol):
    """Waits for the first bytes: a session comes with them."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(data)


@pytest.fixture
def server_tls(authority: Authority) -> ssl.SSLContext:
    """A server that the client trusts."""
    return authority.server_context(authority.issue("sessions", address=NAME))


@pytest.fixture
def other_tls(tmp_path: Path) -> ssl.SSLContext:
    """One that it does not."""
    other = Authority(tmp_path)
    return other.server_context(other.issue("sessions", address=NAME))


@pytest.fixture
def client_tls(authority: Authority) -> ssl.SSLContext:
    """A client."""
    context = ssl.create_default_context(cafile=authority.cert)
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that sends a greeting."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    server = await asyncio.start_server(greet, NAME, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def connected(context: ssl.SSLContext, port: int, sessions: TlsSessionCache) -> ssl.SSLObject:
    """The recorded properties of one connection."""
    hello = Hello()
    known = sessions.get(context, NAME)
    layer = TlsLayer(context, lambda: hello, server_hostname=NAME, session=known)
    await asyncio.get_running_loop().create_connection(lambda: layer, NAME, port)
    try:
        await layer.ready
        assert await hello.heard == b"hello"
        found: ssl.SSLObject = layer.get_extra_info("ssl_object")
        sessions.put(found)
        return found
    finally:
        layer.abort()


async def test_later_connections_resume_the_session(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    sessions = TlsSessionCache()
    async with serving(server_tls) as port:
        found = [await connected(client_tls, port, sessions) for _ in range(3)]
    assert [it.session_reused for it in found] == [False, True, True]


async def test_session_is_resumed_only_for_its_context_and_name(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    """Another credential, or another trust, is another context."""
    sessions = TlsSessionCache()
    async with serving(server_tls) as port:
        await connected(client_tls, port, sessions)
    assert sessions.get(client_tls, NAME) is not None
    assert sessions.get(client_tls, "localhost") is None
    assert sessions.get(ssl.create_default_context(), NAME) is None


async def test_certificates_are_verified_again_after_expiry(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often connections went on with the session meanwhile."""
    monkeypatch.setattr(sessions_module, "SECONDS", 100.0)
    sessions = TlsSessionCache()
    reused = []
    async with serving(server_tls) as port:
        for passed in (0.0, 60.0, 60.0):
            await asyncio.sleep(passed)
            reused.append((await connected(client_tls, port, sessions)).session_reused)
    assert reused == [False, True, False]


async def test_other_server_is_verified_despite_a_session(
    server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, other_tls: ssl.SSLContext
) -> None:
    sessions = TlsSessionCache()
    async with serving(server_tls) as port:
        await connected(client_tls, port, sessions)
    async with serving(other_tls) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(client_tls, port, sessions)
