"""manifests/systemd/bridge@.service, as systemd starts it for the instance ``burst``."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bridge.cli.run_until_signal import STOP_SECONDS
from bridge.node import node_object
from sync.kube.api_resources import NODES
from tests.bridge.join_process import JoinProcess
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE

UNIT = Path(__file__).parents[3] / "manifests" / "systemd" / "bridge@.service"
TEXT = UNIT.read_text(encoding="utf-8")
PROGRAM = Path(sys.executable).with_name("bridge")
INSTANCE = "burst"


def service() -> configparser.SectionProxy:
    """The section; of keys that are there several times, the last value."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(TEXT.replace("\\\n", ""))
    assert parser["Install"]["WantedBy"] == "multi-user.target"
    return parser["Service"]


def values(key: str) -> list[str]:
    """All values of a key."""
    return re.findall(rf"(?m)^{key}=(.+)$", TEXT)


def put_files(folder: Path, two: Clusters) -> None:
    """Writes what the page has an administrator write below /etc."""
    options = {
        "name": NODE,
        "home-name": "h",
        "address": "127.0.0.1",
        "port": 0,
        "network": "flat",
        "storage": "none",
    }
    folder.mkdir(parents=True)
    (folder / f"{INSTANCE}.yaml").write_text(yaml.safe_dump(options))
    for name, path in ((INSTANCE, two.settings.remote.path), ("home", two.settings.home.path)):
        assert path is not None
        shutil.copy(path, folder / f"{name}.kubeconfig")


@pytest.mark.real_time
async def test_command_of_the_unit_joins_and_stops(two: Clusters, tmp_path: Path) -> None:
    put_files(tmp_path / "etc" / "cluster-bridge", two)
    (credentials := tmp_path / "credentials").mkdir()
    (state := tmp_path / "state" / f"cluster-bridge-{INSTANCE}").mkdir(parents=True)
    specifiers = {"%i": INSTANCE, "%S": str(state.parent), "/etc/": f"{tmp_path}/etc/"}

    def resolved(text: str) -> str:
        for key, value in specifiers.items():
            text = text.replace(key, value)
        return text

    for loaded in values("LoadCredential"):
        name, _, source = resolved(loaded).partition(":")
        shutil.copy(source, credentials / name)
    environment = dict(resolved(it).split("=", 1) for it in values("Environment"))
    assert environment == {"XDG_STATE_HOME": str(state)}
    program, *arguments = shlex.split(
        resolved(service()["ExecStart"]).replace("${CREDENTIALS_DIRECTORY}", str(credentials))
    )
    assert program == "/usr/local/bin/bridge"

    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *arguments,
        cwd="/",
        env={"PATH": os.defpath, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    join = JoinProcess(process)
    try:
        await join.wait_for_output(f"node {NODE} is registered")
        annotations = two.home.get(NODES, NODE)["metadata"]["annotations"]
        assert annotations[node_object.ANNOTATION_KUBECONFIG] == str(credentials / "kubeconfig")
        assert (await join.stop())[0] == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_unit_restarts_the_bridge_and_bounds_it() -> None:
    unit = service()
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2"
    assert float(unit["TimeoutStopSec"]) > STOP_SECONDS
    assert {"DynamicUser", "MemoryMax", "ProtectHome", "SystemCallFilter"} <= unit.keys()
    assert unit["StateDirectory"] == "cluster-bridge-%i"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Where systemd is installed, also without a service manager."""
    copy = tmp_path / f"bridge@{INSTANCE}.service"
    copy.write_text(TEXT.replace("/usr/local/bin/bridge", str(PROGRAM)))
    if (analyze := shutil.which("systemd-analyze")) is None:
        return
    for command in (
        ("verify", "--recursive-errors=no"),
        ("security", "--offline=true", "--threshold=20"),
    ):
        done = subprocess.run(
            (analyze, *command, copy), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == "", command
