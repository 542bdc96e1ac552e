"""manifests/systemd/bridge@.service: its command joins, and systemd accepts it. The command also
runs with real clusters (`e2e/test_systemd_unit.py`)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.cli.run_until_signal import STOP_SECONDS
from bridge.node import node_object
from sync.kube.api_resources import NODES
from tests.bridge.cli.systemd_unit import TEXT, Instance, values
from tests.bridge.join_process import JoinProcess
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE

PROGRAM = Path(sys.executable).with_name("bridge")


@pytest.mark.real_time
async def test_command_of_the_unit_joins_and_stops(two: Clusters, tmp_path: Path) -> None:
    home, remote = two.settings.home.path, two.settings.remote.path
    assert home is not None
    assert remote is not None
    instance = Instance(tmp_path, "burst")
    options = {
        "name": NODE,
        "home-name": "h",
        "address": "127.0.0.1",
        "port": 0,
        "network": "flat",
        "storage": "none",
    }
    instance.write_files(options, home=home, remote=remote)
    instance.prepare()
    program, *arguments = instance.command
    assert program == "/usr/local/bin/bridge"

    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *arguments,
        cwd="/",
        env={"PATH": os.defpath, **instance.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    join = JoinProcess(process)
    try:
        await join.wait_for_output(f"node {NODE} is registered")
        annotations = two.home.get(NODES, NODE)["metadata"]["annotations"]
        recorded = annotations[node_object.ANNOTATION_KUBECONFIG]
        assert recorded == str(instance.credentials / "kubeconfig")
        assert (await join.stop())[0] == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_unit_restarts_the_bridge_and_limits_it() -> None:
    assert values("Restart") == ["on-failure"]
    assert values("RestartPreventExitStatus") == ["2"]
    (stop,) = values("TimeoutStopSec")
    assert float(stop) > STOP_SECONDS
    assert values("StateDirectory") == ["cluster-bridge-%i"]
    assert values("WantedBy") == ["multi-user.target"]
    for key in ("DynamicUser", "MemoryMax", "ProtectHome", "SystemCallFilter"):
        assert values(key), key


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(
    "command",
    [("verify", "--recursive-errors=no"), ("security", "--offline=true", "--threshold=20")],
    ids=lambda command: command[0],
)
def test_systemd_accepts_the_unit(command: tuple[str, ...], tmp_path: Path) -> None:
    """`systemd-analyze` needs no service manager. The threshold is the exposure in tenths."""
    copy = tmp_path / "bridge@burst.service"
    copy.write_text(TEXT.replace("/usr/local/bin/bridge", str(PROGRAM)))
    done = subprocess.run(
        ("systemd-analyze", *command, copy), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
