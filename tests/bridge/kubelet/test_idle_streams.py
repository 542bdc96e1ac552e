"""Hours of silence: an event loop whose clock a test can put forward, on real sockets.

What has a limit of time anywhere in this process (a timer of the loop, however it was set) ends
when the clock is put past it. What the operating system measures does not: that is TCP's keepalive,
which keeps open what is idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bridge.net.splice import IDLE_TIMEOUT
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.fake_api_servers import EXEC, UpgradeRequest, echo, wait_until
from tests.bridge.kubelet.pki import Pki

HOUR = 3600.0


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    async def pass_time(self, seconds: float) -> None:
        """Lets what is due by then happen, in steps as a clock has them."""
        for _ in range(10):
            self.ahead += seconds / 10
            await asyncio.sleep(0)
            await asyncio.sleep(0.02)


def run(pki: Pki, test: Callable[[Loop, KubeletHarness], Awaitable[None]]) -> None:
    """Runs a test in such a loop."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        async with running_server(pki) as harness:
            await test(loop, harness)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_followed_log_has_no_idle_timeout(pki: Pki) -> None:
    async def test(loop: Loop, harness: KubeletHarness) -> None:
        speak = asyncio.Event()

        async def play(asked: UpgradeRequest) -> None:
            await asked.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
            )
            await speak.wait()
            await asked.send(b"5\r\nlast\n\r\n0\r\n\r\n")

        harness.remote.handler = play
        _, reader, writer = await asked_for_log(harness)
        await reader.readuntil(b"first\n")
        await loop.pass_time(100 * HOUR)
        speak.set()
        assert b"last\n" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    run(pki, test)


async def asked_for_log(
    harness: KubeletHarness,
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The head and the connection of a log; a client of aiohttp has limits of time of its own."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context("apiserver")
    )
    target = "/containerLogs/default/web/app?follow=true"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    return await reader.readuntil(b"\r\n\r\n"), reader, writer


def test_idle_exec_ends_after_four_hours(pki: Pki) -> None:
    async def test(loop: Loop, harness: KubeletHarness) -> None:
        harness.remote.handler = echo
        _, reader, writer = await harness.upgrade(EXEC)
        for _ in range(3):
            await loop.pass_time(IDLE_TIMEOUT - 60)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        await loop.pass_time(IDLE_TIMEOUT + 60)
        assert await reader.read() == b""
        await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
        writer.close()

    assert IDLE_TIMEOUT == 4 * HOUR
    run(pki, test)
