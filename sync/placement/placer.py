"""Places the pods that wait behind the gate `cluster-bridge.io/placement`.

- A key is a gated pod. Namespaces take turns (`sync.runtime.workqueue`), and a pod that fits
  nowhere costs no more than its decision: it waits for a change of the room, not for a time.
- Pods that differ in nothing that decides are decided once for each state of the room, so that many
  unplaceable pods of one kind cost as much as one.
- A decision reserves the room before the pod is written, so that two pods never get the same.
- The write has the pod's resource version as its precondition: two placers, or a placer and a
  bridge that opens the gate, do not overwrite each other.
- What the placer does is counted (`counters`) and shown in the policies' status (`status`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from sync.base.resource_version import version_of
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import Conflict, NotFound
from sync.kube.api_resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PLACEMENT_POLICIES,
    PODS,
)
from sync.kube.client import KubeClient
from sync.placement.bound_volumes import blocked_by_volumes
from sync.placement.failback import Failback
from sync.placement.home_state import HomeState, slim_pod
from sync.placement.placement_counters import PlacementCounters
from sync.placement.policy_status_writer import PolicyStatusWriter
from sync.placement.refusals import Refusals
from sync.placement.unbound_pods import UnboundPods
from sync.placement.waiting_pods import WaitingPods
from sync.runtime.controller import Controller
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields
from translators.fit import published_room
from translators.merge_patch import merge_patch
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.offload_admission_patch import ANNOTATION_NODE_SELECTOR
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision, decide, fingerprint
from translators.placement.offload_limits import excluded_by_offload
from translators.placement.placement_policy import (
    ANNOTATION_PLACEMENT,
    PlacementPolicy,
    policy_for,
)
from translators.placement.wait_reason import wait_reason
from translators.timestamps import parse_time

log = logging.getLogger(__name__)

#: Seconds for which changes of the room are collected before waiting pods are decided again.
COLLECT_SECONDS = 0.3
#: Least seconds between two Events that one pod waits.
EVENT_SECONDS = 300.0
#: Decisions that are kept for equal pods.
_MAX_DECISIONS = 10_000
#: A patch removes the list with the last gate.
_GATES = frozenset({"schedulingGates"})
#: Reasons of the Events.
PLACED, WAITING, RELEASED = "Placed", "WaitingForPlacement", "PlacementTimedOut"


def _slim_namespace(namespace: Object) -> Object:
    meta = metadata(namespace)
    kept = ("name", "uid", "resourceVersion", "labels")
    slim: Object = {key: meta[key] for key in kept if key in meta}
    if selector := (meta.get("annotations") or {}).get(ANNOTATION_NODE_SELECTOR):
        slim["annotations"] = {ANNOTATION_NODE_SELECTOR: selector}
    return {"metadata": slim}


class Placer:
    """Home's placer. `run` works until cancelled; ``now`` is the time in RFC 3339."""

    def __init__(
        self,
        home: KubeClient,
        *,
        now: Callable[[], str],
        identity: str,
        counters: PlacementCounters | None = None,
    ) -> None:
        self._home = home
        self._now = now
        self.counters = counters or PlacementCounters()
        self.state = HomeState()
        self.waiting_pods = WaitingPods()
        self._refusals = Refusals()
        self.events = EventRecorder(home, node=identity, now=now)
        self.pods = Informer(home, PODS, slim=slim_pod)
        self.failback = Failback(
            home,
            self.state,
            pods=lambda: self.pods.store,
            refused=self._refused_returns,
            events=self.events,
            now=now,
            evicted=self.counters.evicted,
        )
        self.unbound = UnboundPods(
            home,
            self.state,
            pods=lambda: self.pods.store,
            events=self.events,
            evicted=self.counters.evicted,
        )
        self.nodes = Informer(home, NODES)
        self.policies = Informer(home, PLACEMENT_POLICIES)
        self.namespaces = Informer(home, NAMESPACES, slim=_slim_namespace)
        self.rooms = Informer(
            home,
            CONFIG_MAPS,
            namespace=published_room.NAMESPACE,
            labels=published_room.LABEL_ROOM,
        )
        self.controller: Controller[Key] = Controller(
            "placement", self._reconcile, workers=8, kind="Pod"
        )
        self.status = PolicyStatusWriter(
            home, self.policies, state=self.state, waiting=self.waiting_pods, now=now
        )
        self._works = False
        self._room_changed = asyncio.Event()
        # Decisions of the current state of the room that found no place.
        self._without_place: dict[tuple[object, ...], Decision] = {}
        self._announced: dict[str, float] = {}
        self.nodes.on_change(self.state.node_changed)
        self.nodes.on_change(self.status.node_changed)
        self.pods.on_change(self._pod_changed)
        self.policies.on_change(self.state.policy_changed)
        self.policies.on_change(self.status.policy_changed)
        self.rooms.on_change(self.state.room_changed)
        self.namespaces.on_change(lambda _, __: self._room_may_have_changed())
        self.state.on_change(self._room_may_have_changed)

    @property
    def informers(self) -> Sequence[Informer]:
        """All informers."""
        return [self.nodes, self.policies, self.namespaces, self.rooms, self.pods]

    @property
    def waiting(self) -> int:
        """How many pods wait behind the gate."""
        return len(self.waiting_pods)

    def oldest_wait(self) -> float:
        """Seconds since the creation of the pod that has waited the longest; 0 without one."""
        pods = (self.pods.store.get(it) for it in self.waiting_pods)
        return max((self._age(it) for it in pods if it is not None), default=0.0)

    async def watch(self) -> None:
        """Runs the informers until cancelled; also on a standby replica."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers:
                group.create_task(informer.run(), name=f"watch-{informer.resource}")

    async def synced(self) -> None:
        """Waits until all caches are filled."""
        for informer in self.informers:
            await informer.synced.wait()

    async def work(self) -> None:
        """Places pods until cancelled. `watch` must run."""
        await self.synced()
        self._works = True
        self._room_may_have_changed()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run(), name="placement")
            group.create_task(self.events.run(), name="placement-events")
            group.create_task(self._retry_after_changes(), name="placement-room")
            group.create_task(self.failback.run(), name="placement-failback")
            group.create_task(self.unbound.run(), name="placement-unbound")
            group.create_task(self.status.run(), name="placement-status")

    # -- handlers ----------------------------------------------------------------------

    def _room_may_have_changed(self) -> None:
        self._room_changed.set()

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        self.state.pod_changed(old, new)
        if self._refusals.pod_changed(old, new):
            self._without_place.clear()
            node = str((new or {})["spec"]["nodeName"])
            # The record that names the node is an annotation, which any user could have written.
            if self._works and node in self._virtual_nodes():
                self.counters.refused.add(node)
        if new is not None and placed_pod.has_gate(new) and "usage" not in new:
            self.waiting_pods.add(key)
            self.controller.queue.add(key)
        elif key in self.waiting_pods:
            self.status.pods_changed(self.waiting_pods.remove(key))
            self._announced.pop(uid_of(new or old or {}), None)
        self._time_binding(uid_of(new or old or {}), new)
        if _counted_by(old) != _counted_by(new):
            for pod in (old, new):
                if pod is not None and (record := placed_pod.read_record(pod)) is not None:
                    self.status.pods_changed(record[0])

    def _time_binding(self, uid: str, pod: Object | None) -> None:
        self.counters.pod_changed(
            uid,
            is_bound=bool(((pod or {}).get("spec") or {}).get("nodeName")),
            is_gone=pod is None or bool(metadata(pod).get("deletionTimestamp")),
            at=asyncio.get_running_loop().time(),
        )

    async def _retry_after_changes(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # At the end of this time pods need no longer wait for the room of a remote.
                async with asyncio.timeout(self.state.seconds_until_not_awaited()):
                    await self._room_changed.wait()
            await asyncio.sleep(COLLECT_SECONDS)
            self._room_changed.clear()
            self._without_place.clear()
            for key in self.waiting_pods:
                self.controller.queue.add(key)

    # -- one pod ---------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        pod = self.pods.store.get(key)
        if pod is None or not placed_pod.has_gate(pod) or metadata(pod).get("deletionTimestamp"):
            return
        policy = self.policy_for(pod)
        if policy is None:
            # Admission may have seen a new policy before this cache did.
            await self.policies.refresh()
            policy = self.policy_for(pod)
        if self.pods.store.get(key) is not pod:
            return  # The change has queued the key.
        if policy is None:
            await self._release(pod, None, "no policy is for the pod", "no-policy")
            return
        remaining = self._seconds_to_wait(pod, policy)
        if remaining == 0:
            message = f"no tier of policy {policy.name} had room within maxWait"
            self.events.warn(pod, RELEASED, f"{message}; the scheduler decides among all tiers")
            await self._release(pod, policy, message, "max-wait")
            return
        refused, forgotten = self._refusals.for_pod(pod, self._virtual_nodes())
        blocked = {**refused, **self._excluded_by_offload(pod)}
        decision = self._decide(pod, policy, blocked)
        if decision.choice is not None and (
            by_volumes := await blocked_by_volumes(self._home, self.state, pod)
        ):
            if self.pods.store.get(key) is not pod:
                return  # The change has queued the key.
            blocked = {**by_volumes, **blocked}
            decision = self._decide(pod, policy, blocked)
        if decision.choice is not None:
            await self._place(pod, decision, decision.choice)
            return
        self.waiting_pods.decide(
            key, policy.name, wait_reason(decision, refused=refused, blocked=blocked)
        )
        self.status.pods_changed(policy.name)
        self._announce(pod, decision)
        due = [it for it in (remaining, forgotten) if it is not None]
        if due:
            self.controller.queue.add_after(key, min(due) + 0.1)

    async def _place(self, pod: Object, decision: Decision, choice: str) -> None:
        key, began = key_of(pod), asyncio.get_running_loop().time()
        if not await self._write(pod, placed_pod.placed(pod, decision)):
            return
        place = "home" if choice == HOME else f"node {choice}"
        message = f"{place}, tier {decision.tier} of policy {decision.policy}: {decision.summary}"
        self.events.normal(pod, PLACED, message)
        self.counters.pod_placed(
            uid_of(pod), decision.policy, choice, waited=self._age(pod), at=began
        )
        self._time_binding(uid_of(pod), self.pods.store.get(key))
        log.info(
            "pod %s: placed: %s (policy %s)",
            key,
            place,
            decision.policy,
            extra=name_fields("Pod", str(key), cluster="home"),
        )

    async def _release(
        self, pod: Object, policy: PlacementPolicy | None, message: str, reason: str
    ) -> None:
        if await self._write(pod, placed_pod.released(pod, policy, message)):
            self.counters.released[reason] += 1

    def policy_for(self, pod: Object) -> PlacementPolicy | None:
        """The policy that applies to a pod; None if none does."""
        labels = metadata(self._namespace_of(pod)).get("labels") or {}
        return policy_for(pod, self.state.policies.values(), labels)

    def _namespace_of(self, pod: Object) -> Object:
        return self.namespaces.store.get(Key("", namespace_of(pod))) or {}

    def _excluded_by_offload(self, pod: Object) -> dict[str, str]:
        return excluded_by_offload(self._namespace_of(pod), self.state.virtual_nodes())

    def _decide(self, pod: Object, policy: PlacementPolicy, blocked: dict[str, str]) -> Decision:
        key = (policy.name, fingerprint(pod), frozenset(blocked.items()))
        if (known := self._without_place.get(key)) is not None:
            return known
        counts = self.state.counts(policy.name)
        found = decide(pod, policy, self.state.room(), counts=counts, blocked=blocked)
        if found.choice is None and len(self._without_place) < _MAX_DECISIONS:
            self._without_place[key] = found
        return found

    def _refused_returns(self, pod: Object) -> dict[str, str]:
        refused = self._refusals.for_return(pod, self._virtual_nodes())
        return {**refused, **self._excluded_by_offload(pod)}

    def _virtual_nodes(self) -> list[str]:
        return [name_of(it) for it in self.state.virtual_nodes()]

    def _seconds_to_wait(self, pod: Object, policy: PlacementPolicy) -> float | None:
        if policy.max_wait is None or not metadata(pod).get("creationTimestamp"):
            return None
        return max(0.0, policy.max_wait - self._age(pod))

    def _age(self, pod: Object) -> float:
        created = metadata(pod).get("creationTimestamp")
        if not created:
            return 0.0
        return (parse_time(self._now()) - parse_time(created)).total_seconds()

    async def _write(self, pod: Object, changed: Object) -> bool:
        """Writes the pod as decided; False if it changed meanwhile, which queues it again."""
        patch = merge_patch({"spec": pod["spec"]}, {"spec": changed["spec"]}, exact=_GATES)
        patch |= {"metadata": merge_patch(metadata(pod), metadata(changed))}
        patch["metadata"]["resourceVersion"] = version_of(pod)
        key = key_of(pod)
        # Reserved before the request, for the decisions that are made meanwhile.
        self.state.pod_changed(pod, changed)
        try:
            written = await self._home.patch(PODS, key.name, patch, namespace=key.namespace)
        except (Conflict, NotFound):
            self._unreserve(key, pod)
            return False
        except BaseException:
            self._unreserve(key, pod)
            raise
        self.pods.observe_write(written)
        return True

    def _unreserve(self, key: Key, pod: Object) -> None:
        current = self.pods.store.get(key)
        same = current is not None and uid_of(current) == uid_of(pod)
        self.state.pod_changed(pod, current if same else None)

    def _announce(self, pod: Object, decision: Decision) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._announced.get(uid_of(pod), -EVENT_SECONDS) >= EVENT_SECONDS:
            self._announced[uid_of(pod)] = now
            message = f"policy {decision.policy}: {decision.summary or 'no tier has a candidate'}"
            self.events.warn(pod, WAITING, message)


def _counted_by(pod: Object | None) -> object:
    """The fields that decide whether and where a policy counts the pod."""
    if pod is None:
        return None
    annotation = (metadata(pod).get("annotations") or {}).get(ANNOTATION_PLACEMENT)
    phase = (pod.get("status") or {}).get("phase")
    return annotation, placed_pod.has_gate(pod), phase in ("Succeeded", "Failed")
