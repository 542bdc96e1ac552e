"""Memory for each open watch of a single object: on a connection of its own (HTTP/1.1), and on a
connection that a hundred share (HTTP/2).

The bridge opens such a watch for each ConfigMap and Secret that its pods refer to. The watches of
each way are opened by a new process with the bridge's client and event loop, and idle then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context

import uvloop

from e2e.bench.pods.process_usage import resident_bytes
from e2e.bench.report import Report
from e2e.clusters.cluster import Cluster
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Every namespace has this ConfigMap.
_PATH = CONFIG_MAPS.path(namespace="default")
_QUERY = {"watch": "true", "fieldSelector": "metadata.name=kube-root-ca.crt"}


def run(home: Cluster, say: Callable[[str], None], *, watches: int, rounds: int) -> Report:
    """Measures both ways in turn, in each round."""
    report = Report("watches", {"watches": watches, "rounds": rounds})
    found: dict[str, list[float]] = {"own": [], "shared": []}
    ref = KubeconfigRef(home.kubeconfig)
    for number in range(rounds):
        for way, figures in found.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                opening = process.submit(_open, ref, watches, shared=way == "shared")
                figures.append(opening.result() / watches / 1024)
        latest = {way: f"{figures[-1]:.1f} KiB" for way, figures in found.items()}
        say(f"round {number + 1}: {latest}")
    for way, figures in found.items():
        report.add(f"{way}.watch_kib", "KiB", figures)
    return report


def _open(ref: KubeconfigRef, watches: int, *, shared: bool) -> int:
    """Bytes by which this process has grown with the watches."""
    return uvloop.run(_opened(ref, watches, shared=shared))


async def _opened(ref: KubeconfigRef, watches: int, *, shared: bool) -> int:
    client = KubeClient(await load(ref, side="home"))
    async with client, AsyncExitStack() as stack:
        open_watch = client.shared_stream if shared else client.stream
        await stack.enter_async_context(open_watch(_PATH, query=_QUERY))
        before = resident_bytes(os.getpid())
        for _ in range(watches):
            await stack.enter_async_context(open_watch(_PATH, query=_QUERY))
        await asyncio.sleep(1)
        return resident_bytes(os.getpid()) - before
