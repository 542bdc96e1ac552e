"""The virtual node's Lease, by which home's node controller knows that the node is alive.

- `NodeLease.run` renews the Lease every `RENEW_SECONDS`; a failed renewal is repeated at the next.
- The Node owns its Lease. A Lease that was deleted or replaced is created or taken over at the next
  renewal, also after `forget`.
- `release` clears the holder, so that `bridge leave` and the next join know that no bridge serves
  the node; home's node controller marks the node NotReady when the Lease expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sync.kube.api_errors import (
    AlreadyExists,
    Conflict,
    KubeError,
    NotFound,
    NotLeaderError,
    Unreachable,
)
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.kube.transport import JSON, MERGE_PATCH
from translators.object_accessors import Object, metadata, uid_of
from translators.timestamps import format_micro_time

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
#: A kubelet's Lease: 40 s, renewed every quarter of that (nodeLeaseDurationSeconds and
#: nodeLeaseRenewIntervalFraction in pkg/kubelet).
LEASE_SECONDS, RENEW_SECONDS = 40, 10.0
#: The part of the time of a request for a Lease that one attempt has. The rest is a margin, so that
#: the client notices a server that does not respond (`Transport.on_unanswered`).
ATTEMPT_PART = 0.9


async def request_lease(
    client: KubeClient,
    method: str,
    name: str,
    *,
    namespace: str,
    seconds: float,
    body: Object | None = None,
) -> Object:
    """Sends one request for a Lease; ``name`` is "" to create one.

    Ends within ``seconds``, even where the server asks to retry later. A PATCH is a merge patch.
    Raises KubeError: Unreachable at the timeout, MalformedResponse if the remote returns no Lease.
    """
    path = LEASES.path(name or None, namespace=namespace)
    try:
        async with asyncio.timeout(seconds):
            lease = await client.request(
                method,
                path,
                body=body,
                content_type=MERGE_PATCH if method == "PATCH" else JSON,
                timeout=ATTEMPT_PART * seconds,
            )
    except TimeoutError:
        raise Unreachable(
            f"no answer in {seconds:.0f} s", side=client.side, what=f"{method} {path}"
        ) from None
    return client.checked(LEASES, lease, f"{method} {path}")


@dataclass
class LeaseAnnotation:
    """A line on the Lease by which one bridge passes state to the next that serves the node.

    A changed line is sent with the next renewal or the release, so it costs no request. After a
    crash it is at most one renewal old. ``write`` returns the line, "" for none; ``read`` is called
    once, with the line of the previous bridge, when this bridge first has the Lease.
    """

    key: str
    write: Callable[[], str]
    read: Callable[[str], None]
    _written: str = field(default="", init=False)
    _loaded: bool = field(default=False, init=False)

    def load(self, lease: Object) -> None:
        """Reads the line of a Lease that this bridge has just created or taken over."""
        if not self._loaded:
            self._loaded = True
            self.read(str((metadata(lease).get("annotations") or {}).get(self.key) or ""))
        self._written = ""  # A Lease that was created again lacks the line.

    def pending(self) -> dict[str, str]:
        """The annotation for the next patch of the Lease; {} if the Lease has it already."""
        line = self.write() if self._loaded else ""
        if line == self._written:
            return {}
        self._written = line
        return {self.key: line}


class NodeLease:
    """The Lease of the Node ``name``. ``node`` returns its owner, the Node as last seen, or None;
    ``annotation`` is written with renewals."""

    def __init__(
        self,
        home: KubeClient,
        name: str,
        *,
        node: Callable[[], Object | None],
        annotation: LeaseAnnotation | None = None,
    ) -> None:
        self._home = home
        self._name = name
        self._node = node
        self._annotation = annotation
        # UID of the Lease while this bridge holds it.
        self._uid = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.renew()
            except NotLeaderError as error:
                log.debug("the node's Lease is not ours to renew: %s", error)
            except KubeError as error:
                log.warning("the node's Lease could not be renewed: %s", error)

    def forget(self) -> None:
        """Stops treating the Lease as held, without a request; the next renewal takes it over."""
        self._uid = ""

    async def release(self) -> None:
        """Clears the holder of a held Lease. Best effort: the Lease expires anyway."""
        if not self._uid:
            return  # Another process may serve the node.
        try:
            await self._patch({"holderIdentity": None})
        except KubeError as error:
            log.info("the node's Lease was not released: %s", error)

    async def renew(self) -> None:
        """Renews the Lease, or takes it over. Raises KubeError."""
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
        await self._take_over(spec)

    async def _patch(self, spec: Object) -> None:
        meta: Object = {"uid": self._uid}
        if self._annotation is not None and (annotations := self._annotation.pending()):
            meta["annotations"] = annotations
        body = {"metadata": meta, "spec": spec}
        await self._home.patch(LEASES, self._name, body, namespace=LEASE_NAMESPACE)

    async def _take_over(self, spec: Object) -> None:
        """Creates the Lease, or patches the existing one, with the Node as its owner."""
        node = self._node()
        meta: Object = {"name": self._name, "namespace": LEASE_NAMESPACE}
        if node is not None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid_of(node)}
            meta["ownerReferences"] = [owner]
        body = LEASES.manifest(meta, spec=spec)
        try:
            lease = await self._home.create(LEASES, body, namespace=LEASE_NAMESPACE)
        except AlreadyExists:
            patch: Object = {"spec": spec}
            if "ownerReferences" in meta:
                patch["metadata"] = {"ownerReferences": meta["ownerReferences"]}
            lease = await self._home.patch(LEASES, self._name, patch, namespace=LEASE_NAMESPACE)
        self._uid = uid_of(lease)
        if self._annotation is not None:
            self._annotation.load(lease)
