"""The process under test: every listener of the bridge that accepts HTTP, on free ports.

Started with the addresses of two fake clusters, it prints one line of JSON with the ports, and one
with its state for each line of its standard input. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from bridge.app import probe_server
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.certificates.tls_key_pair import read_files, server_context
from bridge.dashboard.loopback_server import loopback_server
from bridge.kubelet.server import KubeletServer
from bridge.net import accepted_connections
from bridge.offload.webhook_server import AdmissionServer
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.kubelet.fake_api_servers import FakePodDirectory, access_for
from tests.bridge.kubelet.pki import client_context
from tests.fuzz.process_state import MEASURED, ProcessState, print_line, run, standard_input

#: Seconds that a connection may wait: less than in production, so that a run meets the limit.
WAITING_SECONDS = 3.0


async def _serve(home: str, reviews: str, remote: str, folder: Path, *, measured: bool) -> None:
    pooled = {urlsplit(url).port or 0 for url in (home, reviews)}
    state = ProcessState(pooled, measured=measured)
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
        print_line({"ports": ports, "dashboard": url})
        async for _ in await standard_input():
            print_line(asdict(state.read()))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    home, reviews, remote, folder, measured = sys.argv[1:]
    run(
        _serve(home, reviews, remote, Path(folder), measured=measured == MEASURED),
        measured=measured == MEASURED,
    )
