"""A bridge's way to its remote, as an election asks for it: a bridge that has lost it gives its
lease to one that has not (`bridge.election.elector`).

Lost is what is watched there and could not be for `LOST_SECONDS`: longer than an API server takes
to restart, and less than what makes the Node not Ready, so that a takeover comes first. There is
what answers now: a watch may not have noticed yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError

log = logging.getLogger(__name__)

#: Seconds; see the module, and `bridge.node.controller.OUTAGE_SECONDS`.
LOST_SECONDS = 10.0
#: Seconds for the remote's answer to a bridge that would take over.
ANSWER_SECONDS = 2.0


class RemoteReachability(Protocol):
    """To the remote."""

    def is_lost(self) -> bool:
        """Whether what is watched there cannot be watched, and has not been for a while."""

    async def is_reachable(self) -> bool:
        """Whether it answers, now."""


class InformerReachability:
    """The way of a bridge whose informers of the remote these are."""

    def __init__(self, remote: KubeClient, informers: Iterable[Informer]) -> None:
        self._remote = remote
        self._informers = [it for it in informers if it.client.side == "remote"]

    def is_lost(self) -> bool:
        """See `Way`."""
        now = asyncio.get_running_loop().time()
        return any(
            it.failing_since is not None and now - it.failing_since > LOST_SECONDS
            for it in self._informers
        )

    async def is_reachable(self) -> bool:
        """See `Way`. Raises nothing of the remote's."""
        try:
            await self._remote.request("GET", "/version", timeout=ANSWER_SECONDS)
        except KubeError as error:
            log.info("the remote does not answer this bridge either: %s", error)
            return False
        return not self.is_lost()
