"""`python -m e2e.gate`: the test run that decides whether a change is merged.

`run` is `make test`, `fast` and `e2e` are its two suites, and `repeat` shows that it can be
trusted. Exit code 0: every test passed, in its second attempt at the latest (`e2e.gate.suites`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from e2e.conftest import DURATIONS
from e2e.gate import repetition, suites
from e2e.gate.pytest_plugin import Outcome
from e2e.gate.suites import RESULTS

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

#: Has the commit of the last complete run that passed.
GREEN = RESULTS / "green"


@app.command()
def run() -> None:
    """Run the linters and both suites; record the commit in .results/green if all passed."""
    GREEN.unlink(missing_ok=True)
    commit = repetition.clean_commit()
    phases: dict[str, Callable[[], int]] = {
        "lint": lambda: subprocess.run(["make", "lint"], check=False).returncode,
        "fast tests": _run_fast,
        "builds": lambda: _module("e2e.clusters", "build"),
        "end-to-end tests": _run_end_to_end,
    }
    took = dict[str, float]()
    for name, phase in phases.items():
        started = time.monotonic()
        code = phase()
        took[name] = time.monotonic() - started
        print(f"\n{name}: {'passed' if code == 0 else 'failed'} after {took[name]:.0f} s")
        if code:
            raise typer.Exit(code)
    print("seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in took.items()))
    if commit is None:
        print(f"{GREEN} was not written: the checkout has changes that are not committed")
    else:
        GREEN.write_text(f"{commit}\n")


@app.command()
def fast() -> None:
    """Run the tests that need no cluster."""
    raise typer.Exit(_run_fast())


@app.command()
def e2e() -> None:
    """Run the core of the end-to-end tests."""
    raise typer.Exit(_run_end_to_end())


@app.command()
def repeat(
    runs: Annotated[int, typer.Option(help="Number of runs.", min=1)] = 10,
    loaded: Annotated[
        int, typer.Option(help="Number of runs next to a process that keeps one core busy.", min=0)
    ] = 5,
) -> None:
    """Run `make test` again and again on this commit, until a run fails or has a flaky test.

    Continues after the runs that .results has of this commit, and prints a table of all of them.
    """
    raise typer.Exit(repetition.repeat(runs, loaded))


@app.command()
def durations() -> None:
    """Record how long each test of the last end-to-end run took: the longest start first."""
    outcome = Outcome.read(RESULTS / "e2e.json")
    if outcome is None:
        raise typer.BadParameter(f"{RESULTS}/e2e.json is missing; run `make test-e2e` first")
    seconds = {test: round(taken, 1) for test, taken in sorted(outcome.seconds.items())}
    DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n")


def _run_fast() -> int:
    # Three workers for two processors: with two, one third of the time passes in waits for sockets.
    workers = 3 * (os.cpu_count() or 1) // 2
    return suites.run(suites.fast(workers))


def _run_end_to_end() -> int:
    return suites.run(suites.end_to_end())


def _module(*args: str) -> int:
    return subprocess.run([sys.executable, "-m", *args], check=False).returncode


def _exit(number: int, _frame: object) -> None:
    """Ends the command as Ctrl-C does, with the tests that it runs."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _exit)
    app()
