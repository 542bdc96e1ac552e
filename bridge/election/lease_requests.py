"""Requests for the election's Lease, and its watch.

The timeout of a request is twice what the last one took: a lost request leaves time for another
before the Lease expires, and a slow home has enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.election import election_lease
from bridge.election.election_lease import ElectionRecord
from bridge.node import lease_namespace
from bridge.node.node_lease import request_lease
from sync.base.background_task import background_task
from sync.cache.informer import Informer
from sync.kube.api_errors import NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from translators.object_accessors import Object

#: The least and the greatest timeout of a request, in seconds.
REQUEST_SECONDS, MAX_REQUEST_SECONDS = 1.0, 10.0


class ElectionLeaseRequests:
    """Reads and writes the Lease of one node's election. All methods raise KubeError."""

    def __init__(self, home: KubeClient, node: str, *, clock: Callable[[], float]) -> None:
        self._home = home
        self._name = election_lease.election_lease_name(node)
        self._clock = clock
        # Timeout of the next request.
        self._seconds = REQUEST_SECONDS

    def be_patient(self) -> None:
        """Gives the next request the greatest timeout: nothing expires meanwhile."""
        self._seconds = MAX_REQUEST_SECONDS

    async def get(self) -> ElectionRecord | None:
        """The Lease; None if there is none."""
        try:
            return election_lease.parse_lease(await self._request("GET", self._name))
        except NotFound:
            return None

    async def create(self, body: Object) -> ElectionRecord:
        """Creates the Lease, and home's namespace for it (`bridge.node.lease_namespace`)."""
        named = {**body, "metadata": {**body["metadata"], "name": self._name}}
        created = await lease_namespace.create_with_namespace(
            self._home, lambda: self._request("POST", "", named)
        )
        return election_lease.parse_lease(created)

    async def patch(self, body: Object) -> ElectionRecord:
        return election_lease.parse_lease(await self._request("PATCH", self._name, body))

    @asynccontextmanager
    async def watch(
        self, observe: Callable[[ElectionRecord | None], None]
    ) -> AsyncIterator[asyncio.Event]:
        """Calls ``observe`` and sets the event at each change of the Lease while the block runs."""
        changed = asyncio.Event()
        leases = Informer(
            self._home,
            LEASES,
            namespace=lease_namespace.NAMESPACE,
            fields=f"metadata.name={self._name}",
        )

        def on_change(_: Object | None, new: Object | None) -> None:
            observe(election_lease.parse_lease(new) if new is not None else None)
            changed.set()

        leases.on_change(on_change)
        async with background_task(leases.run(), name="watch-home-lease"):
            yield changed

    async def _request(self, method: str, name: str, body: Object | None = None) -> Object:
        began = self._clock()
        try:
            return await request_lease(
                self._home,
                method,
                name,
                namespace=lease_namespace.NAMESPACE,
                seconds=self._seconds,
                body=body,
            )
        finally:
            took = self._clock() - began
            self._seconds = min(max(2 * took, REQUEST_SECONDS), MAX_REQUEST_SECONDS)
