"""Asks the remote's kubelets, through its API server: ``nodes/NODE/proxy``.

Only nodes that run a pod of ours are asked, `PARALLEL` at a time. One that does not answer within
`NODE_SECONDS` costs the answer its own pods and nothing else; the whole is over after
`ALL_SECONDS`. Answers are read in a thread, one at a time: a full node has some thousand lines, and
threads share the interpreter, so that each more would hold up the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from bridge.kubelet.pod_directory import ScheduledPod
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.resources import NODES
from translators.identity import Origin
from translators.pod_metrics.exposition import RemotePodName

#: Who asks gives up after 10 s (metrics-server's --kubelet-request-timeout, Prometheus'
#: scrape_timeout): what some nodes have said must be there by then.
TOTAL_TIMEOUT = 8.0
NODE_TIMEOUT = 5.0
#: Half of the connections of a client (`sync.kube.transport.MAX_CONNECTIONS`): pods come first.
PARALLEL = 32

T = TypeVar("T")
#: Reads one kubelet's answer, in a thread; given the pods of ours on its node.
Reader = Callable[[bytes, Mapping[RemotePodName, Origin]], T]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrapeResult(Generic[T]):
    """What the kubelets that answered said."""

    parts: list[T]
    failed: int
    """How many kubelets did not answer."""


class KubeletScraper:
    """The kubelets of the remote that run pods of ours."""

    def __init__(self, remote: KubeClient) -> None:
        self._remote = remote
        self._silent: set[str] = set()

    async def scrape(
        self,
        path: str,
        pods: list[ScheduledPod],
        read: Reader[T],
        *,
        query: dict[str, str] | None = None,
    ) -> ScrapeResult[T]:
        """Asks each for ``path``, such as ``/metrics/resource``. An answer on which ``read``
        raises ValueError counts as none."""
        by_node: defaultdict[str, dict[RemotePodName, Origin]] = defaultdict(dict)
        for pod in pods:
            by_node[pod.node][RemotePodName(pod.namespace, pod.name)] = pod.home
        self._silent &= by_node.keys()
        turn, reading = asyncio.Semaphore(PARALLEL), asyncio.Lock()
        parts: list[T] = []

        async def one(node: str, ours: Mapping[RemotePodName, Origin]) -> None:
            where = NODES.path(node, subresource="proxy") + path
            async with turn:
                try:
                    body = await self._remote.read(where, query=query, timeout=NODE_TIMEOUT)
                    async with reading:
                        parts.append(await asyncio.to_thread(read, body, ours))
                except (KubeError, ValueError) as error:
                    self._fails(node, error)
                else:
                    self._silent.discard(node)

        try:
            async with asyncio.timeout(TOTAL_TIMEOUT), asyncio.TaskGroup() as group:
                for node, ours in by_node.items():
                    group.create_task(one(node, ours), name=f"scrape-{node}")
        except TimeoutError:
            log.debug("remote: kubelets were still silent after %.0f s", TOTAL_TIMEOUT)
        return ScrapeResult(parts, failed=len(by_node) - len(parts))

    def _fails(self, node: str, error: KubeError | ValueError) -> None:
        """Says so once; who asks, asks every few seconds."""
        level = logging.DEBUG if node in self._silent else logging.WARNING
        self._silent.add(node)
        log.log(level, "no metrics of the pods on the remote's node %s: %s", node, error)
