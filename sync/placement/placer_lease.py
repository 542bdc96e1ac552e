"""The Lease by which one of several placers works, and bridges see whether any does.

As in client-go, clocks are never compared: a candidate takes the Lease over when it has not seen it
change for `LEASE_SECONDS`, by its own clock, on condition of the observed resource version. The
placer's writes have preconditions of their own (`sync.placement.placer`), so that a holder that
does not know yet that it lost the Lease does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import NoReturn

from sync.base.resource_version import version_of
from sync.kube.api_errors import AlreadyExists, Conflict, KubeError, NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.kube.request_limiter import urgent
from translators.fit import published_room
from translators.object_accessors import Object
from translators.timestamps import format_micro_time

log = logging.getLogger(__name__)

NAME, NAMESPACE = "placement", published_room.NAMESPACE
#: Seconds: the duration of the Lease, and between two renewals or looks at it.
LEASE_SECONDS, RENEW_SECONDS = 15, 4.0


class PlacerLeaseLost(Exception):
    """Another placer holds the Lease."""


class PlacerLease:
    """One candidate; ``identity`` is unique to the process."""

    def __init__(self, home: KubeClient, identity: str) -> None:
        self._home = home
        self._identity = identity
        self._version = ""
        self.is_held = False
        self.last_contact: float | None = None
        """When the Lease was last read or written (the loop's time); None: not yet."""

    async def acquire(self) -> None:
        """Waits until this candidate holds the Lease."""
        seen, since = "", 0.0
        while True:
            now = asyncio.get_running_loop().time()
            try:
                with urgent():
                    lease = await self._home.find(LEASES, NAME, namespace=NAMESPACE)
                    self.last_contact = now
                    if lease is not None and version_of(lease) != seen:
                        seen, since = version_of(lease), now
                    spec = (lease or {}).get("spec") or {}
                    holder = spec.get("holderIdentity") or ""
                    expired = now - since >= float(spec.get("leaseDurationSeconds") or 0)
                    if not holder or holder == self._identity or expired:
                        self._version = await self._take(lease)
                        self.is_held = True
                        return
            except (Conflict, AlreadyExists):
                continue
            except KubeError as error:
                log.warning("home: cannot read or write the placer's Lease: %s", error)
            await asyncio.sleep(RENEW_SECONDS / 2)

    async def renew_until_lost(self) -> NoReturn:
        """Renews the Lease. Raises PlacerLeaseLost."""
        renewed = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            started = asyncio.get_running_loop().time()
            try:
                with urgent():
                    self._version = await self._patch({"renewTime": _now()})
                renewed = self.last_contact = started
            except (Conflict, NotFound):
                await self._look()
            except KubeError as error:
                log.warning("home: cannot renew the placer's Lease: %s", error)
                if started - renewed >= LEASE_SECONDS:
                    self.is_held = False
                    raise PlacerLeaseLost("the Lease could not be renewed") from error

    async def release(self) -> None:
        """Clears the holder, so that the next candidate takes over at once. Raises KubeError."""
        if self.is_held:
            self.is_held = False
            await self._patch({"holderIdentity": ""})

    async def _look(self) -> None:
        """After a conflict: goes on if the Lease is still this candidate's."""
        lease = await self._home.find(LEASES, NAME, namespace=NAMESPACE)
        self.last_contact = asyncio.get_running_loop().time()
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            self._version = await self._take(lease)
            return
        self.is_held = False
        raise PlacerLeaseLost("another placer holds the Lease")

    async def _take(self, lease: Object | None) -> str:
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": _now(),
            "renewTime": _now(),
        }
        if lease is None:
            body = LEASES.manifest({"name": NAME, "namespace": NAMESPACE}, spec=spec)
            return version_of(await self._home.create(LEASES, body, namespace=NAMESPACE))
        self._version = version_of(lease)
        return await self._patch(spec)

    async def _patch(self, spec: Object) -> str:
        patch = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return version_of(await self._home.patch(LEASES, NAME, patch, namespace=NAMESPACE))


def _now() -> str:
    return format_micro_time(datetime.now(UTC))
