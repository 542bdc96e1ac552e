"""A join restarts its process without the option parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.child_process import child_process

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


#: Preamble of the script: temporary files are on a full disk.
FULL_DISK = """
import tempfile
tempfile.TemporaryFile = lambda: open("/dev/full", "wb")
"""


def bridge(*args: str | Path, before: str = "") -> tuple[int, list[str], str, int]:
    """Runs `bridge ARGS`: exit code, lines printed at exit, stderr, process id."""
    command = [sys.executable, "-c", before + SCRIPT, *args]
    with child_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, error = process.communicate(timeout=15)
        return process.returncode, output.splitlines(), error, process.pid


def test_join_keeps_the_process_and_drops_the_option_parser(tmp_path: Path) -> None:
    code, output, error, pid = bridge("join", "--kubeconfig", tmp_path / "missing", "--name", "n")
    assert code == 1
    assert error == (
        f"error: remote: kubeconfig {tmp_path / 'missing'}: no such file; "
        "name another with --kubeconfig\n"
    )
    assert output == ["[]", "[]", str(pid)]


def test_json_log_format_survives_the_restart(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    code, _, error, _ = bridge(
        "join", "--kubeconfig", missing, "--name", "n", "--log-format", "json"
    )
    assert code == 1
    (line,) = map(json.loads, error.splitlines())
    assert (line["level"], line["logger"]) == ("error", "cluster-bridge.steps")
    assert line["msg"].startswith(f"remote: kubeconfig {missing}: no such file")


def test_join_runs_without_restart_on_a_full_disk(tmp_path: Path) -> None:
    args = ("join", "--kubeconfig", tmp_path / "missing", "--name", "n")
    code, _, error, _ = bridge(*args, before=FULL_DISK)
    assert code == 1
    assert error.startswith("error: remote: kubeconfig ")
