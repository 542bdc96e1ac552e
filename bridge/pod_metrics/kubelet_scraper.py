"""Queries the remote's kubelets through its API server (``nodes/NODE/proxy``).

Only nodes that run a pod of this virtual node are queried, `PARALLEL` at a time. A kubelet that
does not answer within `NODE_TIMEOUT` costs its own pods' samples only; the whole scrape ends after
`TOTAL_TIMEOUT`. Responses are parsed in a thread, one at a time: a full node has some thousand
lines, and since threads share the interpreter, more of them would delay the event loop. One over 64
KiB is in memory until it is parsed; further ones wait. The parsed responses of all scrapes are
bounded (`kept_limit`), until `KEPT_SECONDS` after each; a node beyond that counts as one that does
not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from bridge.kubelet.pod_lookup import ScheduledPod
from sync.base.memory_limit import memory_share
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.response_limits import LargeBodyTurn
from translators.ownership_labels import Origin
from translators.pod_metrics.exposition import RemotePodName

#: Clients give up after 10 s (metrics-server's --kubelet-request-timeout, Prometheus'
#: scrape_timeout); the answers of the other nodes must arrive before that.
TOTAL_TIMEOUT = 8.0
NODE_TIMEOUT = 5.0
#: Half of a client's connections (`sync.kube.transport.MAX_CONNECTIONS`): pods have priority.
PARALLEL = 32
#: Seconds for which the parsed responses of a scrape, or what is made of them, stay in memory.
KEPT_SECONDS = 4.0

T = TypeVar("T")
#: Parses one kubelet's response, in a thread, given this virtual node's pods on its node. Returns
#: the result and how many bytes it has in memory.
Reader = Callable[[bytes, Mapping[RemotePodName, Origin]], tuple[T, int]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrapeResult(Generic[T]):
    """The parsed responses."""

    parts: list[T]
    failed: int
    """The number of kubelets that did not answer."""


def kept_limit() -> int:
    """Bytes of the parsed responses: 23 MiB of a process with 1 GiB. The samples of a pod in
    /metrics/resource need some 1.3 KiB, its statistics in /stats/summary ten times as much."""
    return memory_share(2)


class KubeletScraper:
    """Queries the kubelets of nodes that run pods of this virtual node."""

    def __init__(self, remote: KubeClient) -> None:
        self._remote = remote
        self._silent: set[str] = set()
        self._large_responses = asyncio.Semaphore(1)
        self._kept = 0

    async def scrape(
        self,
        path: str,
        pods: list[ScheduledPod],
        read: Reader[T],
        *,
        query: dict[str, str] | None = None,
    ) -> ScrapeResult[T]:
        """Queries each kubelet for ``path``, such as ``/metrics/resource``. A response on which
        ``read`` raises ValueError counts as no answer."""
        by_node: defaultdict[str, dict[RemotePodName, Origin]] = defaultdict(dict)
        for pod in pods:
            by_node[pod.node][RemotePodName(pod.namespace, pod.name)] = pod.home
        self._silent &= by_node.keys()
        turn, reading = asyncio.Semaphore(PARALLEL), asyncio.Lock()
        parts: list[T] = []
        sizes: list[int] = []

        async def scrape_node(node: str, ours: Mapping[RemotePodName, Origin]) -> None:
            where = NODES.path(node, subresource="proxy") + path
            large = LargeBodyTurn(self._large_responses, "body")
            async with turn:
                try:
                    body = await self._remote.read(
                        where, query=query, timeout=NODE_TIMEOUT, turn=large
                    )
                    async with reading:
                        part, size = await asyncio.to_thread(read, body, ours)
                    self._keep(size)
                    sizes.append(size)
                    parts.append(part)
                except (KubeError, ValueError) as error:
                    self._log_failure(node, error)
                else:
                    self._silent.discard(node)
                finally:
                    large.release()

        try:
            async with asyncio.timeout(TOTAL_TIMEOUT), asyncio.TaskGroup() as group:
                for node, ours in by_node.items():
                    group.create_task(scrape_node(node, ours), name=f"scrape-{node}")
        except TimeoutError:
            log.debug("remote: some kubelets have not answered within %.0f s", TOTAL_TIMEOUT)
        finally:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, sum(sizes))
        return ScrapeResult(parts, failed=len(by_node) - len(parts))

    def _keep(self, size: int) -> None:
        if self._kept + size > kept_limit():
            raise ValueError(f"the metrics of all pods exceed {kept_limit()} bytes")
        self._kept += size

    def _forget(self, size: int) -> None:
        self._kept -= size

    def _log_failure(self, node: str, error: KubeError | ValueError) -> None:
        """Logs a failure once per node: clients scrape every few seconds."""
        level = logging.DEBUG if node in self._silent else logging.WARNING
        self._silent.add(node)
        log.log(level, "cannot get metrics of the pods on the remote's node %s: %s", node, error)
