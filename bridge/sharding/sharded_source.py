"""The source of one replica: the share of the remotes of another source that this replica runs.

Remotes of one home are shared if there are at least two with a name (`Membership`): a replica looks
like another's only by the nodes' names, which are unique at home. Every other remote runs in each
replica, which serves it or stands by, as with `bridge join`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

from bridge.base.join_settings import Part
from bridge.election.election_lease import Candidate
from bridge.fleet.desired_state import DesiredState, FleetSource, InvalidState, by_key
from bridge.fleet.fleet_report import FleetReport, Standing
from bridge.sharding import membership
from bridge.sharding.membership import Membership
from bridge.sharding.membership_record import Member
from bridge.sharding.recent_failures import RecentFailures
from bridge.sharding.shard_plan import Share, plan_share
from sync.base.background_task import background_task
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.leader_write_fence import clock

#: Seconds after which the takeover of a remote no longer delays the next ones.
STALLED_SECONDS = 30.0


@dataclass(slots=True)
class _Home:
    """The shared remotes of one home."""

    membership: Membership
    task: asyncio.Task[None]
    keys: frozenset[str] = frozenset()
    share: Share = field(default_factory=lambda: Share(frozenset()))
    since: dict[str, float] = field(default_factory=dict)
    """When this replica started each remote that it runs."""


class ShardedSource:
    """Yields this replica's share of ``source``. `follow_replicas` must run while `states` is
    read."""

    def __init__(
        self,
        source: FleetSource,
        report: FleetReport,
        *,
        notify: Callable[[str], None],
        stop: asyncio.Event,
    ) -> None:
        self.name = source.name
        self.ends_with_last_node = source.ends_with_last_node
        self._source = source
        self._report = report
        self._notify = notify
        self._stop = stop
        candidate = Candidate.local()
        self._own = hashlib.sha256(candidate.identity.encode()).hexdigest()[:16]
        self._display_name = candidate.display_name
        self._homes: dict[KubeconfigRef, _Home] = {}
        self._failures = RecentFailures()
        self._desired: DesiredState | None = None
        self._emitted: DesiredState | None = None
        self._changed = asyncio.Event()
        self._states: asyncio.Queue[DesiredState | InvalidState | Exception] = asyncio.Queue()
        self._shown: tuple[int, int, int] | None = None

    async def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        """`FleetSource.states`. Raises a defect of the source."""
        while True:
            state = await self._states.get()
            if isinstance(state, Exception):
                raise state
            yield state

    async def run(self, report: FleetReport) -> None:
        """`FleetSource.run`."""
        await self._source.run(report)

    async def follow_replicas(self) -> None:
        """Follows the source and the other replicas until cancelled; withdraws once ``stop`` is
        set."""
        async with (
            background_task(self._follow(), name="shard-source"),
            asyncio.TaskGroup() as group,
        ):
            try:
                while not self._stop.is_set():
                    self._update_homes(group)
                    self._emit()
                    await self._next_look()
                await asyncio.gather(*(it.membership.withdraw() for it in self._homes.values()))
            finally:
                for it in self._homes.values():
                    it.task.cancel()

    async def _follow(self) -> None:
        try:
            async for state in self._source.states():
                if isinstance(state, InvalidState):
                    self._states.put_nowait(state)
                    continue
                self._desired, self._emitted = state, None
                self._changed.set()
        except Exception as error:  # noqa: BLE001  # the supervisor reports it, and remotes continue
            self._states.put_nowait(error)

    async def _next_look(self) -> None:
        """Waits for a change, or for a tick; at once when the replica stops."""
        waiting = [
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._stop.wait()),
        ]
        try:
            await asyncio.wait(
                waiting, timeout=membership.TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for it in waiting:
                it.cancel()
        self._changed.clear()

    # -- shares ----------------------------------------------------------------------------

    def _update_homes(self, group: asyncio.TaskGroup) -> None:
        """Follows each home that has remotes to share, and no other."""
        if self._desired is None:
            return
        shared: dict[KubeconfigRef, set[str]] = {}
        for key, part in by_key(self._desired.parts).items():
            if part.settings.name == key:
                shared.setdefault(part.settings.home, set()).add(key)
        shared = {home: keys for home, keys in shared.items() if len(keys) > 1}
        for home in [it for it in self._homes if it not in shared]:
            ended = self._homes.pop(home)
            group.create_task(_end(ended), name="shards-end")
        for home, keys in shared.items():
            if home not in self._homes:
                self._homes[home] = self._new_home(home, group)
            self._homes[home].keys = frozenset(keys)

    def _new_home(self, home: KubeconfigRef, group: asyncio.TaskGroup) -> _Home:
        followed = Membership(
            home,
            self._own,
            lambda: self._describe(home),
            notify=self._notify,
            on_change=self._changed.set,
            on_return=lambda: self._forget_failures(home),
        )
        return _Home(followed, group.create_task(followed.run(), name="shards"))

    def _describe(self, home: KubeconfigRef) -> Member:
        keys = self._homes[home].keys if home in self._homes else frozenset()
        return Member(self._display_name, {key: self._standing(key) for key in keys})

    def _standing(self, key: str) -> Standing:
        """The standing of this replica for a remote; it remembers a failure for a while."""
        return self._failures.standing(key, self._report.standing(key), now=clock())

    def _forget_failures(self, home: KubeconfigRef) -> None:
        if home in self._homes:
            self._failures.forget(self._homes[home].keys)

    def _emit(self) -> None:
        """Passes on what this replica should run, if that has changed."""
        desired = self._desired
        if desired is None or not all(it.membership.is_settled for it in self._homes.values()):
            return
        withheld: dict[str, str] = {}
        for home in self._homes.values():
            self._plan(home)
            withheld.update(home.share.elsewhere)
        parts: Mapping[str, Part] = by_key(desired.parts)
        state = replace(
            desired,
            parts=tuple(part for key, part in parts.items() if key not in withheld),
            elsewhere={key: (parts[key].settings.home, it) for key, it in withheld.items()},
            warnings=desired.warnings if self._emitted is None else (),
            is_read=self._emitted is None,
        )
        if self._emitted is not None and (state.parts, state.elsewhere) == (
            self._emitted.parts,
            self._emitted.elsewhere,
        ):
            return
        self._emitted = state
        self._states.put_nowait(state)

    def _plan(self, home: _Home) -> None:
        now, members = clock(), home.membership.members()
        running = home.share.run & home.keys
        stalled = {key for key in running if now - home.since.get(key, now) > STALLED_SECONDS}
        home.share = plan_share(self._own, members, running, stalled=stalled)
        home.since = {key: home.since.get(key, now) for key in home.share.run}
        shown = len(members), len(home.share.run), len(home.keys)
        if len(members) > 1 or self._shown is not None:
            self._show(shown)

    def _show(self, shown: tuple[int, int, int]) -> None:
        if self._shown != shown:
            replicas, own, total = self._shown = shown
            self._notify(
                f"home: {replicas} replicas share {total} remotes; {own} of them run in this one"
            )


async def _end(home: _Home) -> None:
    """Stops following a home."""
    await home.membership.withdraw()
    home.task.cancel()
