"""Determines whether this bridge reaches its remote, for the handover between replicas
(`bridge.election.elector`).

The remote is lost when a watch there has failed for `LOST_SECONDS`: longer than the restart of an
API server, and shorter than `bridge.node.node_controller.OUTAGE_SECONDS`, so that a handover
precedes a NotReady Node. The remote is reachable if it responds now, because a watch may not have
noticed an outage yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sync.cache.informer import Informer
from sync.kube.api_errors import KubeError
from sync.kube.client import KubeClient

log = logging.getLogger(__name__)

#: Seconds of failing watches after which the remote counts as lost.
LOST_SECONDS = 10.0
#: Timeout in seconds of the request that tests the remote before a handover.
ANSWER_SECONDS = 2.0


class RemoteReachability:
    """Whether this bridge reaches its remote, by the informers and a test request."""

    def __init__(self, remote: KubeClient, informers: Iterable[Informer]) -> None:
        self._remote = remote
        self._informers = [it for it in informers if it.client.side == "remote"]

    def is_lost(self) -> bool:
        """Whether a watch of the remote has failed for `LOST_SECONDS`."""
        now = asyncio.get_running_loop().time()
        return any(
            it.failing_since is not None and now - it.failing_since > LOST_SECONDS
            for it in self._informers
        )

    async def is_reachable(self) -> bool:
        """Whether the remote responds now. Raises no KubeError."""
        try:
            await self._remote.request("GET", "/version", timeout=ANSWER_SECONDS)
        except KubeError as error:
            log.info("this bridge does not reach the remote either: %s", error)
            return False
        return not self.is_lost()
