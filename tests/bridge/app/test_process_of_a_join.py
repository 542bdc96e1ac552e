"""`bridge join` as a process: its first error, its metrics, and the packages that it loads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.bridge.join_process import join_process
from tests.bridge.two_clusters import CANARY, Clusters
from tests.child_process import child_process

#: Prints at exit whether a package of an extra is loaded.
REPORT = """
import atexit, sys
atexit.register(lambda: print("traces:", "opentelemetry" in sys.modules, file=sys.stderr))
"""


def failed_join(kubeconfig: Path, *options: str) -> str:
    """Standard error of a join whose kubeconfig is missing."""
    command = [sys.executable, "-c", "from bridge.cli import main; main()"]
    command += ["join", "--kubeconfig", str(kubeconfig), "--name", "n", *options]
    with child_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, error = process.communicate(timeout=30)
        assert (process.returncode, output) == (1, "")
        return error


def test_error_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert failed_join(missing) == (
        f"error: remote: kubeconfig {missing}: no such file; name another with --kubeconfig\n"
    )


def test_error_is_a_log_line_with_the_json_format(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    (line,) = map(json.loads, failed_join(missing, "--log-format", "json").splitlines())
    assert (line["level"], line["logger"]) == ("error", "cluster-bridge.steps")
    assert line["msg"].startswith(f"remote: kubeconfig {missing}: no such file")


async def test_metrics_are_served_and_the_packages_of_traces_are_not_loaded(
    encrypted: Clusters,
) -> None:
    async with join_process(encrypted, extra=REPORT) as process:
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
    assert "traces: False" in process.stderr
