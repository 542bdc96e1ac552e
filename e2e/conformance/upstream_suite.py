"""The program of the upstream tests: lists them, and runs some of them on a cluster.

A run is one `ginkgo` process with workers, in its own session. It always ends with them: an
interrupted run first lets running tests clean up, then kills the rest.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.errors import ClusterError
from e2e.clusters.run_command import last_lines, run
from e2e.conformance.junit_results import Result, read_junit
from e2e.conformance.selection import listed

#: Prefix of Ginkgo's full names of these tests, which its filters match.
_SUITE = "Kubernetes e2e suite "
#: Timeout of all tests; each test has a much shorter one.
_LIMIT = "3h"
#: Seconds between two lines of progress.
_INTERVAL = 20.0
#: Seconds for running tests to clean up after Ctrl-C.
_GRACE = 60.0

_DONE = re.compile(r"^•", re.MULTILINE)
_FAILED = re.compile(r"^• \[(?:FAILED|PANICKED|TIMEDOUT)\]", re.MULTILINE)

_NICE = 10


class SuiteFailed(ClusterError):
    """The tests did not run to their end; with the end of their log."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The programs, and the cluster under test. `storage` defines a driver whose tests the suite
    then has, too."""

    programs: Path
    cluster: Cluster
    say: Progress
    storage: Path | None = None

    def names(self) -> list[str]:
        """The names of all tests."""
        command = [f"{self.programs / 'e2e.test'}", "--list-tests", *self._driver()]
        return listed(run(command, timeout=120).stdout)

    def run(
        self, names: Sequence[str], *, title: str, folder: Path, procs: int
    ) -> dict[str, Result]:
        """Runs these tests, `procs` at a time; creates `folder` for the log and the JUnit file.

        :raises SuiteFailed: there is no JUnit file at the end.
        """
        folder.mkdir(parents=True, exist_ok=True)
        junit, log = folder / "junit_01.xml", folder / "log.txt"
        junit.unlink(missing_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(names, folder, procs),
                cwd=folder,
                # The tests get their cluster by a flag; some start a kubectl without it.
                env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(process, log, title, len(names))
            except BaseException:
                _end(process)
                raise
        if not junit.exists():
            raise SuiteFailed(
                f"{title}: the tests ended with {process.returncode}:\n"
                f"{last_lines(log.read_text(errors='replace'))}",
                where=str(log),
            )
        return read_junit(junit.read_text(), names)

    def _command(self, names: Sequence[str], folder: Path, procs: int) -> list[str]:
        cluster = self.cluster
        ginkgo = [
            *(f"--procs={procs}", f"--timeout={_LIMIT}", f"--focus={focus(names)}"),
            *("--no-color", "--silence-skips", "--force-newlines"),
        ]
        tests = [
            "--provider=skeleton",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--kubectl-path={cluster.kubectl_path}",
            "--num-nodes=1",
            # Wait neither for cordoned nodes, nor for system pods, which do not exist.
            *("--allowed-not-ready-nodes=-1", "--minStartupPods=-1"),
            *("--disable-log-dump", "--dump-logs-on-failure=false"),
            f"--report-dir={folder}",
            *self._driver(),
        ]
        programs = self.programs
        nice = ["nice", "-n", str(_NICE)]
        return [*nice, f"{programs / 'ginkgo'}", *ginkgo, f"{programs / 'e2e.test'}", "--", *tests]

    def _driver(self) -> list[str]:
        return [f"--storage.testdriver={self.storage}"] if self.storage else []

    def _wait(self, process: subprocess.Popen[bytes], log: Path, title: str, tests: int) -> None:
        started = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_INTERVAL)
            output = log.read_text(errors="replace")
            done, failed = len(_DONE.findall(output)), len(_FAILED.findall(output))
            seconds = time.monotonic() - started
            self.say(f"{title}: {done} of {tests} tests, {failed} failed, {seconds:.0f} s")
            if process.returncode is not None:
                return


def focus(names: Sequence[str]) -> str:
    """A regular expression for exactly these tests, without trailing blanks.

    Anchored once as a whole: Go's matcher then follows few alternatives at a time. With one anchor
    per name it takes minutes for all names.
    """
    return f"^{_SUITE}(?:{'|'.join(re.escape(name) for name in names)}) *$"


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_GRACE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
