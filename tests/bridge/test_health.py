"""What a kubelet's probes are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohttp
import pytest

from bridge.kubelet.server import ListenError
from tests.bridge.clusters import Clusters
from tests.bridge.joined import SOON, begin, joined
from tests.fakeapi import Fault

pytestmark = pytest.mark.usefixtures("soon")


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Without TLS and without a credential."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def listens(port: int) -> tuple[int, str]:
    """Asks until it listens."""
    async with asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                return await ask(port, "/livez")
            await asyncio.sleep(0.004)


async def test_a_bridge_that_serves_lives_and_is_ready(two: Clusters) -> None:
    port = free_port()
    async with joined(two, two.but(health_port=port)):
        assert await ask(port, "/livez") == (200, "ok\n")
        assert await ask(port, "/readyz") == (200, "ok\n")
        assert (await ask(port, "/pods"))[0] == 404
        assert (await ask(port, "/readyz", "POST"))[0] == 405
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(port, "/livez")


async def test_without_filled_caches_it_lives_and_is_not_ready(two: Clusters) -> None:
    port = free_port()
    two.remote.fail(Fault("GET", "/api/v1/secrets", code=500, times=None))
    run = begin(two.but(health_port=port))
    await run.says("certificate is")
    assert await listens(port) == (200, "ok\n")
    code, why = await ask(port, "/readyz")
    assert code == 503
    assert "not read yet" in why
    await run.end()


async def test_one_that_stands_by_is_ready(two: Clusters) -> None:
    port = free_port()
    async with joined(two):
        run = begin(two.but(health_port=port))
        await run.says("standing by")
        assert (await listens(port))[0] == 200
        while (await ask(port, "/readyz"))[0] != 200:  # noqa: ASYNC110  # of a socket
            await asyncio.sleep(0.004)
        await run.end()


async def test_a_port_that_is_taken_is_told(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = begin(two.but(health_port=int(taken.getsockname()[1])))
        with pytest.raises(ListenError, match="--health-port"):
            await run.says("is registered")
