"""Repeats `make test` on one commit, and records each run in `.results/runs.jsonl`.

Each run has a fresh clone of the commit, and a seed of its own. The series ends with the first run
that fails or has a flaky test: either is a defect to mend.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.gate.suites import FLAKY, RESULTS, ROOT, SEED_VARIABLE, chosen_seed

RUNS = RESULTS / "runs.jsonl"
_BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `make test`."""

    commit: str
    seed: int
    loaded: bool
    """Whether another process kept one core busy."""
    seconds: int
    exit_code: int
    flaky: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every test passed in its first attempt."""
        return self.exit_code == 0 and not self.flaky


def clean_commit() -> str | None:
    """The commit of this checkout; None if it has changes that are not committed, or no commit."""
    state = _git("status", "--porcelain", "--untracked-files=normal")
    head = _git("rev-parse", "HEAD")
    return head.strip() if head is not None and state == "" else None


def repeat(runs: int, loaded: int) -> int:
    """Runs until there are this many good runs of the commit, the loaded ones last; returns the
    exit code."""
    commit = clean_commit()
    if commit is None:
        print("commit the changes of this checkout first: runs are of one commit", file=sys.stderr)
        return 2
    known = [run for run in _read() if run.commit == commit]
    while all(run.good for run in known) and len(known) < runs:
        seed = chosen_seed() + len(known)
        known.append(_run(commit, seed, loaded=len(known) >= runs - loaded))
        with RUNS.open("a") as file:
            file.write(json.dumps(asdict(known[-1])) + "\n")
    _print(known)
    return 0 if all(run.good for run in known) else 1


def _run(commit: str, seed: int, *, loaded: bool) -> Run:
    folder = Path(tempfile.mkdtemp(prefix="gate-"))
    checkout = folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    subprocess.run(["git", "-C", checkout, "checkout", "--quiet", commit], check=True)
    started = time.monotonic()
    with _one_core_busy(busy=loaded):
        done = subprocess.run(
            ["make", "test"],
            cwd=checkout,
            env={**os.environ, SEED_VARIABLE: str(seed)},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    seconds = round(time.monotonic() - started)
    flaky = [test for suite in _flaky(checkout).values() for test in suite]
    shutil.rmtree(folder)
    return Run(commit, seed, loaded, seconds, done.returncode, tuple(flaky))


def _flaky(checkout: Path) -> dict[str, dict[str, str]]:
    file = checkout / FLAKY
    found: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    return found


@contextmanager
def _one_core_busy(*, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _read() -> list[Run]:
    if not RUNS.exists():
        RUNS.parent.mkdir(exist_ok=True)
        return []
    rows = [json.loads(line) for line in RUNS.read_text().splitlines()]
    return [Run(**{**row, "flaky": tuple(row["flaky"])}) for row in rows]


def _print(runs: list[Run]) -> None:
    print(f"\n{'run':>4} {'seed':>10} {'core busy':>10} {'minutes':>8} {'exit':>5}  flaky tests")
    for number, run in enumerate(runs, 1):
        busy = "yes" if run.loaded else "no"
        flaky = ", ".join(run.flaky) or "-"
        minutes = run.seconds / 60
        print(f"{number:>4} {run.seed:>10} {busy:>10} {minutes:>8.1f} {run.exit_code:>5}  {flaky}")


def _git(*args: str) -> str | None:
    done = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
