"""Standard output in every locale, and errors while writing to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: `bridge`, and a command that needs no cluster.
BRIDGE = (sys.executable, "-c", "from bridge.cli import main; main()")
RBAC = (*BRIDGE, "rbac", "home", "--name", "far", "--all-namespaces")
#: A program that prepares its streams like `bridge`, and prints this text.
TEXT = "✓ a → b… \u00e9 \u6f22 \U0001f600 \udcff"
PRINTS = (
    "from bridge.cli import standard_streams; standard_streams.prepare(); import sys, json; "
    f"print({TEXT!r}); print(json.dumps({TEXT!r}, ensure_ascii=False)); "
    f"print({TEXT!r}, file=sys.stderr)"
)


def run(
    *command: str, encoding: str = "utf-8", size: str = "80", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    sizes = {"COLUMNS": size, "LINES": size}
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1", **sizes}
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        command, env=environment, check=False, **options
    )
    return done


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", "+ a -> b... \\u00e9 \\u6f22 \\ud83d\\ude00 \\udcff"),
        ("latin-1", "+ a -> b... \u00e9 \\u6f22 \\ud83d\\ude00 \\udcff"),
        ("utf-8", "✓ a → b… \u00e9 \u6f22 \U0001f600 \\udcff"),
    ],
)
def test_unsupported_characters_become_ascii(encoding: str, printed: str) -> None:
    done = run(sys.executable, "-c", PRINTS, encoding=encoding, capture_output=True)
    assert done.returncode == 0, done.stderr
    text, document = done.stdout.decode(encoding).splitlines()
    assert text == printed
    assert json.loads(document).endswith("\u00e9 \u6f22 \U0001f600 \udcff"), "JSON stays JSON"
    assert done.stderr.decode(encoding).splitlines() == [printed]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_works_in_a_non_unicode_locale(encoding: str) -> None:
    done = run(*BRIDGE, "explain", "pod", "--help", encoding=encoding, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"--namespace" in done.stdout


@pytest.mark.parametrize("size", ["²", "9" * 5000, "-1", "", "wide"])
def test_size_of_the_terminal_that_is_no_number_is_ignored(size: str) -> None:
    done = run(*BRIDGE, "--help", size=size, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Usage: " in done.stdout


@pytest.mark.parametrize("command", [RBAC, (*BRIDGE, "--help")], ids=["a command", "help"])
def test_a_full_disk_is_one_line_and_exit_code_1(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(*command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode() == "error: standard output: No space left on device\n"


def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*RBAC, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_output_is_complete() -> None:
    done = run(*RBAC, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"kind: ClusterRole\n") >= 2


#: A program that prepares its streams like `bridge`, and uses all three in an event loop of libuv.
USES_ALL = """
from bridge.cli import standard_streams
standard_streams.prepare()
import asyncio, os, subprocess, sys, uvloop

async def main():
    print(sys.stdin.read(), sys.stdin.isatty())
    print("error", file=sys.stderr, flush=True)
    sys.stdout.flush()
    assert all(os.fstat(number) for number in range(3))

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
subprocess.run([sys.executable, "-c", "import os; [os.fstat(n) for n in range(3)]"], check=True)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_the_null_device(closed: str) -> None:
    done = run("sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", USES_ALL, timeout=50)
    assert done.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_with_a_closed_stream(closed: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    command = (*BRIDGE, "leave", "far", "--yes", "--home-kubeconfig", absent)
    done = run("sh", "-c", f'"$@" {closed}', "sh", *command, timeout=50)
    assert done.returncode == 1


def test_a_closed_standard_input_is_no_terminal() -> None:
    done = run("sh", "-c", '"$@" <&-', "sh", *BRIDGE, "leave", "far", stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: standard input is not a terminal")
