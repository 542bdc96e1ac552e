"""The event loop of a command: connections that are cancelled while they are established."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakeapi import Authority

uvloop = pytest.importorskip("uvloop")

#: Number of concurrent connections, loop iterations before they are cancelled, and repetitions.
AT_ONCE, TURNS, ROUNDS = 6, 14, 6
#: Seconds of one iteration: the loop of a bridge is busy with lists when its join is rejected.
BUSY = 0.002


@pytest.fixture
def server(authority: Authority) -> Iterator[tuple[str, int]]:
    """A TLS server in a thread, which answers while the loop of the test is busy."""
    context = authority.server_context(authority.issue("server", address="127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening:
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def serve() -> None:
            async with await asyncio.start_server(handle, sock=listening, ssl=context):
                await stop.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        yield listening.getsockname()
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _errors(authority: Authority, address: tuple[str, int], turns: int) -> list[Any]:
    """The errors that the loop reports when connections are cancelled after each number of
    turns."""
    from bridge.base.event_loop import CancelSafeLoop

    context = ssl.create_default_context(cafile=authority.cert)
    found: list[Any] = []

    async def connect() -> None:
        loop, sock = asyncio.get_running_loop(), socket.socket()
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except asyncio.CancelledError:
            sock.close()
            raise
        transport, _ = await loop.create_connection(
            asyncio.Protocol, sock=sock, ssl=context, server_hostname="127.0.0.1"
        )
        transport.abort()

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
        for _ in range(ROUNDS):
            tasks = [asyncio.create_task(connect()) for _ in range(AT_ONCE)]
            for _ in range(turns):
                await asyncio.sleep(0)
                time.sleep(BUSY)  # noqa: ASYNC251  # the loop is busy
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110  # the connections end without an event
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=CancelSafeLoop) as runner:
        runner.run(cancel())
    return found


def test_cancelled_connection_logs_no_error(authority: Authority, server: tuple[str, int]) -> None:
    found = [error for turns in range(1, TURNS) for error in _errors(authority, server, turns)]
    assert found == []
