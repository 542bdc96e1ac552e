"""exec, attach and port-forward, from a client over TLS to a remote over TLS."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable

import pytest

from bridge.net.unsent_budget import MAX_WINDOW
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.fake_api_servers import EXEC, UpgradeRequest, echo, respond, wait_until
from tests.bridge.kubelet.pki import Pki


async def settled(amount: Callable[[], int]) -> None:
    """Waits until the amount no longer changes."""
    before = -1
    while before != amount():
        before = amount()
        await asyncio.sleep(0.3)


async def test_exec_uses_the_names_of_the_remote_pod(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    head, _, writer = await harness.upgrade(
        EXEC,
        "X-Stream-Protocol-Version: v5.channel.k8s.io",
        "X-Stream-Protocol-Version: v4.channel.k8s.io",
        "Authorization: Bearer good",
        "Cookie: session=1",
        "Impersonate-User: root",
        "X-Remote-User: root",
        "X-Forwarded-For: 10.0.0.1",
    )
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nUpgrade: SPDY/3.1\r\n" in head
    request = harness.remote.requests[0]
    assert request.method == "POST"
    assert request.path == "/api/v1/namespaces/default-home/pods/web/exec"
    assert request.query == [
        ("container", "app"),
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "sh"),
        ("command", "-c"),
        ("command", "a b&c"),
    ]
    assert request.header_values("X-Stream-Protocol-Version") == [
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
    ]
    assert request.header_values("Authorization") == ["Bearer remote-credential"]
    names = {name.lower() for name, _ in request.headers}
    assert names == {
        "host",
        "user-agent",
        "audit-id",
        "connection",
        "upgrade",
        "x-stream-protocol-version",
        "authorization",
    }
    writer.close()
    await wait_until(lambda: harness.remote.ended == 1)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/attach/default/web/app?output=1", "attach", [("container", "app"), ("stdout", "true")]),
        (
            "/exec/default/web/uid-1/app?command=%ff&tty=1&input=1&output=1&error=1",
            "exec",
            [("container", "app"), ("stdin", "true"), ("stdout", "true"), ("tty", "true")],
        ),
        ("/portForward/default/web", "portforward", []),
        ("/portForward/default/web/uid-1?port=80", "portforward", [("ports", "80")]),
    ],
)
async def test_remote_paths_and_queries(
    harness: KubeletHarness, target: str, path: str, query: list[tuple[str, str]]
) -> None:
    harness.remote.handler = echo
    head, _, writer = await harness.upgrade(target)
    assert head.startswith(b"HTTP/1.1 101 ")
    request = harness.remote.requests[0]
    assert request.path == f"/api/v1/namespaces/default-home/pods/web/{path}"
    assert [pair for pair in request.query if pair[0] != "command"] == query
    if "command" in target:
        assert request.target.endswith("&command=%FF")
    writer.close()


async def test_websocket_headers_are_forwarded_without_the_token(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: abc=\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
            b"Set-Cookie: pinned=1\r\n\r\n"
        )
        await request.wait_closed()

    harness.remote.handler = handler
    head, _, writer = await harness.upgrade(
        "/portForward/default/web?port=80&port=443",
        "Sec-WebSocket-Key: key==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io",
        method="GET",
        protocol="websocket",
    )
    assert b"Sec-WebSocket-Accept: abc=\r\n" in head
    assert b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n" in head
    assert b"Cookie" not in head
    request = harness.remote.requests[0]
    assert request.method == "GET"
    assert request.header_values("Sec-WebSocket-Key") == ["key=="]
    assert request.header_values("Sec-WebSocket-Version") == ["13"]
    assert request.header_values("Sec-WebSocket-Protocol") == ["v4.channel.k8s.io"]
    assert request.query == [("ports", "80"), ("ports", "443")]
    writer.close()


async def test_spdy_over_websocket_has_no_ports_in_the_query(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    head, _, writer = await harness.upgrade(
        "/portForward/default/web",
        "Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io",
        method="GET",
        protocol="websocket",
    )
    assert head.startswith(b"HTTP/1.1 101 ")
    assert harness.remote.requests[0].query == []
    writer.close()


@pytest.mark.parametrize("tls", [True, False])
async def test_data_arrives_unchanged_in_both_directions(pki: Pki, tls: bool) -> None:
    up, down = os.urandom(3_000_001), os.urandom(4_000_003)
    got = hashlib.sha256()

    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        request.writer.write(down)
        left = len(up)
        while left:
            data = await request.reader.read(50_000)
            got.update(data)
            left -= len(data)
        await request.send(got.digest())

    async with running_server(pki, tls=tls) as harness:
        harness.remote.handler = handler
        _, reader, writer = await harness.upgrade(EXEC)
        writer.write(up)
        assert await reader.readexactly(len(down)) == down
        assert await reader.read() == hashlib.sha256(up).digest()
        writer.close()


async def test_data_after_the_head_is_forwarded(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols(more=b"early ")
        await asyncio.sleep(0.02)
        await request.send(b"late")

    harness.remote.handler = handler
    _, reader, writer = await harness.upgrade(EXEC)
    assert await reader.read() == b"early late"
    writer.close()


@pytest.mark.parametrize("size", [5, 500_000])
async def test_data_before_the_response_is_forwarded(harness: KubeletHarness, size: int) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await asyncio.sleep(1.0)
        await echo(request)

    harness.remote.handler = handler
    early, late = os.urandom(size), b"late"
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    head = f"POST {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    writer.write(head.encode() + early)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    writer.write(late)
    assert await reader.readexactly(size + len(late)) == early + late
    writer.close()


async def test_slow_client_slows_the_remote_down(harness: KubeletHarness) -> None:
    sent = 0

    async def handler(request: UpgradeRequest) -> None:
        nonlocal sent
        request.writer.transport.set_write_buffer_limits(high=1024)
        await request.switch_protocols()
        chunk = bytes(64 * 1024)
        for _ in range(640):
            await request.send(chunk)
            sent += len(chunk)

    harness.remote.handler = handler
    _, reader, writer = await harness.upgrade(EXEC)
    await settled(lambda: sent)
    assert sent < 40_000_000, "the bridge buffers all data of the remote"
    assert harness.held <= 2 * MAX_WINDOW + 256 * 1024
    received = 0
    while data := await reader.read(1 << 20):
        received += len(data)
    assert received == 640 * 64 * 1024
    writer.close()


async def test_slow_remote_slows_the_client_down(harness: KubeletHarness) -> None:
    read_on = asyncio.Event()
    received = 0

    async def handler(request: UpgradeRequest) -> None:
        nonlocal received
        await request.switch_protocols()
        await read_on.wait()
        while data := await request.reader.read(1 << 20):
            received += len(data)
            if received == 30_000_000:
                await request.send(b"all")

    harness.remote.handler = handler
    _, reader, writer = await harness.upgrade(EXEC)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while sent < 30_000_000:
            writer.write(bytes(50_000))
            await writer.drain()
            sent += 50_000

    pouring = asyncio.create_task(pour())
    await settled(lambda: sent)
    assert sent < 20_000_000, "the bridge buffers all data of the client"
    read_on.set()
    await pouring
    assert await reader.readexactly(3) == b"all"
    writer.close()


@pytest.mark.parametrize("status", [400, 403, 404, 500])
async def test_error_response_is_returned_with_its_body(
    harness: KubeletHarness, status: int
) -> None:
    body = b'{"kind":"Status","message":"as it is: \xc3\xa4"}'

    async def handler(request: UpgradeRequest) -> None:
        await respond(request, status, body)

    harness.remote.handler = handler
    head, reader, writer = await harness.upgrade(EXEC)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Type: application/json" in head
    assert b"Cookie" not in head
    assert await reader.read() == body
    writer.close()


async def test_html_of_the_remote_is_returned_as_plain_text(harness: KubeletHarness) -> None:
    page = b"<script>alert(1)</script>"

    async def handler(request: UpgradeRequest) -> None:
        head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
        await request.send(head % len(page) + page)

    harness.remote.handler = handler
    head, _, writer = await harness.upgrade(EXEC)
    assert b"Content-Type: text/plain" in head
    assert b"X-Content-Type-Options: nosniff" in head
    writer.close()


@pytest.mark.parametrize("status", [301, 302, 307, 204])
async def test_redirect_of_the_remote_is_an_error(harness: KubeletHarness, status: int) -> None:
    async def handler(request: UpgradeRequest) -> None:
        head = (
            b"HTTP/1.1 %d Found\r\nLocation: http://elsewhere/?s3cret\r\nContent-Length: 0\r\n\r\n"
        )
        await request.send(head % status)

    harness.remote.handler = handler
    head, reader, writer = await harness.upgrade(EXEC)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"s3cret" not in head + await reader.read(1000)
    writer.close()


async def test_rejected_credential_of_the_bridge_gets_502(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await respond(request, 401, b"{}")

    harness.remote.handler = handler
    head, reader, writer = await harness.upgrade(EXEC)
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"the bridge's credential" in await reader.read(4096)
    writer.close()


async def test_unreachable_remote_gets_503(harness: KubeletHarness) -> None:
    await harness.remote.__aexit__()
    head, reader, writer = await harness.upgrade(EXEC)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"the remote cluster does not answer" in await reader.read(4096)
    writer.close()


@pytest.mark.parametrize(
    ("headers", "protocol"),
    [((), "h2c"), (("Content-Length: 3",), "SPDY/3.1"), (("Upgrade: websocket",), "SPDY/3.1")],
)
async def test_unsupported_upgrades_get_400(
    harness: KubeletHarness, headers: tuple[str, ...], protocol: str
) -> None:
    head, _, writer = await harness.upgrade(EXEC, *headers, protocol=protocol)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert not harness.remote.requests
    writer.close()


@pytest.mark.parametrize(
    "target", ["/exec/default/web/app?command=sh", "/portForward/default/web?port=x"]
)
async def test_invalid_query_gets_400(harness: KubeletHarness, target: str) -> None:
    head, _, writer = await harness.upgrade(target)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert not harness.remote.requests
    writer.close()


@pytest.mark.parametrize(
    "target", [EXEC, "/attach/default/web/app?output=1", "/portForward/default/web"]
)
async def test_request_without_upgrade_gets_400(harness: KubeletHarness, target: str) -> None:
    async with harness.session() as session, session.post(target) as response:
        assert response.status == 400
        assert "you must upgrade" in await response.text()
    assert not harness.remote.requests
