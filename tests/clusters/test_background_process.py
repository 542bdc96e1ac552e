"""`e2e.background_process`: whatever a process does, it has ended after its block."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e import background_process
from e2e.clusters.processes import identify
from e2e.kubectl import wait_for

GREETS = "import os, time; print(os.environ['WORD'], flush=True); time.sleep(600)"
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)"
)


def _wait_for_output(log: Path, text: str) -> None:
    wait_for(lambda: text in log.read_text(), f"the process prints {text}")


def test_process_ends_by_sigterm_with_its_output_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = background_process.start([sys.executable, "-c", GREETS], log, env={"WORD": "hello"})
    _wait_for_output(log, "hello")
    assert background_process.end(process)
    assert identify(process.pid) is None


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", IGNORES_SIGTERM]
    with background_process.running(command, log, grace=0.1) as process:
        _wait_for_output(log, "ready")
    assert identify(process.pid) is None
    assert process.returncode == -9


def test_process_that_has_ended_before_is_no_error(tmp_path: Path) -> None:
    with background_process.running([sys.executable, "-c", ""], tmp_path / "log") as process:
        process.wait()
    assert process.returncode == 0
