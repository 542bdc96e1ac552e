"""kubectl's streams as a user has them: bytes in and out, a terminal, a forwarded port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from typing import Self

from e2e.clusters.cluster import Cluster

#: Seconds for a stream of megabytes on a busy machine.
PATIENCE = 120.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TERM": "xterm"}


def protocol(websockets: bool) -> dict[str, str]:
    """The environment that makes kubectl speak WebSocket, or SPDY."""
    value = str(websockets).lower()
    return {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": value, "KUBECTL_PORT_FORWARD_WEBSOCKETS": value}


def command(cluster: Cluster, namespace: str, *args: str) -> list[str]:
    """A command line of kubectl."""
    kubectl = [str(cluster.kubectl_path), f"--kubeconfig={cluster.kubeconfig}"]
    return [*kubectl, "-n", namespace, *args]


def run(
    cluster: Cluster,
    namespace: str,
    *args: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs kubectl to its end, with bytes as its input."""
    return subprocess.run(
        command(cluster, namespace, *args),
        input=stdin,
        capture_output=True,
        env={**_ENVIRONMENT, **(env or {})},
        timeout=PATIENCE,
        check=False,
    )


@contextlib.contextmanager
def running(
    cluster: Cluster, namespace: str, *args: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A kubectl that goes on until the context ends; its input and output are pipes."""
    process = subprocess.Popen(
        command(cluster, namespace, *args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**_ENVIRONMENT, **(env or {})},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def forwarded(
    cluster: Cluster, namespace: str, target: str, port: int, *, env: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """A local address that leads to this port."""
    with running(cluster, namespace, "port-forward", target, f":{port}", env=env) as process:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", said)
        assert found, f"port-forward says {said!r}"
        yield "127.0.0.1", int(found[1])


class Terminal:
    """A kubectl in a terminal of its own, whose keys are typed and whose screen is read here."""

    def __init__(self, args: list[str], *, env: Mapping[str, str], size: tuple[int, int]) -> None:
        self._screen = b""
        self._master, slave = os.openpty()
        self.resize(*size)
        # The terminal must be the one that controls the process: only then it hears of a resize.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**_ENVIRONMENT, **env},
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def resize(self, rows: int, columns: int) -> None:
        """Makes the window another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._master, text.encode())

    def sees(self, text: str, *, before: str) -> bool:
        """Reads on until ``before`` appears, and over it; whether ``text`` came first."""
        deadline = time.monotonic() + PATIENCE
        while before.encode() not in self._screen:
            more = self._more(max(0.0, deadline - time.monotonic()))
            assert more, f"no {before!r} on the screen: {self._screen!r}"
        seen, _, self._screen = self._screen.partition(before.encode())
        return text.encode() in seen

    def left(self) -> int:
        """Waits for the command's end; its exit status."""
        while self._more(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def _more(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            self._screen += os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        return True
