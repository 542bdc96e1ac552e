"""One bridge a node: of all that were started for it, the one that holds its Lease may write.

- `win` stands by until the Lease is ours; `keep` renews it, and with it the fence through which all
  writes go (`sync.kube.write_fence`): until `RENEW_DEADLINE` after the last renewal was *begun*. A
  successor waits for `LEASE_SECONDS` after it has *seen* that renewal: the two never write at once.
- What cannot be renewed shuts the fence. When home is back and the Lease still is ours, the fence
  opens again and work goes on. Where somebody else has it, `keep` closes the fence and raises
  `Lost`.
- A holder that does not reach the remote says so with its renewals. A candidate that does asks for
  the Lease, and is given it: `keep` raises `Lost`. Where nobody does, it stays with its holder.
- `release` gives it back, and the next takes it at once. Of one that is not given back the next has
  to wait for the end.
- Each write has the Lease's version as its condition: of two that want it, one gets it. A renewal
  whose answer was lost is known by its holder, which is an identity of this process alone.
- The Lease outlives the Node. One that is deleted under its holder is made again; to others it is
  free when its time would have ended.
- It holds records for the next holder (`bridge.election.lease_records`).
- A Lease that `bridge leave` has taken ends this: `NodeLeft`.
- Requests are urgent (`sync.kube.request_limiter`), and each ends soon. Who stands by watches the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from bridge.base.errors import BridgeError
from bridge.election import election_record
from bridge.election.election_record import Candidate, ElectionRecord, Observation
from bridge.election.lease_records import LeaseRecords
from bridge.election.reachability import RemoteReachability
from bridge.node.lease import LEASE_NAMESPACE, request_lease
from sync.base.histograms import Histogram
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import Conflict, KubeError, NotFound
from sync.kube.request_limiter import urgent
from sync.kube.resources import LEASES
from sync.kube.write_fence import Fence, clock
from translators.objects import Object

log = logging.getLogger(__name__)

#: Seconds for a request, so that one that is lost leaves time for another. The next has twice as
#: many as the last one took, with or without an answer, up to this: a slow home is enough. Seconds
#: until the next try.
REQUEST_SECONDS, MAX_REQUEST_SECONDS, RETRY_SECONDS = 1.0, 10.0, 0.3
#: Seconds between two questions whether the remote answers, while its holder does not reach it.
REQUEST_LEASE_SECONDS = 2.0


class LeadershipLost(Exception):
    """The Lease is another's now, or is to be."""


class NodeLeft(BridgeError):
    """`bridge leave` has taken the node away; the message is for the person who joined."""


class LeaderElector:
    """The election for the virtual node ``node``, as one of its candidates."""

    def __init__(
        self,
        home: KubeClient,
        node: str,
        *,
        candidate: Candidate,
        notify: Callable[[str], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self._home = home
        self._node = node
        self._name = election_record.election_lease_name(node)
        self._me = candidate
        self._told = notify
        self._clock = clock
        self._seen: Observation | None = None
        # The Lease as our last write left it, while it is ours.
        self._mine: ElectionRecord | None = None
        # What the first look saw that could be taken at once.
        self._free: Observation | None = None
        # Who was told to be waited for, and to serve the node.
        self._waited = self._served = ""
        # When the last request that succeeded was begun.
        self._began = 0.0
        # When the remote may be asked next, for a holder that does not reach it.
        self._ask_at = -math.inf
        # Seconds for the next request.
        self._request_seconds = REQUEST_SECONDS
        # That the node goes, once it was seen.
        self._end: NodeLeft | None = None
        self.records = LeaseRecords()
        """The records on the Lease."""
        self.live_rival = ""
        """The last other candidate that was seen to renew the Lease, at this home; "" for none."""
        self.on_records_changed: Callable[[Mapping[str, str]], None] | None = None
        """Called with the records of a Lease that is still ours but was changed by somebody else,
        before it is renewed. What it raises ends `keep`, with the fence closed."""
        self.is_leader = False
        """Whether this bridge holds the Lease, as far as it knows."""
        self.transitions = 0
        """How often it came to hold it."""
        self.renewal_delay = Histogram()
        """How late the loop woke this process for a renewal, in seconds: what waits on it waits as
        long. It needs no timer of its own."""

    @property
    def node(self) -> str:
        """Whose election it is."""
        return self._node

    @property
    def standby_reason(self) -> str:
        """Why this bridge does not serve the node, in a sentence; "" where it does."""
        if self.is_leader:
            return ""
        record = self._seen.record if self._seen is not None else None
        by = (
            f"; it is served by {record.holder_name}"
            if record is not None and record.holder
            else ""
        )
        return f"this bridge stands by for node {self._node}{by}"

    # -- to win ----------------------------------------------------------------------------

    async def observe(self, *, node_exists: bool) -> None:
        """The first look, before anything else is read. ``served``: there is a Node of the name.
        Raises KubeError."""
        self._request_seconds = MAX_REQUEST_SECONDS
        with urgent():
            self._observe(await self._get(), served=node_exists)
        seen = self._seen
        self._free = seen if seen is not None and seen.free_at <= self._clock() else None

    async def acquire(self, fence: Fence, *, reachability: RemoteReachability) -> bool:
        """Waits until the Lease is ours, and opens the fence. Raises NodeLeft.

        Returns whether another bridge can have written since the first look: what was read before
        this ended may then be out of date.
        """
        with urgent():
            if not await self._tried():
                async with self._watching() as news:
                    while not await self._tried():
                        await self._ask(reachability)
                        news.clear()
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._pause()):
                                await news.wait()
        fence.extend(self._began + election_record.RENEW_DEADLINE)
        self.is_leader, self._waited, self._served = True, "", ""
        self.transitions += 1
        first, self._free = self._free, None
        return first is None or self._seen is not first

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[asyncio.Event]:
        """Follows the Lease; the event tells of each change."""
        news = asyncio.Event()
        leases = Informer(
            self._home, LEASES, namespace=LEASE_NAMESPACE, fields=f"metadata.name={self._name}"
        )

        def changed(_: Object | None, new: Object | None) -> None:
            self._observe(election_record.parse_lease(new) if new is not None else None)
            news.set()

        leases.on_change(changed)
        task = asyncio.create_task(leases.run(), name="watch-home-lease")
        try:
            yield news
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _pause(self) -> float:
        left = self._seen.free_at - self._clock() if self._seen is not None else 0.0
        return left if left > 0 else RETRY_SECONDS

    async def _tried(self) -> bool:
        """Takes the Lease if it may be taken, and says whether it is ours. Raises NodeLeft."""
        if self._end is not None:
            raise self._end
        try:
            if self._seen is None:
                self._observe(await self._get())
            seen = self._seen
            if seen is None or seen.free_at > self._clock():
                return False
            try:
                await self._write(seen.record)
            except (Conflict, NotFound):
                self._observe(await self._get())
                return False
        except KubeError as error:
            log.info("the lease of the election cannot be had: %s", error)
            return False
        return True

    async def _ask(self, way: RemoteReachability) -> None:
        """Asks for the Lease of a holder that does not reach the remote, where this one does."""
        record, now = self._seen.record if self._seen is not None else None, self._clock()
        if record is None or not record.remote_lost or record.requested_by or now < self._ask_at:
            return
        self._ask_at = now + REQUEST_LEASE_SECONDS
        if not await way.is_reachable():
            return
        try:
            await self._patch(election_record.request_patch(record, self._me))
        except KubeError as error:
            # It has changed, for one thing, and is looked at again.
            log.info("the lease of the election cannot be asked for: %s", error)
            self._ask_at = now
            return
        self._told(
            f"home: node {self._node}: {record.holder_name} does not reach the remote, and "
            "this bridge "
            "does; it asks for the lease"
        )

    def _observe(self, record: ElectionRecord | None, *, served: bool = True) -> None:
        before, now = self._seen, self._clock()
        seen = self._seen = election_record.observe(
            before, record, candidate=self._me.identity, now=now, node_exists=served
        )
        if record is None and before is None and seen.free_at > now:
            self._told(
                f"home: node {self._node} is there without a lease; waiting for "
                f"{seen.free_at - now:.0f} s, in case that a bridge which serves it makes one"
            )
        if record is not None:
            self.records.observe(record.records)
        if record is None or record.holder in ("", self._me.identity):
            return
        if seen.holder_is_live:
            self.live_rival = record.holder
        if record.leaving and before is not None and seen is not before:
            self._end = self._left(record)
        elif seen.holder_is_live and self._served != record.holder:
            self._served = self._waited = record.holder
            self._told(f"home: node {self._node} is served by {record.holder_name}; standing by")
        elif self._waited != record.holder:
            self._waited = record.holder
            self._told(
                f"home: node {self._node}: waiting for the lease of {record.holder_name}, "
                "which ends in "
                f"{max(seen.free_at - now, 0):.0f} s unless it is renewed"
            )

    def _left(self, record: ElectionRecord) -> NodeLeft:
        return NodeLeft(
            f"home: node {self._node} has left: it is removed by `bridge leave` on "
            f"{record.holder_name}; "
            "this bridge ends, and another join makes the node again"
        )

    # -- to keep ---------------------------------------------------------------------------

    async def renew_until_lost(self, fence: Fence, *, reachability: RemoteReachability) -> NoReturn:
        """Renews the Lease until cancelled. Raises Lost, NodeLeft and what `on_changed` raises,
        with the fence closed; but open, and the Lease still ours until `release`, where it is to
        be another's."""
        wait, loop = election_record.RENEW_SECONDS, asyncio.get_running_loop()
        with urgent():
            while True:
                due = loop.time() + wait
                if not await self._hurried(wait):
                    self.renewal_delay.observe(max(loop.time() - due, 0))
                try:
                    renewed = await self._renewed(fence, lost=reachability.is_lost())
                except KubeError as error:
                    log.info("the lease of the election was not renewed: %s", error)
                    wait = RETRY_SECONDS
                    continue
                except Exception:
                    fence.close()
                    self.is_leader = False
                    raise
                if renewed:
                    fence.extend(self._began + election_record.RENEW_DEADLINE)
                    self._give_way()
                    wait = max(self._began + election_record.RENEW_SECONDS - self._clock(), 0)
                else:
                    wait = 0

    async def _hurried(self, seconds: float) -> bool:
        """Waits for the next renewal, or until a record is to be written: True."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.records.write_requested.wait()
        found = self.records.write_requested.is_set()
        self.records.write_requested.clear()
        return found

    def _give_way(self) -> None:
        """Raises Lost where this bridge does not reach the remote, and one that does has asked."""
        mine = self._mine
        if (
            mine is not None
            and mine.remote_lost
            and mine.requested_by not in ("", self._me.identity)
        ):
            raise LeadershipLost(
                f"home: this bridge does not reach the remote, and another does: it gives node "
                f"{self._node} to that one"
            )

    async def _renewed(self, fence: Fence, *, lost: bool) -> bool:
        """Renews it, or finds out why not: False where it is to be tried again at once."""
        try:
            await self._write(self._mine, lost=lost)
        except (Conflict, NotFound):
            self._mine = self._settled(await self._get(), fence)
            return False
        return True

    def _settled(self, record: ElectionRecord | None, fence: Fence) -> ElectionRecord | None:
        """What our next write is based on, after the Lease was not as our last write left it."""
        if record is None:
            if fence.is_open:
                return None  # It was deleted, and is made again; nobody else may yet.
            self._seen = Observation(None, self._clock() + election_record.LEASE_SECONDS)
            raise LeadershipLost(
                f"home: the lease of node {self._node} was deleted; nothing more is written"
            )
        if record.leaving:
            raise self._left(record)
        if record.holder == self._me.identity or (not record.holder and fence.is_open):
            if self.on_records_changed is not None:
                self.on_records_changed(record.records)
            return record
        self._seen, self._waited = None, record.holder
        self._observe(record)
        raise LeadershipLost(
            f"home: the lease of node {self._node} is held by "
            f"{record.holder_name or 'nobody'} now; "
            "nothing more is written"
        )

    async def release(self) -> None:
        """Gives it back if it is ours. Best effort: it ends by itself a little later."""
        mine, self._mine = self._mine, None
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            with urgent():
                try:
                    await self._give_back(mine)
                except (Conflict, NotFound):
                    # Perhaps by a renewal of ours that was cancelled on its way.
                    await self._give_back(await self._get())
        except KubeError as error:
            log.info("the lease of the election was not given back: %s", error)

    async def _give_back(self, record: ElectionRecord | None) -> None:
        if record is not None and record.holder == self._me.identity:
            await self._patch(election_record.release_patch(record))

    # -- requests --------------------------------------------------------------------------

    async def _get(self) -> ElectionRecord | None:
        try:
            return election_record.parse_lease(await self._request("GET", self._name))
        except NotFound:
            return None

    async def _write(self, before: ElectionRecord | None, *, lost: bool = False) -> None:
        """Takes or renews it, as it was ``before``; makes it where there was none."""
        began = self._clock()
        notes = self.records.all if before is None else self.records.own
        body = election_record.holder_patch(before, self._me, remote_lost=lost, records=notes)
        if before is None:
            body["metadata"]["name"] = self._name
            made = await self._request("POST", "", body=body)
        else:
            made = await self._patch(body)
        self._began = began
        mine = self._mine = election_record.parse_lease(made)
        self.records.confirm(mine.records)

    async def _patch(self, body: Object) -> Object:
        return await self._request("PATCH", self._name, body=body)

    async def _request(self, method: str, name: str, *, body: Object | None = None) -> Object:
        """One request for the Lease, with a timeout that follows how long the last one took."""
        began = self._clock()
        try:
            return await request_lease(
                self._home, method, name, seconds=self._request_seconds, body=body
            )
        finally:
            took = self._clock() - began
            self._request_seconds = min(max(2 * took, REQUEST_SECONDS), MAX_REQUEST_SECONDS)
