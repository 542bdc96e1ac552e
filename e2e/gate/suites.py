"""Runs a suite of tests, and each of a few failed tests once more, alone.

If a run had at most `Suite.most_repeated` failed tests, each of them gets a second attempt: after
the run, by itself, with the same seed, and with clusters of its own. A test that then passes is
*flaky*: it is printed with its first failure, and recorded in `.results/flaky.json`. A test that
fails twice, as one that fails because of its random numbers does, fails the suite. Nothing is
repeated after a run with more failed tests, with a module that cannot be imported, with a rejected
or undeclared permission, or that was interrupted.

A run that exceeds its time limit is interrupted, so that pytest names the running test, and then
killed with all processes that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.processes import Identity, children, end, identify
from e2e.gate.pytest_plugin import Outcome

ROOT = Path(__file__).parents[2]
RESULTS = Path(".results")
FLAKY = RESULTS / "flaky.json"
#: How long a run that exceeded its limit may take to end its fixtures.
INTERRUPTED_SECONDS = 60.0
SEED_VARIABLE = "CLUSTER_BRIDGE_TEST_SEED"
#: Exit code of pytest if tests failed, and nothing else happened.
TESTS_FAILED = 1
#: Exit code of a run that was killed or wrote no outcome.
NO_OUTCOME = 3


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that run together."""

    name: str
    options: tuple[str, ...]
    """Options of pytest in the first attempt."""
    seed: int
    """Determines the order and the random numbers of the tests, in both attempts."""
    most_repeated: int
    """The most failed tests that get a second attempt."""
    seconds: float
    """Limit of the first attempt."""
    repeated_seconds: float
    """Limit of the second attempt of one test."""


def fast(workers: int) -> Suite:
    """The tests that need no cluster."""
    return Suite(
        name="fast",
        options=(
            *("-n", str(workers), "--dist", "worksteal"),
            *("-m", "not long", "tests"),
        ),
        seed=chosen_seed(),
        most_repeated=3,
        seconds=1500,
        repeated_seconds=180,
    )


def end_to_end() -> Suite:
    """The core of the end-to-end tests, and the golden files, on three sets of clusters side by
    side: with these, tests use two processors fully; with four, they wait for each other until
    their timeouts."""
    return Suite(
        name="e2e",
        options=(
            *("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder"),
            *("--durations", "20", "--junitxml", ".results/native.xml"),
            *("-m", "core", "e2e", "tests/golden"),
        ),
        seed=chosen_seed(),
        most_repeated=2,
        seconds=2700,
        repeated_seconds=900,
    )


def chosen_seed() -> int:
    """The seed of the environment, or one that follows from the commit, so that a run of one commit
    can be repeated.

    Raises SystemExit if the variable is not a whole number.
    """
    if given := os.environ.get(SEED_VARIABLE):
        if not given.isdecimal():
            raise SystemExit(f"error: {SEED_VARIABLE} is {given!r}; set it to a whole number")
        return int(given)
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return int(done.stdout, 16) if done.returncode == 0 else 0


def run(suite: Suite) -> int:
    """Runs the suite; returns 0 if every test passed, in its second attempt at the latest."""
    options = [f"--randomly-seed={suite.seed}", *suite.options]
    first = _attempt(options, suite.name, suite.seconds, {})
    flaky: dict[str, str] = {}
    if _is_repeatable(suite, first):
        for test, failure in first.failed.items():
            print(f"\n{suite.name}: second attempt of {test}", flush=True)
            if not _passes_alone(suite, test):
                return TESTS_FAILED
            flaky[test] = failure
        first.exit_code = 0
    _record_flaky(suite.name, flaky)
    for test, failure in flaky.items():
        print(f"FLAKY {test}: failed in the run, passed alone. Its first failure:\n{failure}")
    # A run can also fail without a failed test.
    failed = max(len(first.failed) - len(flaky), int(first.exit_code != 0))
    print(f"\n{suite.name}: {len(flaky)} flaky", flush=True)
    print(f"{suite.name}: {first.passed + len(flaky)} passed, {failed} failed", flush=True)
    return first.exit_code


def _is_repeatable(suite: Suite, first: Outcome) -> bool:
    """Whether the failed tests of the first attempt get a second one."""
    return (
        first.exit_code == TESTS_FAILED
        and not first.collection_failed
        and 0 < len(first.failed) <= suite.most_repeated
    )


def _passes_alone(suite: Suite, test: str) -> bool:
    """Whether the test passes by itself, on clusters of its own if it needs any."""
    options = ["-n", "0", f"--randomly-seed={suite.seed}", test]
    fresh = {"CLUSTER_BRIDGE_E2E_PREFIX": "again"}
    again = _attempt(options, f"{suite.name}-again", suite.repeated_seconds, fresh)
    return again.exit_code == 0 and again.passed > 0


def _record_flaky(suite: str, flaky: dict[str, str]) -> None:
    """Replaces what the record has of this suite."""
    known = json.loads(FLAKY.read_text()) if FLAKY.exists() else {}
    FLAKY.parent.mkdir(exist_ok=True)
    FLAKY.write_text(json.dumps({**known, suite: flaky}, indent=1))


def _attempt(options: list[str], name: str, seconds: float, environment: dict[str, str]) -> Outcome:
    """Runs pytest in a session of its own. A run that wrote no outcome counts as interrupted."""
    path = RESULTS / f"{name}.json"
    path.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", f"--outcome={path}", *options],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        exit_code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"{name}: exceeded its limit of {seconds:g} s", flush=True)
        exit_code = NO_OUTCOME
    finally:
        _end(process)
    outcome = Outcome.read(path) or Outcome(exit_code=NO_OUTCOME)
    outcome.exit_code = exit_code or outcome.exit_code
    return outcome


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a run if it has not ended, and kills it with its descendants."""
    below = _descendants(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + INTERRUPTED_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        below |= _descendants(process.pid)
    process.kill()
    process.wait()
    for identity in below:
        end(identity, grace=0)


def _descendants(pid: int) -> set[Identity]:
    found = set[Identity]()
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        found |= {identity for child in below if (identity := identify(child)) is not None}
        waiting += below
    return found
