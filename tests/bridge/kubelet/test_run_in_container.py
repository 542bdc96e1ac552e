"""``/run``: an exec in the remote whose output is one response."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest

from bridge.kubelet import exec_attach_portforward
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import Handler, UpgradeRequest, respond, wait_until

RUN = "/run/default/web/app?cmd=ls%20-l%20/"
SUCCESS = b'{"metadata":{},"status":"Success"}'
FAILURE = b'{"status":"Failure","message":"command terminated with non-zero exit code: 3"}'


def frame(channel: int, data: bytes = b"") -> bytes:
    """One binary WebSocket message of a server, with less than 64 KiB of data."""
    payload = bytes([channel]) + data
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
    return b"\x82" + length + payload


async def switch_to_websocket(request: UpgradeRequest) -> None:
    """Answers 101 to a WebSocket."""
    key = request.header_values("Sec-WebSocket-Key")[0] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest())
    await request.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept
    )


def write_and_end(*frames: bytes) -> Handler:
    """A handler whose command writes these frames and exits; the server closes the WebSocket."""

    async def handler(request: UpgradeRequest) -> None:
        await switch_to_websocket(request)
        await request.send(b"".join(frames) + b"\x88\x02\x03\xe8")
        await request.wait_closed()

    return handler


async def test_stdout_precedes_stderr(harness: KubeletHarness) -> None:
    harness.remote.handler = write_and_end(
        frame(1), frame(2), frame(2, b"err"), frame(1, b"o" * 300), frame(3, SUCCESS)
    )
    async with harness.session() as session, session.post(RUN) as response:
        assert response.status == 200
        assert await response.read() == b"o" * 300 + b"err"
    request = harness.remote.requests[0]
    assert request.path == "/api/v1/namespaces/default-home/pods/web/exec"
    assert request.query == [
        ("container", "app"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "ls"),
        ("command", "-l"),
        ("command", "/"),
    ]
    assert request.header_values("Authorization") == ["Bearer remote-credential"]
    assert request.header_values("Accept") == ["*/*"]
    await wait_until(lambda: harness.server.streams.counts["run"] == 0)


@pytest.mark.parametrize(
    ("handler", "status", "words"),
    [
        (write_and_end(frame(1, b"out"), frame(3, FAILURE)), 500, "non-zero exit code: 3"),
        (write_and_end(frame(1, b"out")), 503, "before the command ended"),
        (write_and_end(frame(3, b"{")), 500, "is unknown"),
        (
            write_and_end(*[frame(1, bytes(60_000))] * 18),
            500,
            f"more than {exec_attach_portforward.MAX_OUTPUT} bytes",
        ),
        (write_and_end(*[frame(3, b" " * 60_000)] * 2, frame(3, SUCCESS)), 500, "is unknown"),
        (write_and_end(frame(3, b"[]")), 500, "is unknown"),
        (lambda request: respond(request, 403, b"{}"), 403, "403"),
        (lambda request: respond(request, 401, b"{}"), 502, "the bridge's credential"),
    ],
)
async def test_failures_have_a_reason(
    harness: KubeletHarness, handler: Handler, status: int, words: str
) -> None:
    harness.remote.handler = handler
    async with harness.session() as session, session.post(RUN) as response:
        assert response.status == status
        assert words in await response.text()


async def test_output_of_all_commands_is_bounded(
    harness: KubeletHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory as a whole, while the command runs."""
    monkeypatch.setattr(exec_attach_portforward, "MAX_OUTPUTS", 70_000)

    async def handler(request: UpgradeRequest) -> None:
        await switch_to_websocket(request)
        await request.send(frame(1, bytes(50_000)))
        await request.wait_closed()

    async with harness.session() as session:
        harness.remote.handler = handler
        first = asyncio.create_task(session.post(RUN))
        await wait_until(lambda: harness.server.streams.output > 0)
        harness.remote.handler = write_and_end(frame(1, bytes(50_000)), frame(3, SUCCESS))
        async with session.post(RUN) as response:
            assert response.status == 500
        first.cancel()
        await wait_until(lambda: harness.server.streams.output == 0)
        async with session.post(RUN) as response:
            assert await response.read() == bytes(50_000)


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/run/default/web/app", "POST", 400),
        ("/run/default/other/app?cmd=ls", "POST", 404),
        ("/run/default/web/none?cmd=ls", "POST", 404),
        ("/run/default/web/uid-2/app?cmd=ls", "POST", 404),
        (RUN, "GET", 405),
    ],
)
async def test_rejected_requests_do_not_reach_the_remote(
    harness: KubeletHarness, target: str, method: str, status: int
) -> None:
    async with harness.session() as session, session.request(method, target) as response:
        assert response.status == status
    assert not harness.remote.requests


async def test_disconnected_client_ends_the_command(harness: KubeletHarness) -> None:
    started = asyncio.Event()

    async def handler(request: UpgradeRequest) -> None:
        await switch_to_websocket(request)
        started.set()
        await request.wait_closed()

    harness.remote.handler = handler
    async with harness.session() as session:
        asking = asyncio.create_task(session.post(RUN).__aenter__())
        await started.wait()
        asking.cancel()
        await wait_until(lambda: harness.remote.ended == 1)
        await wait_until(lambda: harness.server.streams.counts["run"] == 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_of_the_remote_is_not_followed(harness: KubeletHarness, status: int) -> None:
    """A redirect would send the command to an address that the server names."""

    async def handler(request: UpgradeRequest) -> None:
        location = f"{harness.remote.url}/elsewhere?s3cret"
        head = f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        await request.send(head.encode())

    harness.remote.handler = handler
    async with harness.session() as session, session.post(RUN) as response:
        assert response.status == 502
        assert "s3cret" not in await response.text()
    assert [it.path for it in harness.remote.requests] == [
        "/api/v1/namespaces/default-home/pods/web/exec"
    ]


async def test_output_is_plain_text(harness: KubeletHarness) -> None:
    harness.remote.handler = write_and_end(
        frame(1, b"<script>alert(1)</script>"), frame(3, SUCCESS)
    )
    async with harness.session() as session, session.post(RUN) as response:
        assert response.content_type == "text/plain"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
