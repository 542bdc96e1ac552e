"""The event loop of the tests: when its clock jumps, and when it waits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time

import pytest

from tests import virtual_time_loop
from tests.virtual_time_loop import run_virtual

DAY = 86_400.0


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def test_clock_jumps_to_the_next_timer() -> None:
    began, real = loop_time(), time.monotonic()
    await asyncio.sleep(DAY)
    assert loop_time() == began + DAY
    assert time.monotonic() - real < DAY / 1000


async def test_work_takes_no_time() -> None:
    began = loop_time()
    time.sleep(0.05)  # noqa: ASYNC251  # as on a slow machine
    await asyncio.sleep(0)
    assert loop_time() == began


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


async def test_data_that_the_kernel_holds_back_arrives_before_a_timer_expires() -> None:
    """Nagle's algorithm: a small segment waits until the previous one is acknowledged."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            for sock in (client, accepted):
                sock.setblocking(False)
            for size in (500, 60, 60):
                await loop.sock_sendall(client, bytes(size))
            received = 0
            async with asyncio.timeout(1):
                while received < 620:
                    received += len(await loop.sock_recv(accepted, 1000))


async def test_peer_that_does_not_read_does_not_hold_the_clock() -> None:
    near, far = socket.socketpair()
    with far:
        _, writer = await asyncio.open_connection(sock=near)
        writer.write(bytes(10_000_000))
        real = time.monotonic()
        for _ in range(50):
            await asyncio.sleep(1)
        assert time.monotonic() - real < 5
        writer.transport.abort()


async def test_job_of_the_executor_ends_before_a_later_timer() -> None:
    async with asyncio.timeout(5):
        await asyncio.to_thread(time.sleep, 0.1)


async def test_thread_ends_before_a_later_timer() -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        time.sleep(0.1)
        loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=run)
    thread.start()
    async with asyncio.timeout(5):
        await done.wait()
    thread.join()


def test_thread_that_takes_the_place_of_an_older_one_ends_before_a_later_timer() -> None:
    """As the thread that ends the executor, when a thread of an earlier test has just ended."""
    earlier_may_end = threading.Event()
    earlier = threading.Thread(target=earlier_may_end.wait)
    earlier.start()

    async def main() -> None:
        earlier_may_end.set()
        earlier.join()
        await test_thread_ends_before_a_later_timer()

    run_virtual(main)


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


def test_tasks_that_never_let_the_clock_advance_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time_loop, "MAX_STANDSTILL", 0.1)

    async def spin() -> None:
        while True:  # noqa: ASYNC110  # as a task does that polls
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="time stands still"):
        run_virtual(spin)


@pytest.mark.real_time
async def test_marked_test_has_real_time() -> None:
    began = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - began >= 0.05
