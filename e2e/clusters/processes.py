"""Processes of one cluster: started detached, and stopped by their identity.

A process is identified by pid, start time *and* boot ID, so a pid that the kernel has reused is
never signalled. `start` records each component in a file before it returns: another run of the
command line finds it there. `stop` keeps the record, so `start_again` needs the name only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.clusters.errors import InvalidRequest, StartFailed
from e2e.clusters.run_command import last_lines

# Seconds between two checks of a condition. Short, because the whole start takes a few seconds.
POLL = 0.05

# The heap of a component of Kubernetes grows to four times what it uses before Go collects garbage:
# with the default of 100, a tenth of an API server's processor time is for that.
_GOGC = "300"

# The shell joins the cgroup before it becomes the program, so no child starts outside.
# nsenter and not `ip netns exec`: the latter mounts another /sys, which hides the cgroups.
_LAUNCH = (
    'cd / && echo $$ >"$1" && net="$2" && shift 2 '
    '&& if [ "$net" = - ]; then exec "$@"; else exec nsenter --net="$net" -- "$@"; fi'
)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, distinct from a later process with the same pid."""

    pid: int
    start_ticks: int
    boot: str


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start time from a /proc/PID/stat line.

    The command name is in parentheses and may contain spaces and parentheses, so fields are counted
    from the last closing one. Start time is field 22 (proc(5)), state is field 3.
    """
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> Identity | None:
    """The identity of the process with this pid; None if there is none, or only a zombie."""
    with contextlib.suppress(ChildProcessError):
        # Reaps a child of this process; raises for any other process.
        os.waitpid(pid, os.WNOHANG)
    try:
        state, ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else Identity(pid, ticks, boot_id())


def children(pid: int) -> frozenset[int]:
    """The pids of a process's children, those included that have ended and are not yet reaped."""
    found = set[int]()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, thread.read_text().split()))
    return frozenset(found)


def alive(identity: Identity | None) -> bool:
    """Whether exactly this process runs."""
    return identity is not None and identify(identity.pid) == identity


def end(identity: Identity | None, *, grace: float) -> None:
    """Terminates the process, and kills it after `grace` seconds; returns when it has ended."""
    if identity is None or not alive(identity):
        return
    first = signal.SIGTERM if grace > 0 else signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        os.kill(identity.pid, first)
    deadline = time.monotonic() + grace
    while alive(identity):
        if time.monotonic() >= deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, signal.SIGKILL)
        time.sleep(POLL / 5)


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The recorded processes of one cluster.

    `records` and `logs` are folders of the cluster, `join` is the cgroup.procs file that every
    process writes its pid to, `netns` the file of the network namespace.
    """

    records: Path
    logs: Path
    join: Path
    netns: Path

    def start(self, name: str, argv: Sequence[str | Path]) -> None:
        """Starts `argv` as component `name`, its output appended to the component's log."""
        command = [str(part) for part in argv]
        self._spawn(name, command)

    def start_again(self, name: str) -> None:
        """Starts a component with its previous arguments unless it runs.

        :raises InvalidRequest: the component was never started here.
        """
        if not self.running(name):
            self._spawn(name, self._read(name)[0])

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """Stops a component if it runs; its record stays."""
        end(self._read(name)[1], grace=grace)

    def remove(self, name: str) -> None:
        """Stops a component and removes its record; its log stays."""
        if name in self.names():
            self.stop(name)
            (self.records / f"{name}.json").unlink()

    def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspends (SIGSTOP) or resumes a running component."""
        identity = self._read(name)[1]
        if identity is not None and alive(identity):
            os.kill(identity.pid, signal.SIGSTOP if suspended else signal.SIGCONT)

    def running(self, name: str) -> bool:
        """Whether the component runs."""
        return alive(self._read(name)[1])

    def command(self, name: str) -> list[str]:
        """The command line of a component.

        :raises InvalidRequest: the component was never started here.
        """
        return self._read(name)[0]

    def names(self) -> list[str]:
        """All components that were ever started here, sorted."""
        return sorted(path.stem for path in self.records.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The component's pid while it runs."""
        identity = self._read(name)[1]
        return identity.pid if identity is not None and alive(identity) else None

    def log(self, name: str) -> Path:
        """The path of the component's log."""
        return self.logs / f"{name}.log"

    def restart_ended(self) -> dict[str, str]:
        """Starts each component that does not run; returns the last lines of its log by name."""
        ended = [name for name in self.names() if not self.running(name)]
        last = {name: self._last_lines(name) for name in ended}
        for name in ended:
            self.start_again(name)
        return last

    def _last_lines(self, name: str) -> str:
        log = self.log(name)
        return last_lines(log.read_text(errors="replace")) if log.exists() else "(it has no log)"

    def failure(self, name: str, what: str) -> StartFailed:
        """An error with the end of the component's log."""
        return StartFailed(
            f"{what}; the last lines of {name}:\n{self._last_lines(name)}",
            where=str(self.log(name)),
            next_step="read the whole log; `down` removes the started components",
        )

    def _spawn(self, name: str, command: list[str]) -> None:
        for folder in (self.records, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        log = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _LAUNCH, name, str(self.join), str(self.netns), *command],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited_files()),
                ],
                # A new session: Ctrl-C in the terminal ends `up`, not the clusters.
                setsid=True,
            )
        finally:
            os.close(log)
        identity = identify(pid)
        record = {"argv": command, "process": asdict(identity) if identity else None}
        path = self.records / f"{name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record))
        partial.replace(path)

    def _read(self, name: str) -> tuple[list[str], Identity | None]:
        try:
            record = json.loads((self.records / f"{name}.json").read_text())
        except FileNotFoundError:
            raise InvalidRequest(
                f"no component {name!r} was started here",
                where=str(self.records),
                next_step=f"there are: {', '.join(self.names()) or 'none'}",
            ) from None
        process = record["process"]
        return record["argv"], Identity(**process) if process else None


def _inherited_files() -> list[int]:
    """Files that the caller of this process has left open for its children, such as the lock of
    flock(1): a component that outlives the caller must not hold them."""
    numbers = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the directory itself
            if (number := int(entry.name)) > 2 and os.get_inheritable(number):
                numbers.append(number)
    return numbers


def _environment() -> dict[str, str]:
    """The environment of a component, without the caller's proxy or KUBECONFIG variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"GOGC": _GOGC}
