"""`bridge run` reads its file again without the option parser in its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.base import memory_savings
from bridge.base.join_settings import SettingsError
from bridge.cli import fleet_actions, run_config_file
from bridge.cli.reexec_to_free_memory import LogSettings
from bridge.fleet import config_file_source
from bridge.fleet.config_file_source import UnreadableFileError, followed
from bridge.fleet.desired_state import DesiredState
from tests.bridge.cli.test_run_config_file import example

#: Options of several types, which must be equal after a restart of the process and in the child.
REMOTE = {
    "kubeconfig": "r",
    "name": "a",
    "share": 0.5,
    "reserve": {"cpu": 1},
    "taints": ["x:NoExecute"],
    "network": "relay",
    "relay-ports": "30000-30255",
    "home-api-address": "[2001:db8::1]:6443",
    "unschedulable-timeout": "5m",
}


def write(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


async def test_child_reads_the_same_as_this_process(tmp_path: Path) -> None:
    content = example()
    content["remotes"].append(REMOTE)
    path = write(tmp_path / "bridge.yaml", content)
    ports = {"a": 10299}
    found = await fleet_actions.read_in_child(path, ports)
    assert found == run_config_file.read(path, ports)
    assert found[0][2].settings.port == 10299


async def test_error_of_the_child_is_that_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "bridge.yaml", {"remotes": [{**REMOTE, "port": "x"}]})
    with pytest.raises(SettingsError) as here:
        run_config_file.read(path)
    with pytest.raises(SettingsError) as there:
        await fleet_actions.read_in_child(path, {})
    assert str(there.value) == str(here.value)
    assert not isinstance(there.value, UnreadableFileError)
    with pytest.raises(UnreadableFileError, match="cannot be read: No such file"):
        await fleet_actions.read_in_child(tmp_path / "absent", {})


async def test_child_that_fails_is_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_module(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(memory_savings, "run_module", run_module)
    with pytest.raises(UnreadableFileError, match="the process that reads it has failed"):
        await fleet_actions.read_in_child(tmp_path / "bridge.yaml", {})


async def test_changed_log_format_is_reported_as_not_in_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file_source, "POLL_SECONDS", 0.02)
    path = write(tmp_path / "bridge.yaml", {"remotes": [REMOTE]})
    file = followed(path)
    first, logs = run_config_file.read(path)
    assert logs == LogSettings()
    states = fleet_actions.file_source(file, first, logs).states()
    assert await anext(states) == DesiredState(first)
    write(path, {"remotes": [REMOTE], "log-format": "json", "verbose": True})
    state = await anext(states)
    assert state == DesiredState(
        first, ("verbose, log-format changed, which takes effect at the next start of the bridge",)
    )


def test_module_loads_neither_the_option_parser_nor_leave() -> None:
    script = """
import sys
from bridge.app import run_several_joins
from bridge.cli import fleet_actions
print([it for it in ("typer", "rich", "bridge.leave.leave_procedure") if it in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
