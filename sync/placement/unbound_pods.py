"""Evicts placed pods that home's scheduler cannot bind, because their virtual node is lost.

A pod that has been placed selects its virtual node for ever. Home's controllers evict pods from
lost nodes only once they are bound; one that is not would wait as long as the remote is away, or
for ever if the node was removed. Such a pod has not run, so that its eviction costs nothing: its
controller creates another, which is placed elsewhere.

Pods of Jobs stay, because the Job would count a failure, and pods without a controller, because
nothing would replace them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn

from sync.kube.client import KubeClient
from sync.placement.eviction import evict
from sync.placement.home_state import HomeState
from sync.runtime.event_recorder import EventRecorder
from translators.object_accessors import Object, condition_of, is_deleting, name_of, uid_of
from translators.placement import placed_pod
from translators.placement.decision import HOME
from translators.placement.failback import is_replaced

#: Seconds between two looks.
LOOK_SECONDS = 15.0
#: Seconds for which a pod waits for its lost node: longer than a glitch.
LOST_SECONDS = 60.0
#: The reason of the Event.
NODE_LOST = "PlacedNodeLost"


class UnboundPods:
    """The task that evicts. ``pods`` returns the pods of the cache; ``evicted`` counts
    (`PlacementCounters`)."""

    def __init__(
        self,
        home: KubeClient,
        state: HomeState,
        *,
        pods: Callable[[], Iterable[Object]],
        events: EventRecorder,
        evicted: Counter[tuple[str, str]],
    ) -> None:
        self._home = home
        self._state = state
        self._pods = pods
        self._events = events
        self._evicted = evicted
        # By UID, since when a pod waits for a lost node (the loop's time).
        self._since: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Evicts pods until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Evicts the pods that have waited for long."""
        now = asyncio.get_running_loop().time()
        ready = {name_of(it) for it in self._state.virtual_nodes() if _is_ready(it)}
        waiting = [it for it in self._pods() if _waits_for_other_than(it, ready)]
        self._since = {uid_of(it): self._since.get(uid_of(it), now) for it in waiting}
        for pod in waiting:
            if now >= self._since[uid_of(pod)] + LOST_SECONDS:
                await self._evict(pod)

    async def _evict(self, pod: Object) -> None:
        record = placed_pod.read_record(pod)
        reason = f"its virtual node {record[1] if record else ''} was lost before it was bound"
        evicted = await evict(self._home, pod, reason)
        if evicted is not None:
            self._evicted["node-lost", "done" if evicted else "blocked"] += 1
        if evicted:
            self._events.warn(pod, NODE_LOST, f"evicted, because {reason}")


def _is_ready(node: Object) -> bool:
    return condition_of(node, "Ready").get("status") == "True"


def _waits_for_other_than(pod: Object, nodes: set[str]) -> bool:
    """Whether the pod was placed on a virtual node that is none of these, and is not bound."""
    if (pod.get("spec") or {}).get("nodeName") or not is_replaced(pod) or is_deleting(pod):
        return False
    record = placed_pod.read_record(pod)
    return (
        record is not None
        and record[1] != HOME
        and record[1] not in nodes
        and not placed_pod.has_gate(pod)
    )
