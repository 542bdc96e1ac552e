"""Completion of names in a shell: fast, and silent where it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bridge.cli.command_table import app
from bridge.cli.commands import completion


def context(**params: object) -> Any:
    return SimpleNamespace(params=params)


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({"contexts": [{"name": "kind-a"}, {"name": "prod"}]}))
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'absent'}")
    return path


def test_contexts_come_from_the_kubeconfig(kubeconfig: Path, tmp_path: Path) -> None:
    assert completion.complete_home_contexts(context(), "") == ["kind-a", "prod"]
    assert completion.complete_contexts(context(kubeconfig=kubeconfig), "ki") == ["kind-a"]
    kubeconfig.write_text("{")
    assert completion.complete_home_contexts(context(), "") == []


def test_unreachable_cluster_completes_nothing_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = context(home_kubeconfig=tmp_path / "absent")
    assert completion.complete_nodes(missing, "") == []
    assert capfd.readouterr() == ("", "")


def test_completion_that_hangs_ends_silently_at_the_limit(tmp_path: Path) -> None:
    silent = tmp_path / "kubeconfig"
    os.mkfifo(silent)  # without a writer, so that opening it blocks
    script = (
        "import types; from bridge.cli.commands import completion; completion.LIMIT_SECONDS = 0.2\n"
        f"context = types.SimpleNamespace(params={{'kubeconfig': {str(silent)!r}}})\n"
        "print(completion.complete_contexts(context, ''))"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=15
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("bridge unof", "unoffload"),
        ("bridge join --network re", "relay"),
        ("bridge join --home-context p", "prod"),
    ],
)
@pytest.mark.usefixtures("kubeconfig")
def test_shell_gets_the_names(
    words: str, names: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_BRIDGE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    run: Any = app
    with pytest.raises(SystemExit):
        run(prog_name="bridge")
    assert capsys.readouterr().out.split() == [names]
