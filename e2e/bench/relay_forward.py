"""Connections through the relay, compared with a flat network in one run.

Two paths lead to the same remote pod, in turn in each round: ``relay`` (the port that the bridge
publishes, its port-forward, the pod) and ``flat`` (the pod's own address: the tests' clusters have
routes to this machine). The client is this process, for both, on the same processors as the bridge.

- ``connect_N``: connections per second with N clients, each of which connects, sends a request,
  reads the response and closes;
- ``request_ms``: a request on an open connection;
- ``download``: megabytes per second of one connection, and the bridge's CPU time per megabyte;
- ``idle_kib``: the bridge's memory per idle connection.

``ratio_to_flat`` and ``added_to_flat`` are computed in each round.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.bench.pods.process_usage import cpu_seconds, resident_bytes
from e2e.bench.report import Report
from e2e.bridge_process import Bridge
from e2e.bridge_process import run as run_bridge
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.revisions import REPOSITORY, bridge_program
from e2e.workload_manifests import AGNHOST, pod, shell

NODE = NAMESPACE = "bench-relay"
OURS = "endpointslice.kubernetes.io/managed-by=cluster-bridge-relay"
#: Numbers of concurrent clients.
CLIENTS = (1, 10, 100, 500)
#: Connections per round, for each number of clients.
CONNECTIONS = 500
#: Requests on one connection.
REQUESTS = 200
SECONDS = 60.0
_CPU = "cpu_per_megabyte_ms"

_SCRIPT = "mkdir /www; head -c {size} /dev/zero >/www/big; exec httpd -f -p 9000 -h /www"
_SERVER = {"name": "server", "image": AGNHOST, "args": ["netexec", "--http-port=8080"]}
#: Home's Service, with named ports.
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: bench}
spec:
  selector: {app: bench}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: file, port: 90, targetPort: 9000}]
---
"""
_HELLO = b"GET /echo?msg=hello HTTP/1.1\r\nHost: bench\r\n\r\n"
_ANSWER = b"\r\n\r\nhello"
_BIG = b"GET /big HTTP/1.0\r\n\r\n"

#: The relay's limits are not measured.
_UNLIMITED = """
from functools import partial
from bridge.cli.options import join_options
join_options.RelaySettings = partial(
    join_options.RelaySettings,
    connections=10_000, service_connections=5_000, rate=1e6, service_rate=1e6,
)
"""
#: Port-forwards as to a remote that rejects SPDY: a WebSocket for each connection.
_WITHOUT_SPDY = """
from bridge.net import port_forward_sessions

class OverWebSockets(port_forward_sessions.PortForwards):
    def __init__(self, remote):
        super().__init__(remote)
        self._spdy_from = float("inf")

from bridge.relay.forward import remote_pod_connections
remote_pod_connections.PortForwards = OverWebSockets
"""

Progress = Callable[[str], None]
Endpoints = dict[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a run."""

    rounds: int
    size: int
    """Bytes of a download."""
    idle: int
    """Number of idle connections; 0 for none."""
    without_spdy: bool = False


def run(home: Cluster, remote: Cluster, settings: Settings, say: Progress, log: Path) -> Report:
    """Joins, measures, and leaves."""
    name, before = "relay", _UNLIMITED
    if settings.without_spdy:  # A report without targets: they are those of SPDY sessions.
        name, before = "relay-without-spdy", _UNLIMITED + _WITHOUT_SPDY
    with (
        joined(home, remote, log, before=before) as pid,
        _served(home, remote, settings.size) as paths,
    ):
        return measure_paths(name, settings, paths, {"": pid}, say)


def measure_paths(
    name: str,
    settings: Settings,
    paths: Mapping[str, Endpoints],
    pids: Mapping[str, int],
    say: Progress,
) -> Report:
    """Measures both paths. ``pids`` are measured processes, by the prefix of their figures."""
    report = Report(
        name, {"rounds": settings.rounds, "bytes": settings.size, "idle": settings.idle}
    )
    # First, while memory is minimal: a process keeps freed memory.
    if settings.idle:
        for whose, each in _idle(paths["relay"]["http"], settings.idle, pids).items():
            say(f"{settings.idle} idle connections: {whose}idle {each / 1024:.1f} KiB each")
            report.add(f"relay.{whose}idle_kib", "KiB", [each / 1024])
    found: dict[str, list[float]] = {}
    for number in range(settings.rounds):
        for way in ("relay", "flat") if number % 2 else ("flat", "relay"):
            for figure, value in _round(paths[way], pids).items():
                found.setdefault(f"{way}.{figure}", []).append(value)
        latest = {figure: f"{values[-1]:.4g}" for figure, values in found.items()}
        say(f"round {number + 1}: {latest}")
    for figure, rounds in with_comparisons(found).items():
        if not (figure.startswith("flat.") and _CPU in figure):
            report.add(figure, _unit(figure), rounds)
    return report


def with_comparisons(found: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The figures of each round, with the relay's compared with the flat network's."""
    more: dict[str, list[float]] = {}
    for name, flat in found.items():
        way, _, figure = name.partition(".")
        if way != "flat" or _CPU in figure:
            continue
        pairs = list(zip(found[f"relay.{figure}"], flat, strict=True))
        if figure.endswith("_ms"):
            more[f"added_to_flat.{figure}"] = [one - other for one, other in pairs]
        else:
            more[f"ratio_to_flat.{figure}"] = [one / other for one, other in pairs]
    return {**found, **more}


def _unit(name: str) -> str:
    if name.startswith("ratio"):
        return "x"
    if name.endswith("_ms"):
        return "ms"
    if ".connect_" in name:
        return "/s"
    return "MB/s" if name.endswith("download") else ""


def _round(way: Endpoints, pids: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for clients in CLIENTS:
        found[f"connect_{clients}"] = asyncio.run(_connections(way["http"], clients))
    found["request_ms"] = _request(way["http"])
    before = {whose: cpu_seconds(pid) for whose, pid in pids.items()}
    found["download"], size = _download(way["file"])
    for whose, pid in pids.items():
        spent = cpu_seconds(pid) - before[whose]
        found[f"{whose}{_CPU}"] = spent * 1000 / (size / 1e6)
    return found


async def _connections(at: tuple[str, int], clients: int) -> float:
    """Connections per second."""
    left = iter(range(max(CONNECTIONS, clients)))

    async def one() -> None:
        for _ in left:
            async with asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_connection(*at)
                writer.write(_HELLO)
                answer = b""
                while not answer.endswith(_ANSWER):
                    more = await reader.read(4096)
                    assert more, f"an incomplete response: {answer!r}"
                    answer += more
                writer.close()

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
    return max(CONNECTIONS, clients) / (time.monotonic() - began)


def _request(at: tuple[str, int]) -> float:
    with socket.create_connection(at, SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        for _ in range(REQUESTS):
            began = time.perf_counter()
            _exchange(sock)
            took.append((time.perf_counter() - began) * 1000)
        return statistics.median(took)


def _download(at: tuple[str, int]) -> tuple[float, int]:
    """Megabytes per second, and the number of bytes."""
    with socket.create_connection(at, SECONDS) as sock:
        began, got = time.monotonic(), 0
        sock.sendall(_BIG)
        while data := sock.recv(1 << 20):
            got += len(data)
        return got / 1e6 / (time.monotonic() - began), got


def _idle(at: tuple[str, int], count: int, pids: Mapping[str, int]) -> dict[str, float]:
    held = [socket.create_connection(at, SECONDS) for _ in range(10)]
    for sock in held:
        _exchange(sock)
    before = {whose: resident_bytes(pid) for whose, pid in pids.items()}
    try:
        for _ in range(count):
            held.append(socket.create_connection(at, SECONDS))
            _exchange(held[-1])
        return {whose: (resident_bytes(pid) - before[whose]) / count for whose, pid in pids.items()}
    finally:
        for sock in held:
            sock.close()


def _exchange(sock: socket.socket) -> None:
    """Sends one request on an open connection and reads the response."""
    sock.sendall(_HELLO)
    answer = b""
    while not answer.endswith(_ANSWER):
        more = sock.recv(4096)
        assert more, f"an incomplete response: {answer!r}"
        answer += more


@contextmanager
def joined(
    home: Cluster, remote: Cluster, log: Path, *more: str, before: str = _UNLIMITED
) -> Iterator[int]:
    """A bridge with these additional arguments, which runs ``before`` first; its process ID."""
    args = ("--name", NODE, "--home-name", NODE, "--port", "0", "--network", "relay")
    bridge = Bridge(home, remote, log, (*args, *more))
    bridge.use(bridge_program(REPOSITORY, before=before))
    bridge.start()
    assert bridge.process is not None
    try:
        yield bridge.process.pid
    finally:
        bridge.stop()
        leave = ("leave", NODE, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
        run_bridge(*leave, home=home).check_returncode()


@contextmanager
def _served(home: Cluster, remote: Cluster, size: int) -> Iterator[dict[str, Endpoints]]:
    """A remote pod, and the two paths to its ports."""
    with namespace(home):
        apply(home, SERVICE + server(NODE, size))
        found = wait_for(
            lambda: get(home, "endpointslices", namespace=NAMESPACE, selector=OURS),
            "an endpoint exists",
        )
        there = get_one(remote, "pod", "bench", namespace=f"{NAMESPACE}-{NODE}")
        yield {"relay": way(found[0]), "flat": flat(there["status"]["podIP"])}


@contextmanager
def namespace(home: Cluster) -> Iterator[None]:
    """The namespace of the benchmark."""
    home.kubectl("create", "namespace", NAMESPACE)
    try:
        yield
    finally:
        home.kubectl("delete", "namespace", NAMESPACE, timeout=120)
        gone = ("get", "pods", "-n", NAMESPACE, "-o", "name")
        wait_for(lambda: not home.kubectl(*gone).stdout, "the pods were deleted")


def server(node: str, size: int) -> str:
    """The server pod, on this node."""
    # The server listens only once the file is written.
    probe = {"tcpSocket": {"port": 9000}, "periodSeconds": 2}
    container = shell("main", _SCRIPT.format(size=size), readinessProbe=probe)
    return pod(node, "bench", {"labels": {"app": "bench"}}, containers=[container, _SERVER])


def apply(home: Cluster, manifest: str) -> None:
    """Applies the manifest and waits until its pods are Ready."""
    home.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=manifest)
    wait = ("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod", "--all")
    home.kubectl(*wait, "--timeout=60s")


def way(slice_: Json) -> Endpoints:
    """The addresses in an EndpointSlice."""
    (address,) = slice_["endpoints"][0]["addresses"]
    return {port["name"]: (str(address), int(port["port"])) for port in slice_["ports"]}


def flat(address: str) -> Endpoints:
    """The pod's own address."""
    return {"http": (address, 8080), "file": (address, 9000)}
