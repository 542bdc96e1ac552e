"""``/livez`` and ``/readyz`` of the kubelet API."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from bridge.app import kubelet_api_setup
from tests.bridge.running_join import SOON, kubelet_api_client, running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault

pytestmark = pytest.mark.usefixtures("soon")

READY = "[+]ping ok\n[+]caches ok\n[+]home ok\n[+]remote ok\nreadyz check passed\n"


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as answer:
        return answer.status, await answer.text()


async def until(session: aiohttp.ClientSession, code: int) -> None:
    """Sends requests until the response is as expected."""
    async with asyncio.timeout(SOON):
        while (await get(session, "/readyz"))[0] != code:  # noqa: ASYNC110  # only requests show it
            await asyncio.sleep(0.004)


async def test_serving_bridge_is_ready_in_the_format_of_api_servers(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        assert await get(session, "/readyz") == (200, "ok")
        assert await get(session, "/readyz?verbose") == (200, READY)
        assert await get(session, "/livez?verbose=1") == (200, "[+]ping ok\nlivez check passed\n")
        assert await get(session, "/livez") == (200, "ok")
        assert await get(session, "/readyz/remote") == (200, "ok")
        assert (await get(session, "/readyz/nonsense"))[0] == 404


async def test_bridge_without_filled_caches_is_alive_and_not_ready(two: Clusters) -> None:
    two.remote.fail(Fault("GET", "/api/v1/secrets", code=500, times=None))
    run = start_join(two.settings)
    await run.wait_for_report("certificate is")
    async with kubelet_api_client(run) as session:
        assert await get(session, "/livez") == (200, "ok")
        code, text = await get(session, "/readyz")
        assert code == 500
        assert "[-]caches failed: reason withheld\n" in text
        assert text.endswith("\nreadyz check failed\n")
        assert (await get(session, "/readyz/caches"))[0] == 500
    await run.end()


async def test_standby_is_ready(two: Clusters) -> None:
    async with running_join(two):
        second = start_join(two.settings)
        await second.wait_for_report("standing by")
        async with kubelet_api_client(second) as session:
            await until(session, 200)
            assert await get(session, "/readyz?verbose") == (200, READY)
        await second.end()


async def test_unreachable_remote_fails_its_check_which_can_be_excluded(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_api_setup, "OUTAGE_SECONDS", 0.05)
    async with running_join(two) as run, kubelet_api_client(run) as session:
        await two.remote.stop()
        await until(session, 500)
        code, text = await get(session, "/readyz")
        failed = READY.replace("[+]remote ok", "[-]remote failed: reason withheld")
        assert (code, text) == (500, failed.replace("passed", "failed"))
        code, text = await get(session, "/readyz?exclude=remote&exclude=moon&verbose")
        assert code == 200
        assert "[+]remote excluded: ok\n" in text
        assert 'warn: some health checks cannot be excluded: no matches for "moon"\n' in text
        assert (await get(session, "/livez"))[0] == 200


async def test_short_watch_failure_keeps_the_bridge_ready(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        two.remote.break_watches()
        assert await get(session, "/readyz") == (200, "ok")
