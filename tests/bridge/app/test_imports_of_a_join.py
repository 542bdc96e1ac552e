"""A running join has not loaded what only other commands, or features that are off, need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.bridge.join_process import JoinProcess, join_process
from tests.bridge.two_clusters import CANARY, Clusters, clusters
from tests.fakeapi import Authority, FakeApi

#: Modules that a join may only load when it needs them.
LATE = (
    "cryptography",
    "importlib.metadata",
    "opentelemetry",
    "prometheus_client",
    "rich",
    "sync.storage.pvc_controller",
    "sync.storage.volume_controller",
    "typer",
)
#: Prints which of them are loaded at exit, and the most CAs that one TLS context trusts.
REPORT = f"""
def report():
    import gc, ssl, sys
    print("late modules:", [name for name in {LATE} if name in sys.modules], file=sys.stderr)
    trusted = [len(it.get_ca_certs()) for it in gc.get_objects() if isinstance(it, ssl.SSLContext)]
    print("trusted CAs:", max(trusted), file=sys.stderr)

import atexit
atexit.register(report)
"""


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Clusters]:
    authority = Authority(tmp_path)
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=tls) as home, FakeApi(tls=tls) as remote:
        yield clusters(home, remote, tmp_path)


def reported(process: JoinProcess, name: str) -> str:
    """The last line of this name: the process that parsed the options replaced itself."""
    lines = [it for it in process.stderr.splitlines() if it.startswith(f"{name}: ")]
    return lines[-1].removeprefix(f"{name}: ")


async def test_join_without_storage_loads_no_late_module_and_no_system_ca(two: Clusters) -> None:
    async with join_process(two, extra=REPORT, options=["--storage", "none"]) as process:
        await process.wait_for_output("is registered")
        assert (await process.stop())[0] == 0
    assert reported(process, "late modules") == "[]"
    assert reported(process, "trusted CAs") == "1"


async def test_first_scrape_loads_the_metrics_library(two: Clusters) -> None:
    async with join_process(two, extra=REPORT, options=["--storage", "none"]) as process:
        await process.wait_for_output("is registered")
        url = f"https://127.0.0.1:{process.port}/metrics"
        headers = {"Authorization": f"Bearer {CANARY}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            asyncio.timeout(10),
            session.get(url, ssl=False) as response,
        ):
            assert response.status == 200
            assert "bridge_build_info{" in await response.text()
        assert (await process.stop())[0] == 0
    assert "'prometheus_client'" in reported(process, "late modules")
