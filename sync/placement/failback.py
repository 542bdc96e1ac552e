"""Returns pods to an earlier tier of their policy once there is room, by paced evictions.

- Every `LOOK_SECONDS` the placed pods of policies with ``failback`` are looked through for those
  that may return (`translators.placement.failback`).
- Of each policy, the pods of the last tier come first, and at most ``podsPerMinute`` are evicted,
  one after the other: the room of one is taken by its successor before the next is decided.
- The eviction API respects PodDisruptionBudgets. A pod that a budget protects is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NoReturn

from sync.kube.api_errors import KubeError, NotFound, Throttled
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.placement.home_state import HomeState
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, name_of, namespace_of, uid_of
from translators.placement.decision import Decision
from translators.placement.failback import first_return
from translators.placement.placement_policy import PlacementPolicy
from translators.timestamps import parse_time

log = logging.getLogger(__name__)

#: Seconds between two looks: returning is not urgent, and a remote that has just come back should
#: first have shown that it stays.
LOOK_SECONDS = 30.0
#: Seconds for which a pod that could not be evicted is left alone.
BLOCKED_SECONDS = 300.0
#: The reason of the Event.
RETURNED = "ReturnsToEarlierTier"


class Failback:
    """The task that evicts. ``pods`` returns the pods of the cache."""

    def __init__(
        self,
        home: KubeClient,
        state: HomeState,
        *,
        pods: Callable[[], Iterable[Object]],
        events: EventRecorder,
        now: Callable[[], str],
    ) -> None:
        self._home = home
        self._state = state
        self._pods = pods
        self._events = events
        self._now = now
        # By policy, when the next pod may be evicted; by UID, until when a pod is left alone.
        self._next: dict[str, float] = {}
        self._blocked: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Evicts pods until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Evicts at most one pod of each policy whose time has come."""
        loop = asyncio.get_running_loop()
        for policy in [*self._state.policies.values()]:
            if policy.failback_per_minute is None or loop.time() < self._next.get(policy.name, 0.0):
                continue
            if (found := self._first(policy)) is not None and await self._evict(policy, *found):
                self._next[policy.name] = loop.time() + 60.0 / policy.failback_per_minute

    def _first(self, policy: PlacementPolicy) -> tuple[Object, Decision] | None:
        """The pod that returns next."""
        clock = asyncio.get_running_loop().time()
        self._blocked = {uid: end for uid, end in self._blocked.items() if end > clock}
        return first_return(
            (it for it in self._pods() if uid_of(it) not in self._blocked),
            policy,
            self._state.room(),
            counts=self._state.counts(policy.name),
            now=parse_time(self._now()),
        )

    async def _evict(self, policy: PlacementPolicy, pod: Object, better: Decision) -> bool:
        """Evicts the pod; False if it stays."""
        name, namespace = name_of(pod), namespace_of(pod)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            # The pod of this name that was looked at.
            "deleteOptions": {"preconditions": {"uid": uid_of(pod)}},
        }
        path = PODS.path(name, namespace=namespace, subresource="eviction")
        fields = name_fields("Pod", name, namespace=namespace, cluster="home")
        try:
            await self._home.request("POST", path, body=body, retry_on_throttle=False)
        except NotFound:
            return False
        except KubeError as error:
            self._blocked[uid_of(pod)] = asyncio.get_running_loop().time() + BLOCKED_SECONDS
            level = logging.DEBUG if isinstance(error, Throttled) else logging.WARNING
            log.log(level, "pod %s/%s: cannot return: %s", namespace, name, error, extra=fields)
            return False
        message = f"tier {better.tier} of policy {policy.name} has room again"
        self._events.normal(pod, RETURNED, message)
        log.info("pod %s/%s: evicted, because %s", namespace, name, message, extra=fields)
        return True
