"""Logs, from the remote's ``pods/log`` to a client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import aiohttp
import pytest

from bridge.net.unsent_budget import MAX_BUFFER, MIN_BUFFER
from sync.kube.sockets import READ_SIZE
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import UpgradeRequest, respond, wait_until
from tests.sync.kube.test_sockets import LOCKED, SO_BUF_LOCK

LOG = "/containerLogs/default/web/app"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; the last one when it is empty."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_log_uses_the_names_of_the_remote_pod(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD + chunk(b"one\n\xff") + chunk(b""))

    harness.remote.handler = handler
    target = LOG + "?follow=true&previous=false&timestamps=true&tailLines=5&limitBytes=100"
    async with harness.session() as session, session.get(target) as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        assert await response.read() == b"one\n\xff"
    request = harness.remote.requests[0]
    assert request.path == "/api/v1/namespaces/default-home/pods/web/log"
    assert sorted(request.query) == [
        ("container", "app"),
        ("follow", "true"),
        ("limitBytes", "100"),
        ("tailLines", "5"),
        ("timestamps", "true"),
    ]
    assert request.header_values("Authorization") == ["Bearer remote-credential"]


async def test_log_is_plain_text_whatever_the_remote_sends(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        head = HEAD.replace(b"text/plain", b"text/html\r\nSet-Cookie: a=b")
        await request.send(head + chunk(b"<script>alert(1)</script>") + chunk(b""))

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert response.content_type == "text/plain"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in response.headers


async def test_head_and_chunks_are_sent_as_they_arrive(harness: KubeletHarness) -> None:
    go_on = asyncio.Event()

    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD)
        for number in range(3):
            await go_on.wait()
            go_on.clear()
            await request.send(chunk(b"line %d\n" % number))
        await request.send(chunk(b""))

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG + "?follow=1") as response:
        assert response.status == 200
        for number in range(3):
            assert harness.server.streams.counts["logs"] == 1
            go_on.set()
            assert await response.content.readany() == b"line %d\n" % number
        assert await response.content.read() == b""
    assert harness.server.streams.bytes == {("logs", "out"): len("line 0\n") * 3}


async def test_disconnected_client_closes_the_remote_stream(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD + chunk(b"a line\n"))
        await request.wait_closed()

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG + "?follow=1") as response:
        assert await response.content.readany() == b"a line\n"
        assert harness.remote.ended == 0
        response.close()
        await wait_until(lambda: harness.remote.ended == 1)
        await wait_until(lambda: harness.server.streams.counts["logs"] == 0)


async def test_slow_client_slows_the_remote_down(harness: KubeletHarness) -> None:
    sent = 0

    async def handler(request: UpgradeRequest) -> None:
        nonlocal sent
        await request.send(HEAD)
        while sent < 60_000_000:
            await request.send(chunk(bytes(50_000)))
            sent += 50_000
        await request.send(chunk(b""))

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 40_000_000, "the bridge buffers all data of the remote"
        assert harness.held <= 2 * READ_SIZE + 256 * 1024
        buffers = harness.server.streams.unsent.receive_buffers
        assert 0 < buffers.held <= MAX_BUFFER - MIN_BUFFER, "the kernel has all the more"
        received = 0
        async for data in response.content.iter_any():
            received += len(data)
    assert received == 60_000_000
    await wait_until(lambda: buffers.held == 0)


async def test_connection_of_an_ended_log_has_no_limit_for_its_next_user(
    harness: KubeletHarness,
) -> None:
    """A watch may use it next, which must not be slow on a path with a long round trip."""
    requests: list[UpgradeRequest] = []

    async def handler(request: UpgradeRequest) -> None:
        requests.append(request)
        await request.send(HEAD + chunk(b"one\n"))
        await request.wait_closed()

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert await response.content.readany() == b"one\n"
        address = requests[0].writer.get_extra_info("peername")
        assert locked_buffers(address) == LOCKED
        await requests[0].send(chunk(b""))
        assert await response.content.readany() == b""
    await wait_until(lambda: locked_buffers(address) == 0)


def locked_buffers(address: tuple[str, int]) -> int:
    """The SO_BUF_LOCK of the socket of this process with this address."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=int(descriptor.name))
            try:
                if sock.getsockname() == address:
                    return sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
            finally:
                sock.detach()
    raise LookupError(address)


async def test_interrupted_log_does_not_end_normally(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD + chunk(b"half\n"))
        await asyncio.sleep(0.05)
        request.writer.transport.abort()

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()


@pytest.mark.parametrize("end", ["lost", "stop"])
async def test_client_without_chunks_does_not_take_a_part_for_the_whole(
    harness: KubeletHarness, end: str
) -> None:
    """A response to HTTP/1.0 ends with its connection."""

    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD + chunk(b"half\n"))
        await asyncio.sleep(0.05)
        if end == "lost":
            request.writer.transport.abort()
        await request.wait_closed()

    harness.remote.handler = handler
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    writer.write(f"GET {LOG} HTTP/1.0\r\n\r\n".encode())
    assert (await reader.readuntil(b"half\n")).startswith(b"HTTP/1.0 200")
    if end == "stop":
        await harness.server.stop(30.0)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_stop_ends_followed_logs(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.send(HEAD + chunk(b"half\n"))
        await request.wait_closed()

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert await response.content.readany() == b"half\n"
        started = asyncio.get_running_loop().time()
        await harness.server.stop(30.0)
        assert asyncio.get_running_loop().time() - started < 30
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()
        await wait_until(lambda: harness.remote.ended == 1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (400, 'container "app" in pod "web" is waiting to start: ContainerCreating'),
        (403, 'pods "web" is forbidden: User "bridge" cannot get resource "pods/log"'),
        (404, 'pods "web" not found'),
        (500, "the kubelet of the remote is on fire"),
    ],
)
async def test_error_of_the_remote_is_plain_text(
    harness: KubeletHarness, code: int, message: str
) -> None:
    quoted = message.replace('"', '\\"')
    status = f'{{"kind":"Status","message":"{quoted}","reason":"Because","code":{code}}}'

    async def handler(request: UpgradeRequest) -> None:
        await respond(request, code, status.encode())

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert response.status == code
        assert response.content_type == "text/plain"
        assert await response.text() == message


async def test_rejected_credential_of_the_bridge_gets_502(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await respond(request, 401, b'{"kind":"Status","code":401,"message":"Unauthorized"}')

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert response.status == 502
        assert "the bridge's credential" in await response.text()


async def test_unreachable_remote_gets_503(harness: KubeletHarness) -> None:
    await harness.remote.__aexit__()
    async with harness.session() as session, session.get(LOG) as response:
        assert response.status == 503
        assert "the remote cluster does not answer" in await response.text()


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("/containerLogs/default/other/app", 404, "default/other is not on this node"),
        ("/containerLogs/default/web/none", 404, "container none is not valid for pod web"),
        (LOG + "?sinceSeconds=x", 400, "sinceSeconds"),
        (LOG + "?sinceSeconds=0", 422, "sinceSeconds"),
    ],
)
async def test_rejected_requests_do_not_reach_the_remote(
    harness: KubeletHarness, target: str, status: int, words: str
) -> None:
    async with harness.session() as session, session.get(target) as response:
        assert response.status == status
        assert words in await response.text()
    assert not harness.remote.requests


async def test_logs_of_a_skipped_pod_get_its_reason(harness: KubeletHarness) -> None:
    skipped = {"type": "cluster-bridge.io/Accepted", "status": "False", "message": "nothing runs"}
    skipped["reason"] = "DaemonSetSkipped"
    agent = {"name": "agent", "namespace": "default", "uid": "1"}
    harness.directory.listed.append({"metadata": agent, "status": {"conditions": [skipped]}})
    target = "/containerLogs/default/agent/app"
    async with harness.session() as session, session.get(target) as response:
        # home's API server drops the body of a 404
        assert response.status == 400
        assert "DaemonSetSkipped: nothing runs" in await response.text()
    assert not harness.remote.requests


@pytest.mark.parametrize("digits", [400, 5000])
async def test_retry_after_of_the_remote_is_a_day_at_most(
    harness: KubeletHarness, digits: int
) -> None:
    async def handler(request: UpgradeRequest) -> None:
        head = b"HTTP/1.1 429 Busy\r\nRetry-After: %s\r\nContent-Length: 2\r\n\r\n{}"
        await request.send(head % (b"9" * digits))

    harness.remote.handler = handler
    async with harness.session() as session, session.get(LOG) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "86400"
