"""A bridge process stops within its bounds after a signal, whatever hangs.

The tests shorten the bounds; `e2e/test_failure_modes.py` uses the real ones, and
`test_sum_of_bounds_is_within_ten_seconds` adds them up.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.app import kubelet_api_setup, replica_handover
from bridge.cli import run_until_signal
from bridge.kubelet import server
from sync.kube import credential_plugins
from tests.bridge.join_process import START, STOP, join_process
from tests.bridge.two_clusters import CANARY, Clusters
from tests.child_process import recorded_pids, wait_until_ended
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write
from tests.sync.engine_harness import EngineHarness
from tests.virtual_time_loop import poll_in_real_time

#: Starting a process takes long on a busy machine.
pytestmark = pytest.mark.timeout(90)

#: Seconds for all bounds of the process together, on a busy machine.
IN_ALL = 10.0
#: Simulates a name server that does not answer; addresses need none.
DEAF = """
import socket, time
real = socket.getaddrinfo
socket.getaddrinfo = lambda *it, **its: real(*it, **its) if its.get("flags") else time.sleep(60)
"""


def test_sum_of_bounds_is_within_ten_seconds() -> None:
    """A stop waits for the Lease, the streams with their cleanup, and a plugin, one after the
    other; then the process is killed."""
    streams = kubelet_api_setup.STREAMS_SECONDS + 2 * server.CLEANUP
    longest = credential_plugins.REAP_TIMEOUT + replica_handover.RELEASE_SECONDS + streams
    assert longest < run_until_signal.STOP_SECONDS
    assert run_until_signal.STOP_SECONDS + 0.5 < 10


@pytest.mark.parametrize("away", ["home", "remote", "both"])
async def test_stop_does_not_wait_for_unreachable_clusters(two: Clusters, away: str) -> None:
    async with join_process(two) as process:
        await process.wait_for_output("is registered")
        for name in ("home", "remote"):
            if away in (name, "both"):
                getattr(two, name).pause()
        code, seconds = await process.stop()
        two.home.resume()
        two.remote.resume()
    assert code == 0
    assert seconds < IN_ALL
    assert "stopped; workloads in the remote keep running" in process.stderr


@pytest.mark.parametrize("away", ["home", "remote"])
async def test_stop_does_not_wait_for_checks(two: Clusters, away: str) -> None:
    api = getattr(two, away)
    api.pause()
    async with join_process(two) as process:
        await api.until(lambda: api.log, timeout=START)
        code, seconds = await process.stop()
        api.resume()
    assert code == 0
    assert seconds < IN_ALL
    assert two.writes() == []


async def test_stop_does_not_wait_for_open_streams(two: Clusters) -> None:
    harness, following = EngineHarness(two.home, two.remote), asyncio.Event()

    async def log(request: Any) -> Any:
        following.set()
        await asyncio.sleep(60)

    two.remote.route("GET", "*/pods/web/log", log)
    async with join_process(two) as process:
        await process.wait_for_output("is registered")
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            url = f"https://127.0.0.1:{process.port}/containerLogs/default/web/main?follow=true"
            request = asyncio.ensure_future(
                session.get(url, headers={"Authorization": "Bearer someone's"})
            )
            async with asyncio.timeout(30):
                await following.wait()
            two.home.pause()
            code, seconds = await process.stop()
            two.home.resume()
            await asyncio.gather(request, return_exceptions=True)
    assert code == 0
    assert seconds < IN_ALL


def with_plugin(two: Clusters, script: str) -> None:
    """Sets the credential plugin of the remote's kubeconfig."""
    path = two.settings.remote.path
    assert path is not None
    user = plugin(path.with_name("plugin"), script)
    cluster = {"certificate-authority": "fake-ca.crt"}
    write(path, kubeconfig(two.remote.url, user=user, cluster=cluster))


def hanging(folder: Path) -> str:
    """A script that writes its process id and its child's, and hangs."""
    return f"sleep 60 & echo $$ $! >{folder}/pids; wait\n"


async def hanging_pids(folder: Path) -> list[int]:
    """The process ids of the hanging plugin and its child."""
    pids = folder / "pids"
    await poll_in_real_time(lambda: recorded_pids(pids), timeout=START)
    return recorded_pids(pids)


async def test_plugin_that_hangs_at_the_start_is_killed_with_the_bridge(
    tls_two: Clusters, tmp_path: Path
) -> None:
    with_plugin(tls_two, hanging(tmp_path))
    async with join_process(tls_two) as process:
        pids = await hanging_pids(tmp_path)
        code, seconds = await process.stop()
    assert (code, seconds < IN_ALL) == (0, True)
    await wait_until_ended(pids)


async def test_plugin_that_hangs_later_is_killed_with_the_bridge(
    tls_two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected credential makes the bridge run the plugin again."""
    good = credential({"token": CANARY})
    with_plugin(tls_two, f"if [ -e {tmp_path}/hangs ]; then {hanging(tmp_path)} fi\n{good}")
    extra = "from sync.kube import credentials; credentials.RENEW_INTERVAL = 0.1"
    async with join_process(tls_two, extra=extra) as process:
        await process.wait_for_output("is registered")
        (tmp_path / "hangs").touch()
        tls_two.remote.token = "another"
        tls_two.remote.break_watches()
        pids = await hanging_pids(tmp_path)
        code, seconds = await process.stop()
    assert (code, seconds < IN_ALL) == (0, True)
    await wait_until_ended(pids)


async def test_hanging_thread_does_not_delay_the_exit(two: Clusters) -> None:
    """Only the exit of the process ends the thread; the exit code is 1, with a message."""
    async with join_process(two, extra=DEAF, address="") as process:
        await two.remote.until(lambda: two.home.requests("GET", "*/kube-system"), timeout=START)
        await asyncio.sleep(0.5)
        code, seconds = await process.stop()
    assert code == 1
    assert seconds < IN_ALL
    assert f"shutdown did not finish within {STOP:.0f} s" in process.stderr
