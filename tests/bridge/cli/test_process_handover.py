"""A join runs without what read its options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, os, sys

HEAVY = ("typer", "rich", "pydantic", "kubernetes", "cryptography", "opentelemetry")

def show():
    print([name for name in HEAVY if name in sys.modules])
    print([name for name in os.environ if name.startswith("CLUSTER_BRIDGE")])
    print(os.getpid())

atexit.register(show)
from bridge.cli import main
main()
"""


#: Before the script: temporary files are on a full disk.
FULL = """
import tempfile
tempfile.TemporaryFile = lambda: open("/dev/full", "wb")
"""


def bridge(*args: str | Path, before: str = "") -> tuple[int, list[str], str, int]:
    """`bridge ARGS` in a process: exit code, what it printed at its end, stderr, its id."""
    command = [sys.executable, "-c", before + SCRIPT, *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said, error = process.communicate(timeout=15)
        return process.returncode, said.splitlines(), error, process.pid


def test_a_join_is_the_same_process_without_what_read_its_options(tmp_path: Path) -> None:
    code, said, error, pid = bridge("join", "--kubeconfig", tmp_path / "missing", "--name", "n")
    assert code == 1
    assert error == (
        f"error: remote: kubeconfig {tmp_path / 'missing'}: no such file; "
        "name another with --kubeconfig\n"
    )
    assert said == ["[]", "[]", str(pid)]


def test_with_json_every_line_is_json(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    code, _, error, _ = bridge(
        "join", "--kubeconfig", missing, "--name", "n", "--log-format", "json"
    )
    assert code == 1
    (line,) = map(json.loads, error.splitlines())
    assert (line["level"], line["logger"]) == ("error", "cluster-bridge.steps")
    assert line["msg"].startswith(f"remote: kubeconfig {missing}: no such file")


def test_without_room_for_a_temporary_file_it_is_run_as_it_is(tmp_path: Path) -> None:
    args = ("join", "--kubeconfig", tmp_path / "missing", "--name", "n")
    code, _, error, _ = bridge(*args, before=FULL)
    assert code == 1
    assert error.startswith("error: remote: kubeconfig ")


@pytest.mark.parametrize(
    "args", [["join", "--nonsense"], ["join", "--kubeconfig", "x", "--cpu", "y"]]
)
def test_wrong_options_are_told_by_what_reads_them(args: list[str]) -> None:
    code, _, error, _ = bridge(*args)
    assert code == 2
    assert "error" in error.lower()
