"""Runs the installed command `bridge` in a separate process, as a user does.

A `Bridge` is one `bridge join`. `start` returns when the node is registered, or raises with the
output of the command; `launch` does not wait. `stop` is Ctrl-C; `kill` is a crash.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, Signals

from e2e.clusters.cluster import Cluster

#: The command of the current Python environment.
BRIDGE = Path(sys.executable).with_name("bridge")
#: The clusters' pod networks are connected, which no probe finds while the remote runs no pods. A
#: later ``--network`` among the arguments takes precedence.
_NETWORK = ("--network", "flat")
#: Output of `bridge join` when pods can be bound to the node.
REGISTERED = "is registered"
#: Seconds for a join, on running clusters.
START_SECONDS = 60.0
#: Seconds for a stop: streams and the Lease have 3 each.
STOP_SECONDS = 15.0
#: Seconds from the launch until a rejected bridge has ended: it starts, and it may first wait for
#: the Lease of a bridge that was killed (`bridge.election`).
REJECTED_SECONDS = START_SECONDS + STOP_SECONDS


class BridgeFailed(Exception):
    """The command ended, or did not get far enough; with its output."""


def run(
    *args: str | Path,
    home: Cluster | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Runs `bridge ARGS` to its end; ``home`` is the cluster of KUBECONFIG."""
    return subprocess.run(
        [BRIDGE, *args],
        env=_environment(home, env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A command `bridge`, and the variables that it needs."""

    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)


#: The bridge that is installed in this Python environment.
INSTALLED = Program((BRIDGE,))


@dataclass
class Bridge:
    """One `bridge join` between two clusters."""

    home: Cluster
    remote: Cluster
    log: Path
    args: Sequence[str] = ()
    program: Sequence[str | Path] = (BRIDGE,)
    """The command to run instead of the installed one, such as another version."""
    through: Sequence[str | Path] = ()
    """A prefix of the command, such as nsenter; it must exec the command."""
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def use(self, program: Program) -> None:
        """Has the next launch run another program."""
        self.program, self.env = program.command, program.environment

    @property
    def command(self) -> list[str | Path]:
        """The command line."""
        join = ("join", "--kubeconfig", self.remote.kubeconfig, *_NETWORK)
        return [*self.through, *self.program, *join, *self.args]

    def launch(self) -> int:
        """Starts to join without waiting; returns the offset of its output in the log."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=_environment(self.home, self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A new session: Ctrl-C in the terminal does not reach the bridge.
                start_new_session=True,
            )
        return begin

    def start(self, until: str = REGISTERED) -> None:
        """Joins, and waits until the log has ``until``. Raises BridgeFailed with the output of the
        command if it ends or is too slow."""
        begin = self.launch()
        deadline = time.monotonic() + START_SECONDS
        while until not in (output := self._output(begin)):
            if self.process is None or self.process.poll() is not None:
                self.kill()
                raise BridgeFailed(f"{self.log}:\n{output}")
            if time.monotonic() > deadline:
                self.kill()
                raise BridgeFailed(f"not in {START_SECONDS:.0f} s: {self.log}:\n{output}")
            time.sleep(0.05)

    def _output(self, begin: int) -> str:
        with self.log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace")

    def wait_for_log(self, text: str, *, times: int = 1, seconds: float = START_SECONDS) -> float:
        """Waits until the log has the text so often; returns the time (`time.time`) of that."""
        deadline = time.monotonic() + seconds
        while self._output(0).count(text) < times:
            if time.monotonic() > deadline:
                raise BridgeFailed(f"not logged in {seconds:.0f} s: {text}\n{self._output(0)}")
            time.sleep(0.02)
        return time.time()

    def signal(self, number: Signals) -> None:
        """Sends the process a signal."""
        if self.process is None:
            raise BridgeFailed("the bridge does not run")
        self.process.send_signal(number)

    def wait_for_exit(self, *, seconds: float = STOP_SECONDS) -> int:
        """Waits until the process ends by itself; returns the exit status."""
        if self.process is None:
            raise BridgeFailed("the bridge does not run")
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BridgeFailed(
                f"the bridge did not end in {seconds:.0f} s; see {self.log}"
            ) from None
        finally:
            self.kill()

    def stop(self, number: Signals = SIGINT) -> int:
        """Sends Ctrl-C, or another signal that ends the bridge; returns the exit status."""
        if self.process is None:
            return 0
        self.signal(number)
        return self.wait_for_exit()

    def kill(self) -> None:
        """Ends the process without a chance to clean up."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _environment(home: Cluster | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    env = {**os.environ, "NO_COLOR": "1", **(extra or {})}
    env.pop("KUBECONFIG", None)
    if home is not None:
        env["KUBECONFIG"] = str(home.kubeconfig)
    return env
