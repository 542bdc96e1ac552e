"""Elects one bridge per virtual node: only the holder of the election's Lease may write.

- `acquire` waits until this bridge holds the Lease; `renew_until_lost` renews it, and with it the
  fence that every write passes (`sync.kube.leader_write_fence`): until `RENEW_DEADLINE` after the
  last renewal was *started*. A successor waits `LEASE_SECONDS` after it *observed* that renewal, so
  two bridges never write at the same time.
- Handover: a failed renewal closes the fence at its deadline. If the Lease is still this bridge's
  when home is back, the fence opens again. If another candidate holds it, `renew_until_lost` raises
  `LeadershipLost` with the fence closed.
- A holder that does not reach the remote marks the Lease. A candidate that does reach it requests
  the Lease, and the holder yields: LeadershipLost. Without such a candidate the holder stays.
- `release` clears the holder, and the next candidate takes over at once. Otherwise it waits until
  the Lease expires.
- Every write has the Lease's resourceVersion as its precondition, so only one of two candidates
  succeeds. A holder recognises a renewal whose response was lost by its identity, which is unique
  to the process.
- A Lease that was deleted while held is created again; other candidates treat it as held until it
  would have expired.
- The Lease has records for the next holder (`LeaseRecords`).
- A Lease that `bridge leave` took ends the election: `NodeLeft`.
- Requests (`ElectionLeaseRequests`) have priority (`sync.kube.request_limiter.urgent`) and short
  timeouts. Standby replicas watch the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from bridge.base.command_error import BridgeError
from bridge.base.progress_lines import Waiting
from bridge.election import election_lease
from bridge.election.election_lease import Candidate, ElectionRecord, Observation
from bridge.election.remote_reachability import RemoteReachability
from bridge.node import lease_namespace
from bridge.node.node_lease import request_lease
from sync.base.background_task import background_task
from sync.base.histograms import Histogram
from sync.cache.informer import Informer
from sync.kube.api_errors import Conflict, KubeError, NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import Fence, clock
from sync.kube.request_limiter import urgent
from translators.object_accessors import Object

log = logging.getLogger(__name__)

#: Seconds until a failed renewal is repeated.
RETRY_SECONDS = 0.3
#: Seconds between two checks of the remote while the Lease's holder does not reach it.
REQUEST_LEASE_SECONDS = 2.0
#: The least and the greatest timeout of a request, in seconds.
REQUEST_SECONDS, MAX_REQUEST_SECONDS = 1.0, 10.0


class LeadershipLost(Exception):
    """Raised if another candidate holds the Lease, or is about to."""


class NodeLeft(BridgeError):
    """Raised if `bridge leave` removes the node; the message is for the user who joined."""


class LeaderElector:
    """One candidate of the election for the virtual node ``node``."""

    def __init__(
        self,
        home: KubeClient,
        node: str,
        *,
        candidate: Candidate,
        notify: Callable[[str], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self.node = node
        """The name of the virtual node."""
        self._lease = ElectionLeaseRequests(home, node, clock=clock)
        self._candidate = candidate
        self._notify = notify
        self._clock = clock
        self._observation: Observation | None = None
        # The Lease after the last write of this bridge, while it holds the Lease.
        self._held: ElectionRecord | None = None
        # The first observation, if the Lease was free.
        self._initial: Observation | None = None
        # The holder whose expiry, and the leader whose service, was reported.
        self._announced_wait = self._announced_leader = ""
        # When the last successful write was started.
        self._renewed_at = 0.0
        # When the Lease may be requested next.
        self._next_lease_request_at = -math.inf
        # Set once a leave was observed.
        self._node_left: NodeLeft | None = None
        self.records = LeaseRecords()
        """The records on the Lease."""
        self.live_rival = ""
        """The last other candidate that was seen to renew the Lease; "" for none."""
        self.on_records_changed: Callable[[Mapping[str, str]], None] | None = None
        """Called with the records when another writer changed the Lease while this bridge holds it,
        before the next renewal. An exception ends `renew_until_lost` with the fence closed."""
        self.is_leader = False
        """Whether this bridge holds the Lease, as far as it knows."""
        self.transitions = 0
        """How often this bridge acquired the Lease."""
        self.renewal_delay = Histogram()
        """How late the event loop woke up for renewals, in seconds: a measure of the loop's latency
        that needs no timer of its own."""

    @property
    def standby_reason(self) -> str:
        """Why this bridge does not serve the node, in one sentence; "" if it does."""
        if self.is_leader:
            return ""
        record = self._observation.record if self._observation is not None else None
        reason = f"this bridge stands by for node {self.node}"
        if record is None or not record.holder:
            return reason
        return f"{reason}; it is served by {record.holder_name}"

    # -- acquire ---------------------------------------------------------------------------

    async def observe(self, *, node_exists: bool) -> None:
        """The first read of the Lease, before all other reads. ``node_exists``: home has a Node of
        the name. Raises KubeError."""
        self._lease.be_patient()
        with urgent():
            self._update_observation(await self._lease.get(), served=node_exists)
        seen = self._observation
        self._initial = seen if seen is not None and seen.free_at <= self._clock() else None

    async def acquire(self, fence: Fence, *, reachability: RemoteReachability) -> bool:
        """Waits until this bridge holds the Lease, and opens the fence. Raises NodeLeft.

        Returns whether another bridge may have written since `observe`, so that earlier reads may
        be stale.
        """
        with urgent():
            if not await self._try_acquire():
                async with self._lease.watch(self._update_observation) as changed:
                    while not await self._try_acquire():
                        await self._request_from_holder(reachability)
                        changed.clear()
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._retry_delay()):
                                await changed.wait()
        fence.extend(self._renewed_at + election_lease.RENEW_DEADLINE)
        self.is_leader, self._announced_wait, self._announced_leader = True, "", ""
        self.transitions += 1
        first, self._initial = self._initial, None
        return first is None or self._observation is not first

    def _retry_delay(self) -> float:
        delay = self._observation.free_at - self._clock() if self._observation is not None else 0.0
        return delay if delay > 0 else RETRY_SECONDS

    async def _try_acquire(self) -> bool:
        """Takes the Lease if it is free; returns whether this bridge holds it. Raises NodeLeft."""
        if self._node_left is not None:
            raise self._node_left
        try:
            if self._observation is None:
                self._update_observation(await self._lease.get())
            seen = self._observation
            if seen is None or seen.free_at > self._clock():
                return False
            try:
                await self._write(seen.record)
            except (Conflict, NotFound):
                self._update_observation(await self._lease.get())
                return False
        except KubeError as error:
            log.info("the election Lease cannot be acquired: %s", error)
            return False
        return True

    async def _request_from_holder(self, reachability: RemoteReachability) -> None:
        """Requests the Lease where its holder does not reach the remote and this bridge does."""
        record = self._observation.record if self._observation is not None else None
        now = self._clock()
        if record is None or not record.remote_lost or record.requested_by:
            return
        if now < self._next_lease_request_at:
            return
        self._next_lease_request_at = now + REQUEST_LEASE_SECONDS
        if not await reachability.is_reachable():
            return
        try:
            patch = election_lease.request_patch(record, self._candidate)
            await self._lease.patch(patch)
        except KubeError as error:
            # The Lease may have changed; the next observation decides.
            log.info("the election Lease cannot be requested: %s", error)
            self._next_lease_request_at = now
            return
        self._notify(
            f"home: node {self.node}: {record.holder_name} does not reach the remote, and "
            "this bridge does; it asks for the lease"
        )

    def _update_observation(self, record: ElectionRecord | None, *, served: bool = True) -> None:
        before, now = self._observation, self._clock()
        seen = self._observation = election_lease.observe(
            before, record, candidate=self._candidate.identity, now=now, node_exists=served
        )
        if record is None and before is None and seen.free_at > now:
            self._notify(
                Waiting(
                    f"home: node {self.node} is there without a lease; waiting for "
                    f"{seen.free_at - now:.0f} s, in case that a bridge which serves it makes one"
                )
            )
        if record is not None:
            self.records.observe(record.records)
        if record is None or record.holder in ("", self._candidate.identity):
            return
        if seen.holder_is_live:
            self.live_rival = record.holder
        if record.leaving and before is not None and seen is not before:
            self._node_left = self._node_left_error(record)
        elif seen.holder_is_live and self._announced_leader != record.holder:
            self._announced_leader = self._announced_wait = record.holder
            self._notify(
                Waiting(f"home: node {self.node} is served by {record.holder_name}; standing by")
            )
        elif self._announced_wait != record.holder:
            self._announced_wait = record.holder
            self._notify(
                Waiting(
                    f"home: node {self.node}: waiting for the lease of {record.holder_name}, "
                    f"which ends in {max(seen.free_at - now, 0):.0f} s unless it is renewed"
                )
            )

    def _node_left_error(self, record: ElectionRecord) -> NodeLeft:
        return NodeLeft(
            f"home: node {self.node} has left: it is removed by `bridge leave` on "
            f"{record.holder_name}; this bridge ends, and another join makes the node again"
        )

    # -- renew -----------------------------------------------------------------------------

    async def renew_until_lost(self, fence: Fence, *, reachability: RemoteReachability) -> NoReturn:
        """Renews the Lease until cancelled. Raises LeadershipLost, NodeLeft and what
        `on_records_changed` raises, with the fence closed. When it yields to a requester, the fence
        stays open and the Lease held until `release`."""
        wait, loop = election_lease.RENEW_SECONDS, asyncio.get_running_loop()
        with urgent():
            while True:
                due = loop.time() + wait
                if not await self._wait_for_renewal(wait):
                    self.renewal_delay.observe(max(loop.time() - due, 0))
                try:
                    renewed = await self._renew(fence, lost=reachability.is_lost())
                except KubeError as error:
                    log.info("the election Lease was not renewed: %s", error)
                    wait = RETRY_SECONDS
                    continue
                except Exception:
                    fence.close()
                    self.is_leader = False
                    raise
                if renewed:
                    fence.extend(self._renewed_at + election_lease.RENEW_DEADLINE)
                    self._yield_to_requester()
                    wait = max(self._renewed_at + election_lease.RENEW_SECONDS - self._clock(), 0)
                else:
                    wait = 0

    async def _wait_for_renewal(self, seconds: float) -> bool:
        """Waits until the next renewal is due; True if a record is to be written earlier."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.records.write_requested.wait()
        is_requested = self.records.write_requested.is_set()
        self.records.write_requested.clear()
        return is_requested

    def _yield_to_requester(self) -> None:
        """Raises LeadershipLost if a candidate that reaches the remote requested the Lease, and
        this bridge does not reach it."""
        held, no_rival = self._held, ("", self._candidate.identity)
        if held is not None and held.remote_lost and held.requested_by not in no_rival:
            raise LeadershipLost(
                f"home: this bridge does not reach the remote, and another does: it gives node "
                f"{self.node} to that one"
            )

    async def _renew(self, fence: Fence, *, lost: bool) -> bool:
        """Renews the Lease; False if it changed and must be renewed again without delay. A refusal
        that no change of the Lease explains, as of a webhook, is raised."""
        before = self._held
        try:
            await self._write(before, lost=lost)
        except (Conflict, NotFound):
            self._held = self._resolve_conflict(await self._lease.get(), fence)
            if not _has_changed(before, self._held):
                raise
            return False
        return True

    def _resolve_conflict(
        self, record: ElectionRecord | None, fence: Fence
    ) -> ElectionRecord | None:
        """The state that the next write is based on, after another writer changed the Lease. Raises
        LeadershipLost and NodeLeft."""
        if record is None:
            if fence.is_open:
                return None  # The next write re-creates it, since others still treat it as held.
            self._observation = Observation(None, self._clock() + election_lease.LEASE_SECONDS)
            raise LeadershipLost(
                f"home: the lease of node {self.node} was deleted; nothing more is written"
            )
        if record.leaving:
            raise self._node_left_error(record)
        if record.holder == self._candidate.identity or (not record.holder and fence.is_open):
            if self.on_records_changed is not None:
                self.on_records_changed(record.records)
            return record
        self._observation, self._announced_wait = None, record.holder
        self._update_observation(record)
        raise LeadershipLost(
            f"home: the lease of node {self.node} is held by "
            f"{record.holder_name or 'no bridge'} now; nothing more is written"
        )

    async def release(self) -> None:
        """Clears the holder if it is this bridge. Best effort: the Lease expires anyway."""
        held, self._held = self._held, None
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            with urgent():
                try:
                    await self._clear_holder(held)
                except (Conflict, NotFound):
                    # Possibly changed by this bridge's renewal, which was cancelled in flight.
                    await self._clear_holder(await self._lease.get())
        except KubeError as error:
            log.info("the election Lease was not released: %s", error)

    async def _clear_holder(self, record: ElectionRecord | None) -> None:
        if record is not None and record.holder == self._candidate.identity:
            await self._lease.patch(election_lease.release_patch(record))

    async def _write(self, before: ElectionRecord | None, *, lost: bool = False) -> None:
        """Acquires or renews the Lease, from the state ``before``; creates it where there was
        none."""
        began = self._clock()
        records = self.records.all if before is None else self.records.own
        body = election_lease.holder_patch(
            before, self._candidate, remote_lost=lost, records=records
        )
        held = await (self._lease.create(body) if before is None else self._lease.patch(body))
        self._renewed_at, self._held = began, held
        self.records.confirm(held.records)


def _has_changed(before: ElectionRecord | None, now: ElectionRecord | None) -> bool:
    if before is None or now is None:
        return before is not now
    return not now.is_same_version(before)


class LeaseRecords:
    """Records on the Lease: annotations by which a holder passes state to the next.

    They are written with the renewals. A holder writes the records that it set, and keeps the
    others; a Lease that is created again gets all records last seen.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._own: dict[str, str] = {}
        # Replaced after each successful renewal.
        self._renewed = asyncio.Event()
        self.write_requested = asyncio.Event()
        """Set when a record must not wait for the next renewal."""

    @property
    def all(self) -> Mapping[str, str]:
        """By annotation: the records of earlier holders, and of this one."""
        return {**self._seen, **self._own}

    @property
    def own(self) -> Mapping[str, str]:
        """The records that this holder set."""
        return self._own

    async def write(self, annotation: str, text: str, *, now: bool = False) -> None:
        """Sets a record and waits until it is on the Lease: at the next renewal, or ``now``. Only
        for the holder, while it renews the Lease."""
        self._own[annotation] = text
        while self._seen.get(annotation) != text:
            if now:
                self.write_requested.set()
            await self._renewed.wait()

    def observe(self, records: Mapping[str, str]) -> None:
        """The records of a Lease that this candidate does not hold."""
        self._seen = dict(records)
        self._own.clear()

    def confirm(self, records: Mapping[str, str]) -> None:
        """The records of the Lease after this candidate's renewal."""
        self._seen = dict(records)
        self._renewed.set()
        self._renewed = asyncio.Event()


class ElectionLeaseRequests:
    """Reads and writes the Lease of one node's election. All methods raise KubeError.

    The timeout of a request is twice what the last one took: a lost request leaves time for another
    before the Lease expires, and a slow home cluster has enough.
    """

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
