"""Hours without data, on real sockets and with an event loop whose clock a test can advance.

Every timer of the loop fires when the clock passes it. Advancing the clock does not affect the
operating system's timers, such as those of TCP keepalive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bridge.net.splice import IDLE_TIMEOUT
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.fake_api_servers import EXEC, UpgradeRequest, echo, wait_until
from tests.bridge.kubelet.pki import Pki

HOUR = 3600.0


class AdvancingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be advanced."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    async def advance(self, seconds: float) -> None:
        """Advances the clock in steps, and lets due timers fire after each."""
        for _ in range(10):
            self.ahead += seconds / 10
            await asyncio.sleep(0)
            await asyncio.sleep(0.02)


def run(pki: Pki, test: Callable[[AdvancingLoop, KubeletHarness], Awaitable[None]]) -> None:
    """Runs a test in an `AdvancingLoop`."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with running_server(pki) as harness:
            await test(loop, harness)

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(main())


def test_followed_log_has_no_idle_timeout(pki: Pki) -> None:
    async def test(loop: AdvancingLoop, harness: KubeletHarness) -> None:
        speak = asyncio.Event()

        async def handler(request: UpgradeRequest) -> None:
            await request.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
            )
            await speak.wait()
            await request.send(b"5\r\nlast\n\r\n0\r\n\r\n")

        harness.remote.handler = handler
        _, reader, writer = await follow_log(harness)
        await reader.readuntil(b"first\n")
        await loop.advance(100 * HOUR)
        speak.set()
        assert b"last\n" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    run(pki, test)


async def follow_log(
    harness: KubeletHarness,
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Requests a followed log; returns the response's head and the connection. Uses no aiohttp
    client, which has its own timeouts."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    target = "/containerLogs/default/web/app?follow=true"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    return await reader.readuntil(b"\r\n\r\n"), reader, writer


def test_idle_exec_ends_after_four_hours(pki: Pki) -> None:
    async def test(loop: AdvancingLoop, harness: KubeletHarness) -> None:
        harness.remote.handler = echo
        _, reader, writer = await harness.upgrade(EXEC)
        for _ in range(3):
            await loop.advance(IDLE_TIMEOUT - 60)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        await loop.advance(IDLE_TIMEOUT + 60)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
        writer.close()

    assert IDLE_TIMEOUT == 4 * HOUR
    run(pki, test)
