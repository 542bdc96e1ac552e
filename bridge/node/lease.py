"""The virtual node's Lease: it says that somebody serves the node.

- It is renewed every `RENEW_SECONDS` by `run`; a renewal that fails is tried again at the next.
- It is owned by the Node, and goes with it. One that was deleted, or has another UID, is made or
  taken anew at the next renewal; `drop` says that it is not ours any more.
- `release` empties its holder, so that `bridge leave` and the next join know that nobody serves
  the node; home calls the node NotReady when the Lease expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from bridge.node.lease_annotation import Note
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, NotLeaderError
from sync.kube.resources import LEASES
from translators.objects import Object, uid_of
from translators.timestamps import format_micro_time

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
#: A kubelet's Lease: 40 s, renewed every quarter of that (nodeLeaseDurationSeconds and
#: nodeLeaseRenewIntervalFraction in pkg/kubelet).
LEASE_SECONDS, RENEW_SECONDS = 40, 10.0


class NodeLease:
    """The Lease of the Node ``name``. ``node`` gives the Node as it is, its owner, or None.
    ``note`` is what rides along with renewals."""

    def __init__(
        self,
        home: KubeClient,
        name: str,
        *,
        node: Callable[[], Object | None],
        note: Note | None = None,
    ) -> None:
        self._home = home
        self._name = name
        self._node = node
        self._note = note
        self._uid = ""

    async def run(self) -> None:
        """Renews it until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.renew()
            except NotLeaderError as error:
                log.debug("the node's Lease is not ours to renew: %s", error)
            except KubeError as error:
                log.warning("the node's Lease could not be renewed: %s", error)

    def drop(self) -> None:
        """It is not ours, or its owner has changed: nothing is done to it, and the next renewal
        takes it anew."""
        self._uid = ""

    async def release(self) -> None:
        """Gives it back. Best effort: an expired one says the same a little later."""
        if not self._uid:
            return  # It is not ours; another process may serve the node.
        try:
            await self._patch({"holderIdentity": None})
        except KubeError as error:
            log.info("the node's Lease was not released: %s", error)

    async def renew(self) -> None:
        """Renews it now, or takes it. Raises KubeError."""
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format_micro_time(datetime.now(UTC)),
        }
        if self._uid:
            try:
                await self._patch(spec)
            except (NotFound, Conflict):
                self._uid = ""
            else:
                return
        await self._take(spec)

    async def _patch(self, spec: Object) -> None:
        """Changes it, as long as it is ours."""
        meta: Object = {"uid": self._uid}
        if self._note is not None and (annotations := self._note.annotations()):
            meta["annotations"] = annotations
        body = {"metadata": meta, "spec": spec}
        await self._home.patch(LEASES, self._name, body, namespace=LEASE_NAMESPACE)

    async def _take(self, spec: Object) -> None:
        """Makes it, or takes over the one that is there, with the Node as its owner."""
        node = self._node()
        meta: Object = {"name": self._name, "namespace": LEASE_NAMESPACE}
        if node is not None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid_of(node)}
            meta["ownerReferences"] = [owner]
        body: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": spec,
        }
        try:
            lease = await self._home.create(LEASES, body, namespace=LEASE_NAMESPACE)
        except AlreadyExists:
            patch: Object = {"spec": spec}
            if "ownerReferences" in meta:
                patch["metadata"] = {"ownerReferences": meta["ownerReferences"]}
            lease = await self._home.patch(LEASES, self._name, patch, namespace=LEASE_NAMESPACE)
        self._uid = uid_of(lease)
        if self._note is not None:
            self._note.begin(lease)
