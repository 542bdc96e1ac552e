"""The second attempt of failed tests: which runs get one, and what it means for the run.

A defect here could let a change with a broken product pass.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.clusters.processes import identify
from e2e.gate import suites
from e2e.gate.suites import FLAKY, Suite

#: Counts its runs in a file, and fails as often as the name of the test states.
TESTS = """
import os, random, subprocess, sys
from pathlib import Path
import pytest

def runs(name):
    file = Path(f"{name}.runs")
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count

def test_passes():
    pass
"""
ONCE = """
@pytest.mark.xdist_group("test_trial.py")
@pytest.mark.parametrize("case", ["a::b [c]"])
def test_fails_once_{0}(case):
    assert runs("once{0}") > 1, "the first failure"
"""
ALWAYS = """
def test_fails_always():
    runs("always")
    raise AssertionError("a defect")
"""
RANDOM = """
def test_random_numbers():
    with Path("numbers").open("a") as file:
        file.write(f"{random.random()}\\n")
    raise AssertionError("a defect")
"""
FIXTURE_ONCE = """
@pytest.fixture
def broken():
    yield
    assert runs("fixture") > 1, "the first failure"

def test_with_a_fixture(broken):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a project of its own, whose tests have a conftest as ours do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "conftest.py").touch()
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p e2e.gate.pytest_plugin -p no:cacheprovider\n"
    )
    return tmp_path


def suite(*options: str, seconds: float = 60) -> Suite:
    """A suite of the current folder that allows two failures."""
    return Suite("trial", (*options, "."), 7, most_repeated=2, seconds=seconds, repeated_seconds=60)


def write(*parts: str) -> None:
    """Writes the tests of the suite."""
    Path("trial/test_trial.py").write_text(TESTS + "".join(parts))


def runs(name: str) -> int:
    """How often the test ran."""
    file = Path(f"{name}.runs")
    return int(file.read_text()) if file.exists() else 0


def flaky() -> list[str]:
    """The recorded flaky tests of the suite."""
    return list(json.loads(FLAKY.read_text()).get("trial", ()))


@pytest.mark.parametrize(
    "workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one process", "workers"]
)
def test_test_that_fails_once_is_flaky(
    workers: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    write(ONCE.format(1), FIXTURE_ONCE)
    assert suites.run(suite(*workers)) == 0
    assert runs("once1") == runs("fixture") == 2
    assert sorted(flaky()) == [
        "trial/test_trial.py::test_fails_once_1[a::b [c]]",
        "trial/test_trial.py::test_with_a_fixture",
    ]
    printed = capfd.readouterr().out
    assert printed.count("\nFLAKY ") == 2
    assert "the first failure" in printed


def test_test_that_fails_twice_fails_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    write(ONCE.format(1), ALWAYS)
    assert suites.run(suite()) != 0
    assert runs("always") == 2
    assert "trial/test_trial.py::test_fails_always: call failed" in capfd.readouterr().out


def test_second_attempt_has_the_same_random_numbers() -> None:
    """A test that fails for certain numbers, as a fuzz test can, is not flaky."""
    write(RANDOM)
    assert suites.run(suite("-n", "2")) != 0
    first, second = Path("numbers").read_text().splitlines()
    assert first == second


def test_more_failures_than_allowed_get_no_second_attempt() -> None:
    write(*(ONCE.format(number) for number in (1, 2, 3)))
    assert suites.run(suite()) != 0
    assert [runs(f"once{number}") for number in (1, 2, 3)] == [1, 1, 1]
    assert flaky() == []


def test_module_that_cannot_be_imported_gets_no_second_attempt() -> None:
    write(ONCE.format(1))
    Path("test_broken.py").write_text("import missing_module\n")
    assert suites.run(suite("--continue-on-collection-errors")) != 0
    assert runs("once1") == 1


def test_another_exit_code_gets_no_second_attempt() -> None:
    write(ONCE.format(1))
    Path("conftest.py").write_text(
        "def pytest_sessionfinish(session):\n    session.exitstatus = 9\n"
    )
    assert suites.run(suite()) == 9
    assert runs("once1") == 1


def test_run_without_tests_fails() -> None:
    assert suites.run(suite()) != 0


def test_killed_run_fails() -> None:
    write("\ndef test_kills_its_run():\n    os.kill(os.getpid(), 9)\n")
    assert suites.run(suite()) != 0
    assert flaky() == []


def test_run_that_exceeds_its_limit_is_killed_with_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also a child in a session of its own, which waits for nothing."""
    monkeypatch.setattr(suites, "INTERRUPTED_SECONDS", 5.0)
    write(
        "\ndef test_hangs():\n"
        "    child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "    Path('child').write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    assert suites.run(suite(seconds=8)) != 0
    assert identify(int(Path("child").read_text())) is None


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)])
def test_children_of_tests_have_the_default_signals(ignored: tuple[int, ...]) -> None:
    """Whatever the parent of pytest ignores."""
    status = "Path('/proc/self/status').read_text()"
    write(
        "\ndef test_child():\n"
        f'    code = "from pathlib import Path; print({status})"\n'
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "    line = next(l for l in done.stdout.splitlines() if l.startswith('SigIgn'))\n"
        "    assert int(line.split()[1], 16) & 0b111 == 0\n"
    )

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "."],
        preexec_fn=ignore,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0


def test_test_that_leaves_a_child_fails() -> None:
    """Also if it passed; the child is killed."""
    Path("conftest.py").write_text(
        "from tests.conftest import pytest_runtest_call, pytest_runtest_teardown\n"
    )
    write(
        "\ndef test_leaves_a_child():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    Path('child').write_text(str(child.pid))\n"
    )
    assert suites.run(suite()) != 0
    assert identify(int(Path("child").read_text())) is None
