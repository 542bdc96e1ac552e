"""Responses to liveness and readiness probes."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohttp
import pytest

from bridge.app import probe_server
from bridge.base.command_error import PreflightError
from bridge.clusters import wait_for_clusters
from bridge.kubelet.server import ListenError
from tests.bridge.running_join import SOON, running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault

pytestmark = pytest.mark.usefixtures("soon")


def free_port() -> int:
    """Returns an unused port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Sends a probe, without TLS and credential."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def listens(port: int) -> tuple[int, str]:
    """Sends probes until the server listens."""
    async with asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                return await ask(port, "/livez")
            await asyncio.sleep(0.004)


async def test_serving_bridge_is_alive_and_ready(two: Clusters) -> None:
    port = free_port()
    async with running_join(two, two.but(health_port=port)):
        assert await ask(port, "/livez") == (200, "ok\n")
        assert await ask(port, "/readyz") == (200, "ok\n")
        assert (await ask(port, "/pods"))[0] == 404
        assert (await ask(port, "/readyz", "POST"))[0] == 405
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(port, "/livez")


async def test_bridge_without_filled_caches_is_alive_and_not_ready(two: Clusters) -> None:
    port = free_port()
    two.remote.fail(Fault("GET", "/api/v1/secrets", code=500, times=None))
    run = start_join(two.but(health_port=port))
    await run.wait_for_report("certificate is")
    assert await listens(port) == (200, "ok\n")
    code, why = await ask(port, "/readyz")
    assert code == 503
    assert "not read yet" in why
    await run.end()


async def test_standby_is_ready(two: Clusters) -> None:
    port = free_port()
    async with running_join(two):
        run = start_join(two.but(health_port=port))
        await run.wait_for_report("standing by")
        assert (await listens(port))[0] == 200
        while (await ask(port, "/readyz"))[0] != 200:  # noqa: ASYNC110  # of a socket
            await asyncio.sleep(0.004)
        await run.end()


@pytest.mark.parametrize("side", ["home", "remote"])
async def test_unreachable_cluster_at_the_start_is_waited_for(
    two: Clusters, side: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait_for_clusters, "WAIT_FIRST", 0.01)
    port = free_port()
    api = two.home if side == "home" else two.remote
    await api.stop()
    run = start_join(two.but(health_port=port))
    assert await listens(port) == (200, "ok\n")
    async with asyncio.timeout(SOON):
        while f"{side}: " not in (await ask(port, "/readyz"))[1]:  # noqa: ASYNC110  # of a socket
            await asyncio.sleep(0.004)
    assert (await ask(port, "/readyz"))[0] == 503
    busy = api.fail(Fault("GET", "/version", code=503))
    early = api.fail(Fault("GET", "/version", code=403))
    await api.start()
    await run.wait_for_report("is registered")
    assert busy.hits == 1, "a server that is busy is waited for, too"
    assert early.hits == 1, "and so is one that has not read its rules"
    assert (await ask(port, "/readyz"))[0] == 200
    await run.end()
    assert len(run.reports) == len(set(run.reports)), "each once"
    messages = [it for it in caplog.messages if it.endswith(wait_for_clusters.WAITING_SUFFIX)]
    assert len(messages) == 3
    assert all(it.startswith(f"{side}: ") for it in messages)


async def test_permanent_failure_at_the_start_is_not_waited_for(two: Clusters) -> None:
    port = free_port()
    two.remote.token = "another"
    run = start_join(two.but(health_port=port))
    with pytest.raises(PreflightError, match="does not accept the kubeconfig's credential"):
        await run.wait_for_report("is registered")


async def test_unreachable_cluster_without_probes_is_an_error(two: Clusters) -> None:
    await two.remote.stop()
    run = start_join(two.settings)
    with pytest.raises(PreflightError, match=r"remote: .*can be reached from here"):
        await run.wait_for_report("is registered")


async def test_used_health_port_is_an_error(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = start_join(two.but(health_port=int(taken.getsockname()[1])))
        with pytest.raises(ListenError, match="--health-port"):
            await run.wait_for_report("is registered")


async def test_idle_connections_are_bounded_and_block_no_probe(two: Clusters) -> None:
    port = free_port()
    async with running_join(two, two.but(health_port=port)):
        opened = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(probe_server.MAX_CONNECTIONS + 20)
        ]
        assert await ask(port, "/livez") == (200, "ok\n")
        async with asyncio.timeout(SOON):
            for reader, _ in opened[:20]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b"", "one more ends the oldest"
        assert not opened[-1][0].at_eof()
        for _, writer in opened:
            writer.transport.abort()
