"""The HTTP server of all listeners, on a plain socket."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from bridge.net.http_server import MAX_HEAD, MAX_HEADER, MAX_HEADERS, HttpServer

SOON = 5.0
CANARY = "planted"


@asynccontextmanager
async def served(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server with this handler."""
    http = HttpServer(handler)
    listener = await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        listener.close()
        await http.shutdown(SOON)


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    """Responds with the body."""
    return web.Response(body=await request.read())


async def response_to(data: bytes) -> bytes:
    """Everything that the server responds until it closes the connection."""
    async with served(echo) as (reader, writer):
        writer.write(data)
        async with asyncio.timeout(SOON):
            return await reader.read()


@pytest.mark.parametrize(
    "data",
    [
        f"GET / HTTP/1.1\r\nHost: x\r\nCookie: {CANARY}\r\n\x00Cookie: {CANARY}\r\n\r\n",
        f"GET /{CANARY}\xe4 HTTP/1.1\r\nHost: x\r\n\r\n",
        f"{CANARY} nonsense\r\n\r\n",
        f"GET / HTTP/2.0\r\nHost: x\r\nCookie: {CANARY}\r\n\r\n",
        f"GET /{CANARY} HTTP/9.9\r\nHost: x\r\n\r\n",
        f"GET /{CANARY}\r\n\r\n",
        f"GET http://[::1/{CANARY} HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\0" * 9,
        f"GET / HTTP/1.1\r\nHost: x\r\nX: {CANARY * MAX_HEADER}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n" + f"X: {CANARY}\r\n" * (MAX_HEADERS + 1) + "\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n" + f"X: {CANARY * 150}\r\n" * (MAX_HEAD // 1000) + "\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n" + f"X: {CANARY * 150}\r\n" * (MAX_HEADERS - 2),
        f"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{CANARY}\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{CANARY}\r\n",
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n"
            f"\r\n{CANARY}"
        ),
    ],
)
async def test_malformed_request_gets_400_and_is_quoted_nowhere(
    data: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    response = await response_to(data.encode("latin-1"))
    assert re.match(rb"HTTP/1\.[01] 400 ", response), response
    assert CANARY.encode() not in response
    assert not [it for it in caplog.records if it.name != "asyncio"]


async def test_compressed_body_is_not_decompressed() -> None:
    body = gzip.compress(bytes(1000))
    head = (
        f"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n"
    )
    response = await response_to(f"{head}Connection: close\r\n\r\n".encode() + body)
    assert response.endswith(b"\r\n\r\n" + body)


async def test_defect_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError(f"a defect {CANARY}")

    async with served(fail) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
    assert "RuntimeError" in caplog.text
    assert "test_http_server.py" in caplog.text
    assert CANARY not in caplog.text


async def test_pipelined_requests_are_not_read_ahead_of_the_handler() -> None:
    held = asyncio.Event()

    async def hold(_: web.BaseRequest) -> web.StreamResponse:
        await held.wait()
        return web.Response()

    async with served(hold) as (_, writer):
        # More than the sockets buffer.
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000)
        await asyncio.sleep(10)
        left = writer.transport.get_write_buffer_size()
        await asyncio.sleep(10)
        assert writer.transport.get_write_buffer_size() == left > 1_000_000
        held.set()


async def test_head_within_the_limits_is_served() -> None:
    head = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + f"X: {'a' * 1000}\r\n" * 30
    assert (await response_to(f"{head}\r\n".encode())).startswith(b"HTTP/1.1 200 ")


async def test_handler_is_cancelled_when_its_client_disconnects() -> None:
    cancelled = asyncio.Event()

    async def hold(_: web.BaseRequest) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with served(hold) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.transport.abort()
        async with asyncio.timeout(SOON):
            await cancelled.wait()


async def test_handler_of_a_disconnected_client_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    """The connection has just ended, and the cancellation of the handler is still to come."""
    failed = asyncio.Event()

    async def fail(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        failed.set()
        raise ConnectionResetError("the client has disconnected")

    async with served(fail) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(SOON):
            await failed.wait()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    assert caplog.records == []
