"""Acquires, renews and releases the claim on a virtual node in the remote
(`bridge.remote_claim.claim_record`).

- `acquire` runs after home's election is won, before any other write to either cluster. It raises
  ClaimRejected if another home of the same identity has worked since the state that this home is
  in. All other failures are retried: nothing can be written without the remote.
- `acquire` first looks for the claim in all namespaces that may have it
  (`bridge.remote_claim.claim_place`), and at last leaves markers in the others. A claim in a
  namespace that is no longer prepared moves.
- After a bridge that was seen to renew home's election, or that stopped cleanly, `acquire` does not
  wait. Otherwise it watches the claim for `OBSERVE_SECONDS`: a home that was cloned a moment ago
  knows the claim, and only the next renewal shows that the other home uses it.
- `renew_until_lost` renews the claim while home's election is held. Each renewal extends `fence`,
  which every write to the remote passes, by `CLAIM_SECONDS`: after a longer outage the claim is
  read before anything is written. The claim does not expire for another home: only a person takes
  it over.
- Where another writer changed the claim, `renew_until_lost` closes the fence of all writes and
  raises ClaimRejected; likewise where home's record went back, because home was restored under this
  bridge.
- A rejection is recorded at home, so that a restart does not take the claim while the other bridge
  happens to pause.
- `release` clears the holder, if it is this bridge. A renewal that was interrupted may have reached
  the remote: the claim is read before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from bridge.base.command_error import BridgeError
from bridge.base.progress_lines import Waiting
from bridge.election.election_lease import Candidate
from bridge.election.elector import LeaderElector
from bridge.node.node_lease import request_lease
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_place import (
    REQUEST_SECONDS,
    ClaimPlaces,
    FoundLeases,
    find_claims,
    hidden_message,
    namespace_of_claim,
    write_markers,
)
from bridge.remote_claim.claim_record import Claim, HomeRecord, parse_record
from sync.kube.api_errors import Conflict, Forbidden, KubeError, NotFound
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import Fence, clock
from sync.kube.request_limiter import urgent
from translators.object_accessors import Object
from translators.timestamps import format_micro_time
from translators.virtual_node_identity import Identity

log = logging.getLogger(__name__)

#: Seconds between renewals, and for which a renewal opens the fence: as in client-go's leader
#: election, several may fail before the last one expires.
RENEW_SECONDS, CLAIM_SECONDS = 3.0, 15
#: Seconds within which a running bridge renews the claim: `RENEW_SECONDS`, the preceding renewal of
#: home's election, and the requests.
OBSERVE_SECONDS = 5.0
#: Wait before a retry, in seconds.
RETRY_SECONDS = 1.0
#: Looks after which a claim that cannot be read is not this credential's to read.
HIDDEN_ATTEMPTS = 4
#: Timeouts in seconds of best-effort writes: the record of a rejection, and a release, which delays
#: the other writes of a stop.
RECORD_SECONDS, RELEASE_SECONDS = 2.0, 1.0
#: Attempts at one renewal of a held claim that changes.
ATTEMPTS = 3


class ClaimRejected(BridgeError):
    """Another home of this identity uses the remote; the message is for the user who joined."""


class RemoteClaim:
    """The claim of one virtual node, for one term of a bridge (`bridge.app.replica_handover`).

    ``home_fence`` is that of home's election; ``take_over`` is the id of a claim to take in any
    case; ``places`` are the namespaces that may have it; the claim states whether the bridge
    ``uses_volumes``.
    """

    def __init__(
        self,
        remote: KubeClient,
        identity: Identity,
        election: LeaderElector,
        *,
        candidate: Candidate,
        home_fence: Fence,
        take_over: str,
        places: ClaimPlaces,
        uses_volumes: bool,
        notify: Callable[[str], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self._remote = remote
        self._fenced = remote.fenced(home_fence)
        self._identity = identity
        self._election = election
        self._candidate = candidate
        self.home_fence = home_fence
        """The fence of home's election, which every write to either cluster passes."""
        self._take_over = take_over
        self._places = places
        self._uses_volumes = uses_volumes
        self._notify = notify
        self._clock = clock
        self.fence = Fence(outer=home_fence, clock=clock)
        """The fence that every write to the remote passes."""
        self.name = claim_record.claim_lease_name(identity)
        """The name of the Lease."""
        self.is_taken_over = False
        """Whether `acquire` took the claim that ``take_over`` names."""
        # The claim's namespace, once it is known.
        self._namespace = places.preferred
        self._id = claim_record.new_claim_id()
        # Home's record as last written by this bridge.
        self._record = HomeRecord()
        # The claim as last observed, and since when it is unchanged.
        self._observed: Claim | None = None
        self._unchanged_since = math.inf
        # The claim after the last write of this bridge, while it holds the claim.
        self._held: Claim | None = None
        # When each write without a response was started, by its renewTime.
        self._unconfirmed: dict[str, float] = {}
        # When the last successful write was started.
        self._written_at = -math.inf
        # The holder of the claim that is taken over by --take-over-claim.
        self._displaced_holder = ""
        self._wait_announced = False
        # The last failure that was logged as a warning.
        self._last_failure = ""

    # -- acquire --------------------------------------------------------------------------

    async def observe(self) -> None:
        """Reads the claim while home's election is still undecided, so that the wait of `acquire`
        begins now."""
        with contextlib.suppress(KubeError), urgent():
            found = await find_claims(self._remote, self._identity, self._places, HomeRecord())
            self._update_observation(found.latest)

    async def acquire(self) -> None:
        """Takes the claim, and opens the fence. Raises ClaimRejected."""
        records = self._election.records.all
        self._record = known = parse_record(records.get(claim_record.ANNOTATION_RECORD))
        with urgent():
            await self._locate(known)
            await self._retry_until(lambda: self._try_acquire(known))
            if self._displaced_holder:
                self._notify(
                    Waiting(
                        f"remote: the claim of {self._displaced_holder} is taken over; waiting "
                        f"{CLAIM_SECONDS} s until that bridge can write no more"
                    )
                )
                await asyncio.sleep(CLAIM_SECONDS)
                await self._retry_until(self._renew)
            others = self._places.all
            if self._namespace not in others:
                others = (*others, self._namespace)
                await self._retry_until(self._move)
            await self._mark_others(others)
        self._election.on_records_changed = self._check_home_record
        self.fence.extend(self._written_at + CLAIM_SECONDS)

    async def _locate(self, known: HomeRecord) -> None:
        """Looks for the claim, and decides which namespace has it. Raises ClaimRejected where a
        claim is not this home's, or cannot be read."""

        async def look() -> bool:
            found.append(await find_claims(self._remote, self._identity, self._places, known))
            hidden = found[-1].undecided(self._take_over)
            # An API server that has just started denies what its roles permit.
            if hidden is not None and len(found) < HIDDEN_ATTEMPTS:
                raise Forbidden(f"{hidden.namespace} denies it", side="remote", code=403)
            return True

        found: list[FoundLeases] = []
        await self._retry_until(look)
        hidden = found[-1].undecided(self._take_over)
        for claim in found[-1].claims:
            if why := claim_record.objection(claim, known, take_over=self._take_over):
                await self._reject(claim, why)
        if hidden is not None:
            raise ClaimRejected(hidden_message(hidden, self._identity, self._places))
        self.is_taken_over = bool(found[-1].hidden)
        self._namespace = namespace_of_claim(found[-1], known, self._places)

    async def _move(self) -> bool:
        """Moves the claim, which this bridge holds, to the preferred namespace."""
        self._namespace = self._places.preferred
        existing = await self._get()
        record = replace(self._record, namespace=self._namespace).for_renewal()
        await self._write_home_record(record, now=True)
        await self._write(existing, record)
        return True

    async def _mark_others(self, others: tuple[str, ...]) -> None:
        """Leaves markers in the other namespaces. Raises ClaimRejected if another home has made a
        claim meanwhile."""
        try:
            rival = await write_markers(
                self._remote, self._fenced, self._identity, others, self._record
            )
        except KubeError as error:
            log.info("a marker of the claim in the remote was not written: %s", error)
        else:
            if rival is not None:
                await self._reject(rival, claim_record.objection(rival, self._record))

    async def _retry_until(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Retries the step until it returns True."""
        while True:
            try:
                if await step():
                    return
            except KubeError as error:
                level = logging.DEBUG if str(error) == self._last_failure else logging.WARNING
                self._last_failure = str(error)
                log.log(level, "the claim in the remote cannot be taken yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _try_acquire(self, known: HomeRecord) -> bool:
        """Returns whether the claim is taken; False to try again."""
        found = await self._get()
        claim = found if found is not None and found.marker is None else None
        self._update_observation(claim)
        if claim is not None:
            found = claim
            if self._is_own_write(found):
                return True
            if why := claim_record.objection(found, known, take_over=self._take_over):
                await self._reject(found, why)
            by_hand = found.id == self._take_over
            if not by_hand and (left := self._seconds_until_abandoned(found)) > 0:
                await self._wait(found, left)
                return False
            self.is_taken_over = by_hand or self.is_taken_over
            if by_hand and found.holder:
                self._displaced_holder = found.holder_name
        record = replace(known, namespace=self._namespace).for_acquisition(claim, self._id)
        await self._write_home_record(record, now=True)
        try:
            await self._write(found, record)
        except (Conflict, NotFound):
            # Another bridge of this home may have renewed it just before it stopped.
            return False
        return True

    def _update_observation(self, found: Claim | None) -> None:
        seen = self._observed
        if found is not None and (seen is None or seen.version != found.version):
            self._unchanged_since = self._clock()
        self._observed = found

    def _seconds_until_abandoned(self, found: Claim) -> float:
        """Seconds until the holder is known not to renew the claim any more."""
        if found.holder in ("", self._candidate.identity, self._election.live_rival):
            return 0.0
        return self._unchanged_since + OBSERVE_SECONDS - self._clock()

    async def _wait(self, found: Claim, seconds: float) -> None:
        if not self._wait_announced:
            self._wait_announced = True
            self._notify(
                Waiting(
                    f"remote: node {self._identity.node} was claimed by {found.holder_name}; "
                    f"waiting {math.ceil(seconds)} s to see whether that bridge still serves it"
                )
            )
        await asyncio.sleep(min(seconds, RETRY_SECONDS))

    # -- renew -----------------------------------------------------------------------------

    async def renew_until_lost(self) -> NoReturn:
        """Renews the claim until cancelled. Raises ClaimRejected, with all fences closed."""
        wait = RENEW_SECONDS
        with urgent():
            while True:
                await asyncio.sleep(wait)
                wait = RETRY_SECONDS
                if not self.home_fence.is_open:
                    continue
                try:
                    await self._renew()
                except KubeError as error:
                    log.info("the claim in the remote was not renewed: %s", error)
                    continue
                self.fence.extend(self._written_at + CLAIM_SECONDS)
                wait = max(self._written_at + RENEW_SECONDS - self._clock(), 0)

    async def _renew(self) -> bool:
        """Renews the claim and returns True. Raises ClaimRejected, and KubeError to try again."""
        if self._unconfirmed and await self._confirm():
            return True
        for attempt in range(1, ATTEMPTS + 1):
            await self._write_home_record(self._record.for_renewal())
            try:
                await self._write(self._held, self._record)
            except (Conflict, NotFound):
                if await self._confirm():
                    return True
                if attempt == ATTEMPTS:
                    raise
            else:
                break
        return True

    async def _confirm(self) -> bool:
        """Reads the claim after a write with an unknown or failed outcome; returns whether one of
        this bridge's writes succeeded. Raises ClaimRejected if another bridge has the claim."""
        found = await self._get()
        if found is None:
            self._held = None  # Deleted: the next write creates it again.
            return False
        if self._is_own_write(found):
            return True
        # Either ours with metadata that a user edited, or an earlier state in a remote that was
        # restored from a backup.
        sequence = self._held.sequence if self._held is not None else 0
        known = replace(self._record, sequence=sequence)
        why = claim_record.objection(found, known)
        if not why:
            self._held = found
        elif self.home_fence.is_open:
            # We held home's election throughout, so no other bridge of this home wrote the claim.
            self.home_fence.close()
            await self._reject(found, why)
        return False

    def _is_own_write(self, found: Claim) -> bool:
        """Whether this is the result of an own write whose response was lost; then it is
        adopted."""
        began = self._unconfirmed.get(found.renewed)
        if began is None or found.id != self._id:
            return False
        self._held, self._written_at = found, began
        # Earlier writes can no longer succeed: they depend on an older resourceVersion.
        self._unconfirmed.clear()
        return True

    def _check_home_record(self, records: Mapping[str, str]) -> None:
        """Raises ClaimRejected where home's record is older than the claim."""
        record = parse_record(records.get(claim_record.ANNOTATION_RECORD))
        if self._held is not None and record.sequence < self._held.sequence:
            raise self._rejection(self._held, "the record of this home went back while it was held")

    # -- release --------------------------------------------------------------------------

    async def release(self) -> None:
        """Clears the holder. Best effort, within `RELEASE_SECONDS`."""
        self._election.on_records_changed = None
        if not self.home_fence.is_open:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                with urgent():
                    if self._unconfirmed and (found := await self._get()) is not None:
                        self._is_own_write(found)
                    if self._held is not None:
                        patch = claim_record.release_patch(self._held)
                        await self._request("PATCH", self.name, patch)
        except (KubeError, TimeoutError) as error:
            log.info("the claim in the remote was not released: %s", error)
        finally:
            self._held = None

    # -- rejection -------------------------------------------------------------------------

    async def _reject(self, found: Claim, why: str) -> NoReturn:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_SECONDS):
                await self._write_home_record(self._record.for_rejection(), now=True)
        raise self._rejection(found, why)

    def _rejection(self, found: Claim, why: str) -> ClaimRejected:
        return ClaimRejected(
            f"remote: the claim on node {self._identity.node} (Lease "
            f"{found.namespace}/{self.name}) is not this bridge's: {why}; "
            f"{claim_record.rejection_advice(found, self._identity)}"
        )

    # -- requests --------------------------------------------------------------------------

    async def _write_home_record(self, record: HomeRecord, *, now: bool = False) -> None:
        """Writes the record to home, before the claim itself."""
        await self._election.records.write(claim_record.ANNOTATION_RECORD, str(record), now=now)
        self._record = record

    async def _get(self) -> Claim | None:
        try:
            return claim_record.parse_claim(await self._request("GET", self.name))
        except NotFound:
            return None

    async def _write(self, before: Claim | None, record: HomeRecord) -> None:
        began = self._clock()
        renewed = format_micro_time(datetime.now(UTC))
        body = claim_record.claim_patch(
            before,
            self._identity,
            self._candidate,
            record,
            renewed=renewed,
            seconds=CLAIM_SECONDS,
            uses_volumes=self._uses_volumes,
        )
        self._unconfirmed[renewed] = began
        if before is None:
            made = await self._request("POST", "", body)
        else:
            made = await self._request("PATCH", self.name, body)
        self._held = claim_record.parse_claim(made)
        self._written_at = began
        self._unconfirmed.clear()

    async def _request(self, method: str, name: str, body: Object | None = None) -> Object:
        client = self._remote if method == "GET" else self._fenced
        return await request_lease(
            client, method, name, namespace=self._namespace, seconds=REQUEST_SECONDS, body=body
        )
