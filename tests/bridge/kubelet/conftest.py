"""Fixtures: the kubelet API on real sockets with TLS, between a fake home and a fake remote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
import uvloop

from bridge.certificates.tls_key_pair import read_files
from bridge.kubelet import server as server_module
from bridge.kubelet.server import KubeletServer
from bridge.net.accepted_connections import TlsConnection
from bridge.net.open_file_budget import MAX_STREAMS
from sync.kube.client import KubeClient
from tests.bridge.kubelet.fake_api_servers import FakeHome, FakePodDirectory, FakeRemote, access_for
from tests.bridge.kubelet.pki import Pki
from tests.virtual_time_loop import loop_factories

#: Files whose tests run with uvloop, too: what streams do depends on the loop.
STREAM_FILES = (
    "test_exec_attach_portforward.py",
    "test_idle_streams.py",
    "test_logs.py",
    "test_stream_ends.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The default loop, and uvloop for streams."""
    factories = loop_factories(item)
    if item.path.name in STREAM_FILES:
        return {**factories, "uvloop": uvloop.new_event_loop}
    return factories


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Certificates for all parties."""
    return Pki(tmp_path_factory.mktemp("pki"))


@dataclass
class KubeletHarness:
    """The server under test, its fake clusters and its clients."""

    home: FakeHome
    remote: FakeRemote
    directory: FakePodDirectory
    server: KubeletServer
    pki: Pki
    connections: set[TlsConnection]
    """The server's open connections."""
    rejections: list[str]
    """The clients that rejected the certificate."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    @property
    def held(self) -> int:
        """Bytes that the server buffers for its clients."""
        return sum(it.get_write_buffer_size() for it in self.connections)

    def session(
        self, *, token: str | None = "good", cert: str | None = None
    ) -> aiohttp.ClientSession:
        """A client with this credential."""
        return aiohttp.ClientSession(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            connector=aiohttp.TCPConnector(ssl=self.pki.client_context(cert)),
        )

    async def upgrade(
        self, target: str, *headers: str, method: str = "POST", protocol: str = "SPDY/3.1"
    ) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Requests an upgrade as home's API server does; returns the response's head and the
        connection."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=self.pki.client_context("apiserver")
        )
        lines = [
            f"{method} {target} HTTP/1.1",
            "Host: node:10250",
            "Connection: Upgrade",
            f"Upgrade: {protocol}",
            *headers,
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        try:
            return await reader.readuntil(b"\r\n\r\n"), reader, writer
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()
            raise


def record_connections(monkeypatch: pytest.MonkeyPatch) -> set[TlsConnection]:
    """Makes servers add their open connections to the returned set."""
    connections: set[TlsConnection] = set()

    class Recorded(TlsConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connections.add(self)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connections.discard(self)

    monkeypatch.setattr(server_module, "TlsConnection", Recorded)
    return connections


@asynccontextmanager
async def running_server(
    pki: Pki, *, tls: bool = True, max_streams: int = MAX_STREAMS
) -> AsyncIterator[KubeletHarness]:
    """A kubelet API whose remote optionally uses TLS."""
    far_tls = pki.server_context("remote") if tls else None
    with pytest.MonkeyPatch.context() as monkeypatch:
        connections = record_connections(monkeypatch)
        async with FakeHome() as home, FakeRemote(far_tls) as far:
            to_home = access_for(home.url, "home")
            to_remote = access_for(far.url, "remote", pki.client_context(None) if tls else None)
            async with KubeClient(to_home) as one, KubeClient(to_remote) as other:
                directory, rejections = FakePodDirectory(), list[str]()
                server = KubeletServer(
                    home=one,
                    remote=other,
                    directory=directory,
                    node_name="virtual",
                    certificate=read_files(*pki.files("node")),
                    client_ca=pki.ca_text,
                    max_streams=max_streams,
                    on_certificate_rejected=rejections.append,
                )
                await server.start("127.0.0.1", 0)
                try:
                    yield KubeletHarness(home, far, directory, server, pki, connections, rejections)
                finally:
                    await server.stop(1.0)
                    assert sum(server.streams.counts.values()) == 0


@pytest.fixture
async def harness(pki: Pki) -> AsyncIterator[KubeletHarness]:
    """A kubelet API whose remote uses TLS."""
    async with running_server(pki) as made:
        yield made
