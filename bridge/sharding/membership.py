"""Keeps the record of this replica on home's Lease of shards, and follows those of the others.

- The record is renewed every `RENEW_SECONDS`, and written within `TICK_SECONDS` of a change.
- Without home, this replica keeps what it knew (`Membership.members`); the others count it as gone
  after `LEASE_SECONDS`. When home is back, the others have that time again, and what this replica
  failed to do meanwhile may have been home's fault (``on_return``).
- Where the credential has no permission for the Lease, this replica has no others: it serves or
  stands by for every remote, as without shards.
- `withdraw` removes the record, so that the others take over while this replica still stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import NoReturn

from bridge.base.command_error import BridgeError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import connect
from bridge.node import lease_namespace
from bridge.node.node_lease import request_lease
from bridge.sharding import membership_record
from bridge.sharding.membership_record import Member, Observer
from sync.base.background_task import background_task
from sync.cache.informer import Informer
from sync.kube.api_errors import Forbidden, KubeError, NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.leader_write_fence import clock
from sync.kube.request_limiter import urgent
from translators.object_accessors import Object

log = logging.getLogger(__name__)

#: Seconds between two looks at what this replica serves.
TICK_SECONDS = 0.5
#: Timeout of a request.
REQUEST_SECONDS = 2.0
#: Seconds until home is tried again that did not answer, or has no permission for this replica.
RETRY_SECONDS, FORBIDDEN_SECONDS = 1.0, 60.0
#: Seconds that a replica of an unknown state has for its next renewal, when this one starts.
SETTLE_SECONDS = 1.5 * membership_record.RENEW_SECONDS
#: Seconds after which this replica starts all remotes, if home has not answered.
START_SECONDS = 5.0
#: Seconds after which the record of a replica that has crashed is removed.
REMOVE_SECONDS = 600.0


class Membership:
    """The replicas that share remotes of one home. `run` is a task of the caller."""

    def __init__(
        self,
        home: KubeconfigRef,
        own: str,
        describe: Callable[[], Member],
        *,
        notify: Callable[[str], None],
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self._home = home
        self._own = own
        self._describe = describe
        self._notify = notify
        self._on_change = on_change
        self._on_return = on_return
        self._clock = clock
        self._others = Observer(own)
        # The record as it was last written, without its renewal.
        self._written: Member | None = None
        self._renewal = 0
        # When the last successful renewal was started, and when its response arrived.
        self._renewed_at = self._heard_at = -math.inf
        self._began = clock()
        self._settles_at = math.inf
        self._known: Mapping[str, Member] = {}
        self._is_forbidden = False
        self._is_withdrawn = False
        self._client: KubeClient | None = None

    @property
    def is_settled(self) -> bool:
        """Whether `members` is good enough to start remotes."""
        now = self._clock()
        is_late = self._settles_at == math.inf and now > self._began + START_SECONDS
        return self._is_forbidden or is_late or now >= self._settles_at

    def members(self) -> Mapping[str, Member]:
        """The live replicas by id, this one included; without home those last known."""
        now = self._clock()
        # While home does not answer, no renewal of the others arrives, and they are not gone.
        is_current = now - self._heard_at <= membership_record.RENEW_SECONDS
        if is_current and not self._is_forbidden:
            self._known = self._others.live(now=now)
        return {**self._known, self._own: self._describe()}

    async def run(self) -> NoReturn:
        """Renews and follows until cancelled."""
        while True:
            try:
                async with connect(self._home, side="home", notify=_ignore) as client:
                    self._client = client
                    with urgent():
                        async with background_task(self._watcher(client).run(), name="shards"):
                            await self._renew_until_forbidden(client)
            except (BridgeError, KubeError) as error:
                log.info("the Lease of shards is not reachable: %s", error)
            finally:
                self._client = None
            await asyncio.sleep(FORBIDDEN_SECONDS if self._is_forbidden else RETRY_SECONDS)

    async def withdraw(self) -> None:
        """Removes the record. Best effort: it expires anyway."""
        self._is_withdrawn = True
        if self._client is None or self._written is None:
            return
        try:
            with urgent():
                await self._patch(self._client, {self._own: None})
        except KubeError as error:
            log.info("the record of this replica was not removed: %s", error)

    def _watcher(self, client: KubeClient) -> Informer:
        watcher = Informer(
            client,
            LEASES,
            namespace=lease_namespace.NAMESPACE,
            fields=f"metadata.name={membership_record.NAME}",
            quiet=(Forbidden,),
        )
        watcher.on_change(lambda _, new: self._observe(new))
        return watcher

    def _observe(self, lease: Object | None) -> None:
        self._others.observe(lease, now=self._clock())
        if lease is None:
            self._written = None
        self._on_change()

    async def _renew_until_forbidden(self, client: KubeClient) -> None:
        while not self._is_withdrawn:
            try:
                await self._renew(client)
            except Forbidden as error:
                self._report_forbidden(error)
                return
            except KubeError as error:
                log.info("the record of this replica was not renewed: %s", error)
            await asyncio.sleep(TICK_SECONDS)

    async def _renew(self, client: KubeClient) -> None:
        """Writes the record if it has changed or is due. Raises KubeError."""
        now, member = self._clock(), self._describe()
        if member == self._written and now < self._renewed_at + membership_record.RENEW_SECONDS:
            return
        self._renewal += 1
        text = membership_record.record_text(member, renewal=self._renewal)
        try:
            lease = await self._patch(client, {self._own: text})
        except NotFound:
            lease = await self._create(client, {self._own: text})
        if now - self._renewed_at > membership_record.RENEW_DEADLINE:
            self._others.forgive(now=self._clock())
            self._on_return()
        self._is_forbidden, self._written = False, member
        self._renewed_at, self._heard_at = now, self._clock()
        self._others.observe(lease, now=self._heard_at)
        if self._settles_at == math.inf:
            has_others = self._others.is_aware
            self._settles_at = self._clock() + (SETTLE_SECONDS if has_others else 0)
        if gone := self._others.gone(now=self._clock(), seconds=REMOVE_SECONDS):
            await self._patch(client, dict.fromkeys(gone))
        self._on_change()

    def _report_forbidden(self, error: Forbidden) -> None:
        if not self._is_forbidden:
            self._notify(
                Caveat(
                    f"home: replicas do not share the remotes: {error}; each replica serves or "
                    "stands by for all of them. `bridge rbac home` prints the permission, and "
                    "--shard off ends this message"
                )
            )
        self._is_forbidden, self._known = True, {}
        self._on_change()

    async def _patch(self, client: KubeClient, records: Mapping[str, str | None]) -> Object:
        return await self._request(
            client, "PATCH", membership_record.NAME, membership_record.patch(records)
        )

    async def _create(self, client: KubeClient, records: Mapping[str, str]) -> Object:
        body = membership_record.new_lease(records)
        return await lease_namespace.create_with_namespace(
            client, lambda: self._request(client, "POST", "", body)
        )

    async def _request(self, client: KubeClient, method: str, name: str, body: Object) -> Object:
        return await request_lease(
            client,
            method,
            name,
            namespace=lease_namespace.NAMESPACE,
            seconds=REQUEST_SECONDS,
            body=body,
        )


def _ignore(line: str) -> None:
    """Drops progress: the joins report theirs."""
    del line
