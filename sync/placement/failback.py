"""Returns pods to an earlier tier of their policy once there is room, by paced evictions.

- Every `LOOK_SECONDS` the placed pods of policies with ``failback`` are looked through for those
  that may return (`translators.placement.failback`), and until they are all back, again at the
  policy's pace.
- Of each policy, the pods of the last tier come first, and at most ``podsPerMinute`` are evicted,
  one after the other. The room of one is reserved until its successor has been placed.
- The eviction API respects PodDisruptionBudgets. A pod that a budget protects is tried again later,
  and delays no pod of another controller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from sync.kube.client import KubeClient
from sync.placement.eviction import evict
from sync.placement.home_state import HomeState
from sync.runtime.event_recorder import EventRecorder
from translators.object_accessors import Object, controller_of, uid_of
from translators.placement import placed_pod
from translators.placement.failback import PossibleReturn, possible_returns, with_pod
from translators.placement.placement_policy import PlacementPolicy
from translators.timestamps import parse_time

#: Seconds between two looks while no pod returns: it is not urgent.
LOOK_SECONDS = 30.0
#: Seconds for which a pod that could not be evicted is left alone.
BLOCKED_SECONDS = 300.0
#: Seconds after the end of an evicted pod for which its successor has room: controllers create it
#: at once.
SUCCESSOR_SECONDS = 30.0
#: The reason of the Event.
RETURNED = "ReturnsToEarlierTier"


@dataclass(slots=True)
class _Leaving:
    """An evicted pod whose successor has not been placed."""

    policy: str
    returning: PossibleReturn
    known: set[str]
    """The UIDs of pods of its controller that are not its successor."""
    ended_at: float | None = None


class Failback:
    """The task that evicts. ``pods`` returns the pods of the cache, ``refused`` the candidates
    to which a pod must not return, with the reason; ``evicted`` counts (`PlacementCounters`)."""

    def __init__(
        self,
        home: KubeClient,
        state: HomeState,
        *,
        pods: Callable[[], Iterable[Object]],
        refused: Callable[[Object], Mapping[str, str]],
        events: EventRecorder,
        now: Callable[[], str],
        evicted: Counter[tuple[str, str]],
    ) -> None:
        self._home = home
        self._state = state
        self._pods = pods
        self._refused = refused
        self._events = events
        self._now = now
        self._evicted = evicted
        # By policy, when the next pod may be evicted; by UID, until when a pod is left alone.
        self._next: dict[str, float] = {}
        self._blocked: dict[str, float] = {}
        self._leaving: list[_Leaving] = []

    async def run(self) -> NoReturn:
        """Evicts pods until cancelled."""
        while True:
            now = asyncio.get_running_loop().time()
            due = [it - now for it in self._next.values() if it > now]
            await asyncio.sleep(min((LOOK_SECONDS, *due)))
            await self.look()

    async def look(self) -> None:
        """Evicts at most one pod of each policy whose time has come."""
        loop = asyncio.get_running_loop()
        self._blocked = {uid: end for uid, end in self._blocked.items() if end > loop.time()}
        self._forget_successors(loop.time())
        for policy in [*self._state.policies.values()]:
            if policy.failback_per_minute is None or loop.time() < self._next.get(policy.name, 0.0):
                continue
            if await self._return_one(policy):
                self._next[policy.name] = loop.time() + 60.0 / policy.failback_per_minute

    async def _return_one(self, policy: PlacementPolicy) -> bool:
        """Evicts the first pod of the policy that returns; False if none does."""
        room, counts = self._state.room(), Counter(self._state.counts(policy.name))
        for it in self._leaving:
            room = with_pod(room, it.returning.successor, it.returning.choice)
            counts[it.returning.choice] += it.policy == policy.name
        protected: set[str] = set()
        for found in possible_returns(
            (it for it in self._pods() if uid_of(it) not in self._blocked),
            policy,
            room,
            counts=counts,
            now=parse_time(self._now()),
            refused=self._refused,
        ):
            controller = _controller(found.pod)
            if controller in protected:
                continue
            known = {uid_of(it) for it in self._pods() if _controller(it) == controller}
            if await self._evict(policy, found):
                self._leaving.append(_Leaving(policy.name, found, known))
                return True
            protected.add(controller)
        return False

    def _forget_successors(self, now: float) -> None:
        """Forgets the evicted pods whose successors have been placed, or will not come."""
        if not self._leaving:
            return
        present = {uid_of(it) for it in self._pods()}
        placed = {
            uid_of(it): _controller(it)
            for it in self._pods()
            if not placed_pod.has_gate(it) and controller_of(it)
        }
        for leaving in [*self._leaving]:
            new = (uid for uid, its in placed.items() if its == _controller(leaving.returning.pod))
            successor = next((uid for uid in new if uid not in leaving.known), None)
            if leaving.ended_at is None and uid_of(leaving.returning.pod) not in present:
                leaving.ended_at = now
            ended = leaving.ended_at is not None and now >= leaving.ended_at + SUCCESSOR_SECONDS
            if successor is None and not ended:
                continue
            self._leaving.remove(leaving)
            if successor is not None:
                for it in self._leaving:
                    it.known.add(successor)  # It succeeds one pod.

    async def _evict(self, policy: PlacementPolicy, found: PossibleReturn) -> bool:
        """Evicts the pod; False if it stays."""
        message = f"tier {found.tier} of policy {policy.name} has room again"
        evicted = await evict(self._home, found.pod, message)
        if evicted is not None:
            self._evicted["return", "done" if evicted else "blocked"] += 1
        if evicted:
            self._events.normal(found.pod, RETURNED, message)
        elif evicted is False:
            until = asyncio.get_running_loop().time() + BLOCKED_SECONDS
            self._blocked[uid_of(found.pod)] = until
        return bool(evicted)


def _controller(pod: Object) -> str:
    """The UID of the pod's controller; "" without one."""
    return str((controller_of(pod) or {}).get("uid") or "")
