"""Takes, renews and releases the claim on a virtual node in the remote
(`bridge.remote_claim.claim_record`).

- `take` runs when home's election is won, before anything else is written to either cluster. It
  raises ClaimRefused where another home of the same identity has worked since the state that this
  home is in. Any other failure is tried again: without the remote there is nothing to write there.
- After a bridge that was seen to renew home's election, and after a clean stop, `take` waits for
  nothing but its requests. After a bridge that was not seen, it watches the claim for
  `OBSERVE_SECONDS`: a home that was cloned a moment ago knows the claim, and only the next renewal
  shows that the other home still uses it.
- `keep` renews the claim while home's election is held. Each renewal extends `fence`, which is
  before every write to the remote, for `CLAIM_SECONDS`: after a longer cut the claim is read before
  anything is written. It does not expire for another home: only a person takes it from there.
- Where somebody else has written the claim, `keep` closes the fence of all writes, and raises
  ClaimRefused. So does a record at home that went back: home was restored under this bridge.
- A refusal is recorded at home, so that a restart does not take the claim when the other bridge
  happens to pause.
- `release` says that nobody holds the claim, if it is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import NoReturn

from bridge.base.errors import BridgeError
from bridge.election.election_record import Candidate
from bridge.election.elector import LeaderElector
from bridge.node.lease import LEASE_NAMESPACE, request_lease
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_record import Claim, HomeRecord
from sync.kube.client import KubeClient
from sync.kube.errors import Conflict, KubeError, NotFound
from sync.kube.request_limiter import urgent
from sync.kube.write_fence import Fence, clock
from translators.identity import Identity
from translators.objects import Object
from translators.timestamps import format_micro_time

log = logging.getLogger(__name__)

#: Seconds between two renewals, and for which one opens the fence: as in client-go's leader
#: election, several renewals can fail before the last one does not count any more.
RENEW_SECONDS, CLAIM_SECONDS = 3.0, 15
#: Seconds in which a bridge that lives renews the claim: `RENEW_SECONDS`, the renewal of home's
#: election that goes before it, and the requests.
OBSERVE_SECONDS = 5.0
#: Seconds for a request, and until the next try.
REQUEST_SECONDS, RETRY_SECONDS = 5.0, 1.0
#: Seconds for what is of use, and nothing depends on: a record at home of a refusal, and a release,
#: which other writes of a stop wait for.
RECORD_SECONDS, RELEASE_SECONDS = 2.0, 1.0
#: Attempts at one renewal of a claim that is ours and changes.
ATTEMPTS = 3


class ClaimRejected(BridgeError):
    """Another home of this identity uses the remote; the message is for the person who joined."""


class RemoteClaim:
    """The claim of one virtual node, for one life of a bridge (`bridge.app.replica`).

    ``home_fence`` is that of home's election; ``take_over`` the id of a claim that a person has
    decided to take.
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
        notify: Callable[[str], None],
        clock: Callable[[], float] = clock,
    ) -> None:
        self._remote = remote
        self._fenced = remote.fenced(home_fence)
        self._identity = identity
        self._election = election
        self._me = candidate
        self.home_fence = home_fence
        """Before every write, to either cluster: that of home's election."""
        self._take_over = take_over
        self._told = notify
        self._clock = clock
        self.fence = Fence(outer=home_fence, clock=clock)
        """Before every write to the remote."""
        self.name = claim_record.claim_lease_name(identity)
        """The Lease's."""
        self._id = claim_record.new_claim_id()
        # Home's record, as this bridge wrote it last.
        self._record = HomeRecord()
        # The claim as it was last seen, and since when it has not changed.
        self._seen: Claim | None = None
        self._seen_since = math.inf
        # The claim as our last write left it, while it is ours.
        self._mine: Claim | None = None
        # When our writes were begun that no answer has confirmed, by the time that they wrote.
        self._sent: dict[str, float] = {}
        # When the last write that is known to have succeeded was begun.
        self._began = -math.inf
        # Who held the claim that a person has decided to take.
        self._overtaken = ""
        self._waits = False
        # The last failure that was logged as a warning.
        self._failed = ""

    # -- to take ---------------------------------------------------------------------------

    async def observe(self) -> None:
        """Looks at the claim while home's election is still to be won: what `take` waits for begins
        now."""
        with contextlib.suppress(KubeError), urgent():
            self._observe(await self._get())

    async def acquire(self) -> None:
        """Takes the claim, and opens the fence. Raises ClaimRefused."""
        known = claim_record.parse_record(
            self._election.records.all.get(claim_record.ANNOTATION_RECORD)
        )
        self._record = known
        with urgent():
            await self._tried(lambda: self._taken(known))
            if self._overtaken:
                self._told(
                    f"remote: the claim of {self._overtaken} is taken over; waiting "
                    f"{CLAIM_SECONDS} s until that bridge can write no more"
                )
                await asyncio.sleep(CLAIM_SECONDS)
                await self._tried(self._renewed)
        self._election.on_records_changed = self._home_changed
        self.fence.extend(self._began + CLAIM_SECONDS)

    async def _tried(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Tries until it is done."""
        while True:
            try:
                if await step():
                    return
            except KubeError as error:
                level = logging.DEBUG if str(error) == self._failed else logging.WARNING
                self._failed = str(error)
                log.log(level, "the claim in the remote cannot be taken yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _taken(self, known: HomeRecord) -> bool:
        """Whether it is taken; False where it is to be looked at again."""
        found = await self._get()
        self._observe(found)
        if found is not None:
            if self._is_sent(found):
                return True
            if why := claim_record.objection(found, known, take_over=self._take_over):
                await self._refuse(found, why)
            by_hand = found.id == self._take_over
            if not by_hand and (left := self._unsure_for(found)) > 0:
                await self._wait(found, left)
                return False
            if by_hand and found.holder:
                self._overtaken = found.holder_name
        record = known.for_acquisition(found, self._id)
        await self._note(record, now=True)
        try:
            await self._write(found, record)
        except (Conflict, NotFound):
            # Another bridge of this home may have renewed it with its last breath.
            return False
        return True

    def _observe(self, found: Claim | None) -> None:
        seen = self._seen
        if found is not None and (seen is None or seen.version != found.version):
            self._seen_since = self._clock()
        self._seen = found

    def _unsure_for(self, found: Claim) -> float:
        """Seconds until it is known that the holder does not renew the claim any more."""
        if found.holder in ("", self._me.identity, self._election.live_rival):
            return 0.0
        return self._seen_since + OBSERVE_SECONDS - self._clock()

    async def _wait(self, found: Claim, seconds: float) -> None:
        if not self._waits:
            self._waits = True
            self._told(
                f"remote: node {self._identity.node} was claimed by {found.holder_name}; "
                f"waiting {math.ceil(seconds)} s to see whether that bridge still serves it"
            )
        await asyncio.sleep(min(seconds, RETRY_SECONDS))

    # -- to keep ---------------------------------------------------------------------------

    async def renew_until_lost(self) -> NoReturn:
        """Renews the claim until cancelled. Raises ClaimRefused, with all fences closed."""
        wait = RENEW_SECONDS
        with urgent():
            while True:
                await asyncio.sleep(wait)
                wait = RETRY_SECONDS
                if not self.home_fence.is_open:
                    continue
                try:
                    await self._renewed()
                except KubeError as error:
                    log.info("the claim in the remote was not renewed: %s", error)
                    continue
                self.fence.extend(self._began + CLAIM_SECONDS)
                wait = max(self._began + RENEW_SECONDS - self._clock(), 0)

    async def _renewed(self) -> bool:
        """Renews it: True. Raises ClaimRefused, and KubeError where it is to be tried again."""
        if self._sent and await self._confirmed():
            return True
        for attempt in range(1, ATTEMPTS + 1):
            await self._note(self._record.for_renewal())
            try:
                await self._write(self._mine, self._record)
            except (Conflict, NotFound):
                if await self._confirmed():
                    return True
                if attempt == ATTEMPTS:
                    raise
            else:
                break
        return True

    async def _confirmed(self) -> bool:
        """Looks at the claim after a write that failed, or whose end is not known; whether a write
        of ours had succeeded. Raises ClaimRefused where the claim is not ours any more."""
        found = await self._get()
        if found is None:
            self._mine = None  # Somebody has deleted it: it is made again.
            return False
        if self._is_sent(found):
            return True
        # Ours, but for labels that somebody has set; or an earlier one, in a remote that was
        # restored from a backup.
        known = HomeRecord(self._mine.sequence if self._mine is not None else 0, self._record.ids)
        why = claim_record.objection(found, known)
        if not why:
            self._mine = found
        elif self.home_fence.is_open:
            # Home's election is ours all that while, so that no bridge of this home has written it.
            self.home_fence.close()
            await self._refuse(found, why)
        return False

    def _is_sent(self, found: Claim) -> bool:
        """Whether this is what a write of ours has left, whose answer did not come: then the claim
        is ours so."""
        began = self._sent.get(found.renewed)
        if began is None or found.id != self._id:
            return False
        self._mine, self._began = found, began
        # Those before it can succeed no more: they depend on an older version.
        self._sent.clear()
        return True

    def _home_changed(self, notes: Mapping[str, str]) -> None:
        """Raises ClaimRefused where home's record is older than it was."""
        record = claim_record.parse_record(notes.get(claim_record.ANNOTATION_RECORD))
        if self._mine is not None and record.sequence < self._mine.sequence:
            raise self._refusal(self._mine, "the record of this home went back while it was held")

    # -- to release ------------------------------------------------------------------------

    async def release(self) -> None:
        """Releases it if it is ours. Best effort: the next bridge waits a little, or not at all."""
        self._election.on_records_changed = None
        mine, self._mine = self._mine, None
        if mine is None or not self.home_fence.is_open:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                with urgent():
                    await self._request("PATCH", self.name, claim_record.release_patch(mine))
        except (KubeError, TimeoutError) as error:
            log.info("the claim in the remote was not released: %s", error)

    # -- refusals --------------------------------------------------------------------------

    async def _refuse(self, found: Claim, why: str) -> NoReturn:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_SECONDS):
                await self._note(self._record.for_rejection(), now=True)
        raise self._refusal(found, why)

    def _refusal(self, found: Claim, why: str) -> ClaimRejected:
        return ClaimRejected(
            f"remote: the claim on node {self._identity.node} (Lease "
            f"{LEASE_NAMESPACE}/{self.name}) is not this bridge's: {why}; "
            f"{claim_record.rejection_advice(found, self._identity)}"
        )

    # -- requests --------------------------------------------------------------------------

    async def _note(self, record: HomeRecord, *, now: bool = False) -> None:
        """Has home record it, before the remote does."""
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
            before, self._identity, self._me, record, renewed=renewed, seconds=CLAIM_SECONDS
        )
        self._sent[renewed] = began
        if before is None:
            made = await self._request("POST", "", body)
        else:
            made = await self._request("PATCH", self.name, body)
        self._mine = claim_record.parse_claim(made)
        self._began = began
        self._sent.clear()

    async def _request(self, method: str, name: str, body: Object | None = None) -> Object:
        client = self._remote if method == "GET" else self._fenced
        return await request_lease(client, method, name, seconds=REQUEST_SECONDS, body=body)
