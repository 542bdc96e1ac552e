"""Measurements of streams: each function measures once over one path, and returns a figure.

Throughput (MB/s, of 1,000,000 bytes) is measured with kubectl from the first byte on, which
excludes kubectl's start. Latency (ms) is measured on connections of this process, since the start
of a kubectl takes longer than the measured operation.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Literal

from websocket import ABNF, WebSocket

from e2e import kubectl_streams
from e2e.bench.stream_paths import PATIENCE, StreamPath

CHUNK = 1 << 20
ECHO_PORT, SOURCE_PORT = 9000, 9001
#: Smaller than a kubelet's maximum log file.
LOG_BYTES = 7_000_000
#: Script of the benchmark's pod: writes that log, and runs servers for port-forward.
SCRIPT = (
    f"yes {'x' * 99} | head -c {LOG_BYTES}; "
    f"nc -ll -p {ECHO_PORT} -e /bin/cat & nc -ll -p {SOURCE_PORT} -e /bin/cat /dev/zero & wait"
)


@dataclass(frozen=True)
class Measure:
    """One measurement; high throughput is better, low latency is better."""

    name: str
    unit: Literal["MB/s", "ms"]
    take: Callable[[StreamPath, int], float]
    """Measures a path with so many bytes (unused for latency)."""
    tries: int = 1
    """Repetitions per round; the median counts."""


def _speed(size: int, since: float) -> float:
    return size / (time.perf_counter() - since) / 1e6


def _started(way: StreamPath, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        kubectl_streams.command(way.cluster, way.namespace, *args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _drained(pipe: IO[bytes]) -> int:
    return sum(map(len, iter(lambda: pipe.read(CHUNK), b"")))


def _pour(write: Callable[[bytes], object], size: int) -> None:
    chunk = bytes(CHUNK)
    for begin in range(0, size, CHUNK):
        write(chunk[: size - begin])


def _take(connection: socket.socket, size: int) -> None:
    """Receives at least ``size`` bytes."""
    while size > 0:
        received = len(connection.recv(CHUNK))
        if not received:
            raise RuntimeError(f"a forwarded connection ended, {size} bytes before its end")
        size -= received


@contextlib.contextmanager
def _forwarded(way: StreamPath, port: int) -> Iterator[socket.socket]:
    """A connection to that port of the pod, through kubectl."""
    forwarded = kubectl_streams.forwarded(
        way.cluster, way.namespace, f"pod/{way.pod}", port, env={}
    )
    with forwarded as address, socket.create_connection(address, timeout=PATIENCE) as made:
        yield made


def _until_channel(made: WebSocket, channel: int) -> bytes:
    """The first data of a channel; a server starts each with an empty message."""
    while True:
        message = made.recv()
        if not isinstance(message, bytes) or not message:
            raise RuntimeError(f"the exec ended with nothing on channel {channel}")
        if message[0] == channel and len(message) > 1:
            return message[1:]


def _output(way: StreamPath, size: int, *args: str) -> float:
    """MB/s of the output of a kubectl."""
    with _started(way, *args) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        since = time.perf_counter()
        received = len(first) + _drained(process.stdout)
    if received < size or process.returncode != 0:
        raise RuntimeError(f"kubectl {args[0]} ended with {received} of {size} bytes")
    return _speed(received, since)


def exec_output(way: StreamPath, size: int) -> float:
    """Output of a command."""
    return _output(way, size, "exec", way.pod, "--", "head", "-c", str(size), "/dev/zero")


def exec_input(way: StreamPath, size: int) -> float:
    """Input of a command, which reports its start and end."""
    script = f"echo begun; head -c {size} >/dev/null; echo all"
    with _started(way, "exec", "-i", way.pod, "--", "sh", "-c", script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        since = time.perf_counter()
        _pour(process.stdin.write, size)
        process.stdin.flush()
        if process.stdout.readline() != b"all\n":
            raise RuntimeError("the command has not read all of its input")
        return _speed(size, since)


def logs(way: StreamPath, size: int) -> float:
    """The pod's whole log."""
    del size  # the length of the log is fixed
    return _output(way, LOG_BYTES, "logs", way.pod)


def forward_download(way: StreamPath, size: int) -> float:
    """Data sent by a server in the pod."""
    with _forwarded(way, SOURCE_PORT) as connection:
        _take(connection, 1)
        since = time.perf_counter()
        _take(connection, size)
        return _speed(size, since)


def forward_echo(way: StreamPath, size: int) -> float:
    """Data echoed by a server in the pod."""
    with _forwarded(way, ECHO_PORT) as connection:
        since = time.perf_counter()
        sending = threading.Thread(target=_pour, args=(connection.sendall, size))
        sending.start()
        _take(connection, size)
        sending.join()
        return _speed(size, since)


def first_log_byte(way: StreamPath, size: int) -> float:
    """From the request for the log's last line to its first byte, on an open connection."""
    del size
    with way.connection() as connection:
        path = way.path("log", [("container", "main"), ("tailLines", "1")])
        for last in (False, True):
            since = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read(1)
            taken = time.perf_counter() - since
            answer.read()
            if last:
                return taken * 1e3
    raise AssertionError


def exec_round_trip(way: StreamPath, size: int) -> float:
    """From the request for a no-op command to its end."""
    del size
    since = time.perf_counter()
    with way.exec("true") as made:
        _until_channel(made, 3)
    return (time.perf_counter() - since) * 1e3


def keystroke(way: StreamPath, size: int) -> float:
    """From a byte to its echo in an open exec."""
    del size
    with way.exec("cat", stdin=True) as made:
        for last in (False, True):
            since = time.perf_counter()
            made.send(b"\0x", ABNF.OPCODE_BINARY)
            _until_channel(made, 1)
            if last:
                return (time.perf_counter() - since) * 1e3
    raise AssertionError


MEASURES = (
    Measure("exec_output", "MB/s", exec_output),
    Measure("exec_input", "MB/s", exec_input),
    Measure("port_forward_download", "MB/s", forward_download),
    Measure("port_forward_echo", "MB/s", forward_echo),
    Measure("logs", "MB/s", logs),
    Measure("log_first_byte", "ms", first_log_byte, tries=10),
    Measure("exec_round_trip", "ms", exec_round_trip, tries=3),
    Measure("exec_keystroke", "ms", keystroke, tries=10),
)
