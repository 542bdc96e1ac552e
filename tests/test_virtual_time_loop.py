"""The event loop of the tests: when its clock jumps, and when it waits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time

import pytest

from tests.virtual_time_loop import run_virtual

DAY = 86_400.0


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def test_clock_jumps_to_the_next_timer() -> None:
    began, real = loop_time(), time.monotonic()
    await asyncio.sleep(DAY)
    assert loop_time() == began + DAY
    assert time.monotonic() - real < DAY / 1000


async def test_data_on_a_socket_arrives_before_a_timer_expires() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    began = loop_time()
    for _ in range(100):
        writer.write(b"x" * 10_000)
        async with asyncio.timeout(0.001):
            await reader.readexactly(10_000)
    assert loop_time() == began
    writer.close()
    server.close()
    await asyncio.sleep(1)  # both ends close


async def test_child_process_ends_before_a_later_timer_and_then_the_clock_jumps() -> None:
    began = loop_time()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(0.1)"
    )
    async with asyncio.timeout(30):
        assert await child.wait() == 0
    assert 0.1 <= loop_time() - began < 30
    real = time.monotonic()
    await asyncio.sleep(DAY)
    assert time.monotonic() - real < 5


def test_wait_that_nothing_ends_raises() -> None:
    async def wait() -> None:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
            server.setblocking(False)
            await asyncio.get_running_loop().sock_accept(server)

    with pytest.raises(RuntimeError, match="nothing can end the wait of Task"):
        run_virtual(wait)


@pytest.mark.real_time
async def test_marked_test_has_real_time() -> None:
    began = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - began >= 0.05
