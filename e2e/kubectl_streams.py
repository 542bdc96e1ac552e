"""Streams of kubectl: input and output, a terminal, a forwarded port."""

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
    """The environment that selects WebSocket or SPDY in kubectl."""
    value = str(websockets).lower()
    return {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": value, "KUBECTL_PORT_FORWARD_WEBSOCKETS": value}


def command(cluster: Cluster, namespace: str, *args: str) -> list[str]:
    """A kubectl command line."""
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
    """A kubectl that runs until the block ends; its input and output are pipes."""
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
    """A local address that kubectl forwards to this port."""
    with running(cluster, namespace, "port-forward", target, f":{port}", env=env) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline().decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", first_line)
        assert found, f"port-forward printed {first_line!r}"
        yield "127.0.0.1", int(found[1])


class KubectlTerminal:
    """A kubectl on a pseudo-terminal; the test types keys and reads the screen."""

    def __init__(self, args: list[str], *, env: Mapping[str, str], size: tuple[int, int]) -> None:
        self._screen = b""
        self._master, slave = os.openpty()
        self.resize(*size)
        # It must be the controlling terminal: only then the process is notified of a resize.
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
        """Changes the size of the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Types text."""
        os.write(self._master, text.encode())

    def sees(self, text: str, *, before: str) -> bool:
        """Reads up to and including ``before``; whether ``text`` came first."""
        deadline = time.monotonic() + PATIENCE
        while before.encode() not in self._screen:
            more = self._more(max(0.0, deadline - time.monotonic()))
            assert more, f"no {before!r} on the screen: {self._screen!r}"
        seen, _, self._screen = self._screen.partition(before.encode())
        return text.encode() in seen

    def wait_for_exit(self) -> int:
        """Waits until the command ends; returns its exit status."""
        while self._more(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def _more(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            self._screen += os.read(self._master, 65536)
        except OSError:  # EIO: no process has the terminal open
            return False
        return True
