"""`bridge` as a user runs it: the installed command, in a process of its own.

A `Bridge` is one `bridge join`. `start` returns when the node is registered, or raises with what
the command printed; `launch` does not wait for that. `stop` is Ctrl-C; `kill` is a crash.
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

#: The command of the environment that runs this.
BRIDGE = Path(sys.executable).with_name("bridge")
#: What `bridge join` says when pods can be bound to the node.
REGISTERED = "is registered"
#: Seconds for a join on clusters that are up.
START_SECONDS = 60.0
#: Seconds for a stop: streams and the Lease have 3 each.
STOP_SECONDS = 15.0


class BridgeFailed(Exception):
    """The command ended, or did not get as far as it should; with what it printed."""


def run(
    *args: str | Path, home: Cluster | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `bridge ARGS` to its end; ``home`` is where kubectl would find it."""
    return subprocess.run(
        [BRIDGE, *args],
        env=_environment(home, env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@dataclass
class Bridge:
    """One `bridge join` between two clusters."""

    home: Cluster
    remote: Cluster
    log: Path
    args: Sequence[str] = ()
    program: Sequence[str | Path] = (BRIDGE,)
    """Another than the installed command, such as another version."""
    through: Sequence[str | Path] = ()
    """What the command is run by, such as nsenter; it has to become the command."""
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def command(self) -> list[str | Path]:
        """What a user types."""
        join = ("join", "--kubeconfig", self.remote.kubeconfig)
        return [*self.through, *self.program, *join, *self.args]

    def launch(self) -> int:
        """Begins to join, and does not wait; where in the log its output begins."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=_environment(self.home, self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C in the terminal is not the bridge's.
                start_new_session=True,
            )
        return begin

    def start(self, until: str = REGISTERED) -> None:
        """Joins, and waits until it says so. Raises BridgeFailed with the command's output when it
        does not get there."""
        begin = self.launch()
        deadline = time.monotonic() + START_SECONDS
        while until not in (said := self._said(begin)):
            if self.process is None or self.process.poll() is not None:
                self.kill()
                raise BridgeFailed(f"{self.log}:\n{said}")
            if time.monotonic() > deadline:
                self.kill()
                raise BridgeFailed(f"not in {START_SECONDS:.0f} s: {self.log}:\n{said}")
            time.sleep(0.05)

    def _said(self, begin: int) -> str:
        with self.log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace")

    def says(self, words: str, *, times: int = 1, seconds: float = START_SECONDS) -> float:
        """Waits until its log has this so often; the time (`time.time`) at which that was seen."""
        deadline = time.monotonic() + seconds
        while self._said(0).count(words) < times:
            if time.monotonic() > deadline:
                raise BridgeFailed(f"not said in {seconds:.0f} s: {words}\n{self._said(0)}")
            time.sleep(0.02)
        return time.time()

    def signal(self, number: Signals) -> None:
        """Sends the process a signal."""
        if self.process is None:
            raise BridgeFailed("it does not run")
        self.process.send_signal(number)

    def ended(self) -> int:
        """Waits for one that ends by itself; the exit status."""
        if self.process is None:
            raise BridgeFailed("it does not run")
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise BridgeFailed(f"it runs on; see {self.log}") from None
        finally:
            self.kill()

    def stop(self, number: Signals = SIGINT) -> int:
        """Ctrl-C, or another signal that asks it to end; the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BridgeFailed(f"it did not stop in {STOP_SECONDS:.0f} s; see {self.log}") from None
        finally:
            self.process = None

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
