"""Connections of a client with an API server that is hostile, and with a name server that hangs."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sync.kube import connections
from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.connections import (
    FRESH_SECONDS,
    MAX_INTERIM,
    PATIENCE,
    NameLookup,
    connect_message,
)
from tests.fakeapi.credentials import StaticCredentials
from tests.fakeapi.tls import Authority
from tests.tls_control_records import ControlRecords


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[int]:
    """A server that answers each request with these bytes and stays open; yields its port."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
        writer.write(data)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def open_stream(client: KubeClient) -> None:
    async with client.stream(NODES.path(), answer_timeout=20.0):
        pass


@pytest.mark.parametrize("stream", [True, False])
async def test_endless_interim_responses_end_the_connection(stream: bool) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    began = asyncio.get_running_loop().time()
    async with answering(interim * 50 * MAX_INTERIM) as port:
        config = StaticCredentials(f"http://127.0.0.1:{port}", "remote", token=None)
        async with KubeClient(config) as client:
            with pytest.raises(Unreachable):
                await (open_stream(client) if stream else client.list(NODES))
    assert asyncio.get_running_loop().time() - began < 5


async def test_interim_responses_are_skipped() -> None:
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"items":[]}'
    async with answering(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + answer) as port:
        config = StaticCredentials(f"http://127.0.0.1:{port}", "remote", token=None)
        async with KubeClient(config) as client:
            assert (await client.list(NODES)).items == []


@pytest.mark.parametrize(
    "unrequested",
    [
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n",
    ],
    ids=["response", "part"],
)
async def test_connection_that_sends_while_idle_is_not_used_again(unrequested: bytes) -> None:
    """As load balancers do before they close an idle connection."""
    answered: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.read(2**16)).endswith(b"\r\n\r\n"):
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"items":[]}')
            answered.append(writer)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = StaticCredentials(f"http://127.0.0.1:{port}", "remote", token=None)
        async with KubeClient(config) as client:
            await client.list(NODES)
            await client.list(NODES)
            assert answered[0] is answered[1], "an idle connection is used again"
            answered[1].write(unrequested)
            await asyncio.sleep(1)
            assert (await client.list(NODES)).items == []
            assert answered[2] is not answered[1]
        await answered[2].wait_closed()


async def test_server_that_requests_new_keys_again_and_again_is_disconnected(
    authority: Authority,
) -> None:
    context = authority.server_context(authority.issue("hostile", address="127.0.0.1"))
    trusted = ssl.create_default_context(cafile=authority.cert)
    trusted.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def attack() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(20)
                peer = ControlRecords(sock, context, version="TLSv1_3", server_side=True)
                for record in itertools.islice(peer.records(), 200_000):
                    sock.sendall(record)

        attacking = asyncio.create_task(asyncio.to_thread(attack))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        async with KubeClient(
            StaticCredentials(url, "remote", token=None, context=trusted)
        ) as client:
            with pytest.raises(Unreachable, match="the connection broke"):
                await client.request("POST", NODES.path(), body={})
        with pytest.raises(ConnectionError):
            await attacking


# -- name servers ------------------------------------------------------------------------


class NameServer:
    """In place of the C library's resolver; a name hangs while it is in ``hanging``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.hanging: set[str] = set()
        self.failing: set[str] = set()
        self.release = threading.Event()
        self._original = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._find)

    def _find(self, host: str, port: int, *, flags: int = 0, **_: Any) -> list[tuple[Any, ...]]:
        if flags & socket.AI_NUMERICHOST:
            return self._original(host, port, type=socket.SOCK_STREAM, flags=flags)
        self.calls.append(host)
        if host in self.failing:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        if host in self.hanging:
            self.release.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    """A name server."""
    return NameServer(monkeypatch)


@pytest.mark.real_time
async def test_hanging_name_server_delays_no_other_server(names: NameServer) -> None:
    names.hanging.add("a.test")
    slow = [asyncio.create_task(NameLookup().find("a.test", 1)) for _ in range(20)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        assert await NameLookup().find("b.test", 1)
    names.release.set()
    assert len(await asyncio.gather(*slow)) == 20


async def test_names_of_one_server_are_looked_up_once(names: NameServer) -> None:
    lookup = NameLookup()
    found = await asyncio.gather(*(lookup.find("a.test", 1) for _ in range(20)))
    await lookup.find("a.test", 1)
    assert found == [found[0]] * 20
    assert names.calls == ["a.test"]
    await asyncio.sleep(FRESH_SECONDS)
    await lookup.find("a.test", 1)
    assert names.calls == ["a.test"] * 2


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["hanging", "failing"])
async def test_last_addresses_serve_while_the_name_server_does_not(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.0)
    lookup = NameLookup()
    found = await lookup.find("a.test", 1)
    getattr(names, kind).add("a.test")
    async with asyncio.timeout(PATIENCE + 5):
        assert await lookup.find("a.test", 1) == found
    names.release.set()


async def test_unknown_name_is_unreachable() -> None:
    with pytest.raises(socket.gaierror):
        await NameLookup().find("no-such-host.invalid", 1)


async def test_addresses_need_no_name_server(names: NameServer) -> None:
    assert (await NameLookup().find("::1", 1))[0][4][:2] == ("::1", 1)
    assert names.calls == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 6443)"),
            "connection refused by 127.0.0.1:6443",
        ),
        (
            OSError(errno.EHOSTUNREACH, "Connect call failed ('127.0.0.1', 6443)"),
            "127.0.0.1:6443: No route to host",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "127.0.0.1:6443: Name or service not known",
        ),
        (OSError(), "127.0.0.1:6443: cannot connect"),
    ],
    ids=["refused", "no route", "no such name", "no reason"],
)
def test_connect_message_names_address_and_cause(error: OSError, expected: str) -> None:
    assert connect_message(error, "https://127.0.0.1:6443") == expected


def test_connect_message_has_no_user_information() -> None:
    message = connect_message(OSError(errno.ECONNREFUSED, ""), "http://me:canary@proxy:3128")
    assert message == "connection refused by proxy:3128"
