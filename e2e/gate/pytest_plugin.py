"""The pytest plugin of both suites (`addopts` in pyproject.toml).

- A run behaves the same whatever signals its parent ignores, as under nohup or in the background
  of a shell: its child processes start with the default dispositions.
- A failure is printed when it happens, with the test's name: a run that is ended from outside
  prints no summary.
- ``--outcome FILE`` writes what a run found as JSON, for `e2e.gate.suites`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

#: Signals that a parent may have set to be ignored, which child processes inherit.
_OFTEN_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@dataclass(slots=True)
class Outcome:
    """The outcome of one run of pytest."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Node IDs of failed tests, each with the text of its first failure."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test took with its fixtures."""
    collection_failed: bool = False
    exit_code: int = 0

    @classmethod
    def read(cls, path: Path) -> Outcome | None:
        """Reads the file of ``--outcome``; None if the run ended before it wrote one."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--outcome``."""
    parser.addoption("--outcome", metavar="FILE", help="write the outcome of the run as JSON")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Restores signals, and registers what only the reporting process does."""
    for number in _OFTEN_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            # A handler, unlike the disposition, is not inherited by a program that is executed.
            signal.signal(number, lambda _number, _frame: None)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_ImmediateFailures(terminal))
    path = config.getoption("outcome")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_OutcomeWriter(Path(path)))


@dataclass(frozen=True)
class _ImmediateFailures:
    """Prints each failure when it is reported."""

    terminal: pytest.TerminalReporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Prints the report of a failed test or fixture."""
        if report.failed:
            self.terminal.section(f"{report.nodeid}: {report.when} failed", red=True)
            self.terminal.write_line(report.longreprtext)
            for title, content in report.sections:
                self.terminal.section(title, "-")
                self.terminal.write_line(content)


@dataclass(eq=False)  # pytest keeps plugins in sets
class _OutcomeWriter:
    """Collects the outcome, and writes it when the run ends."""

    path: Path
    outcome: Outcome = field(default_factory=Outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Records a module that cannot be imported."""
        self.outcome.collection_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records a test's outcome; a failed fixture is a failed test."""
        # pytest-xdist appends the test's group, which is the name of its file (e2e/conftest.py).
        test = report.nodeid.removesuffix(f"@{Path(report.location[0]).name}")
        self.outcome.seconds[test] = self.outcome.seconds.get(test, 0.0) + report.duration
        if report.failed:
            self.outcome.failed.setdefault(test, report.longreprtext)
        elif report.when == "call" and report.passed:
            self.outcome.passed += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Writes the file after all others had their chance to change the exit code."""
        yield
        self.outcome.exit_code = int(session.exitstatus)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(asdict(self.outcome), indent=1))
