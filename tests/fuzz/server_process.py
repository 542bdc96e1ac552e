"""The process under test: every listener of the bridge that accepts HTTP, on free ports.

Started with the addresses of two fake clusters, it prints one line of JSON with the ports, and one
with its state for each line of its standard input. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge.app import probe_server
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.base.event_loop import CancelSafeLoop
from bridge.certificates.tls_key_pair import read_files, server_context
from bridge.dashboard.loopback_server import loopback_server
from bridge.kubelet.server import KubeletServer
from bridge.net import accepted_connections
from bridge.offload.webhook_server import AdmissionServer
from sync.kube.client import KubeClient
from sync.kube.kubeconfig import KubeconfigRef
from tests.bridge.kubelet.fake_api_servers import FakePodDirectory, access_for
from tests.bridge.kubelet.pki import client_context

#: Seconds that a connection may wait: less than in production, so that a run meets the limit.
WAITING_SECONDS = 3.0
#: Errors that are reported with the state.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class State:
    """Memory, descriptors and tasks of the process."""

    resident: int
    """Bytes of resident memory."""
    peak: int
    """The most bytes of resident memory so far."""
    descriptors: int
    """Open files and sockets, without the pooled connections to home's API server."""
    tasks: int
    errors: list[str]
    """Log records at level ERROR or with a traceback, so far."""


class ErrorRecorder(logging.Handler):
    """Keeps errors and tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (record.levelno >= logging.ERROR or record.exc_info) and len(self.errors) < MAX_ERRORS:
            self.errors.append(logging.Formatter().format(record))


def read_state(errors: list[str], pooled: set[int]) -> State:
    """``pooled`` are the ports of home's API servers."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    resident, peak = (int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    numbers = [int(it.name) for it in Path("/proc/self/fd").iterdir()]
    descriptors = sum(_peer_port(it) not in pooled for it in numbers)
    return State(resident, peak, descriptors, len(asyncio.all_tasks()), errors)


def _peer_port(descriptor: int) -> int:
    """The port at the other end of a TCP connection; 0 for other descriptors."""
    try:
        if not Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            peer = sock.getpeername()
    except OSError:  # closed, or not connected
        return 0
    return int(peer[1]) if isinstance(peer, tuple) else 0


async def _serve(home: str, reviews: str, remote: str, folder: Path) -> None:
    recorder = ErrorRecorder()
    logging.getLogger().addHandler(recorder)
    accepted_connections.WAITING_TIMEOUT = probe_server.CONNECTION_TIMEOUT = WAITING_SECONDS
    pair = read_files(folder / "node.crt", folder / "node.key")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(access_for(home, "home")))
        reviewing = await stack.enter_async_context(KubeClient(access_for(reviews, "home")))
        kubelet = KubeletServer(
            home=reviewing,
            remote=await stack.enter_async_context(
                KubeClient(access_for(remote, "remote", client_context(folder)))
            ),
            directory=FakePodDirectory(),
            node_name="virtual",
            certificate=pair,
            client_ca=(folder / "ca.crt").read_text(),
        )
        await kubelet.start("127.0.0.1", 0)
        stack.push_async_callback(kubelet.stop, 1.0)
        webhook = AdmissionServer(client)
        stack.push_async_callback(webhook.stop)
        informer = asyncio.create_task(webhook.namespaces.run(), name="namespaces")
        stack.callback(informer.cancel)
        await webhook.namespaces.synced.wait()
        health = ProbeHandler()
        health.caches_problem = str
        probe_port = _free_port()
        await stack.enter_async_context(serve_probes(health, "127.0.0.1", probe_port))
        ports = {
            "kubelet": kubelet.port,
            "webhook": await webhook.start("127.0.0.1", 0, server_context(pair, client_ca="")),
            "probe": probe_port,
        }
        url = await stack.enter_async_context(
            loopback_server(client, "virtual", ref=KubeconfigRef())
        )
        _print({"ports": ports, "dashboard": url})
        pooled = {urlsplit(it).port or 0 for it in (home, reviews)}
        async for _ in await _standard_input():
            _print(asdict(read_state(recorder.errors, pooled)))


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    home, reviews, remote, folder = sys.argv[1:]
    with asyncio.Runner(loop_factory=CancelSafeLoop) as runner:
        runner.run(_serve(home, reviews, remote, Path(folder)))
