"""Asks the remote's metrics API (``metrics.k8s.io``), where its kubelets may not be asked.

One request tells of all pods of this home. Those who ask at the same time, or for another path a
moment later, share it: what is counted is counted once. It is read in a thread.
"""

from __future__ import annotations

import asyncio
import logging

from bridge.kubelet.pod_directory import PodDirectory
from bridge.net.single_flight import SingleFlightCache
from bridge.pod_metrics.kubelets import ALL_SECONDS
from bridge.pod_metrics.rate_counters import Counters, Pod
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.resources import POD_METRICS
from translators.identity import Identity
from translators.pod_metrics.exposition import RemotePodName

#: Seconds that an answer serves for all paths.
REMEMBERED = 1.0

log = logging.getLogger(__name__)


class MetricsApi:
    """The metrics API of the remote. Call `close` at the end."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, identity: Identity) -> None:
        self._remote = remote
        self._directory = directory
        self._identity = identity
        self._counters = Counters()
        self._answers: SingleFlightCache[str, list[Pod] | None] = SingleFlightCache(
            lambda _: REMEMBERED
        )

    async def close(self) -> None:
        """Ends the question that is under way."""
        await self._answers.close()

    async def ask(self) -> list[Pod] | None:
        """What our pods use; None where it does not answer in time."""
        return await self._answers.get("", self._ask)

    async def _ask(self) -> list[Pod] | None:
        query = {"labelSelector": self._identity.home_selector}
        try:
            async with asyncio.timeout(ALL_SECONDS):
                answer = await self._remote.request("GET", POD_METRICS.path(), query=query)
        except (KubeError, TimeoutError) as error:
            log.debug("the remote's metrics API does not answer: %s", error)
            return None
        items = answer.get("items") or []
        pods = {
            RemotePodName(it.namespace, it.name): it.home for it in self._directory.scheduled_pods()
        }
        return await asyncio.to_thread(self._counters.count, items, pods)
