"""Places the pods that wait behind the gate `cluster-bridge.io/placement`.

- A key is a gated pod. Namespaces take turns (`sync.runtime.workqueue`), and a pod that fits
  nowhere costs no more than its decision: it waits for a change of the room, not for a time.
- Pods that differ in nothing that decides are decided once for each state of the room, so that many
  unplaceable pods of one kind cost as much as one.
- A decision reserves the room before the pod is written, so that two pods never get the same.
- The write has the pod's resource version as its precondition: two placers, or a placer and a
  bridge that opens the gate, do not overwrite each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from sync.base.resource_version import version_of
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import Conflict, Forbidden, NotFound
from sync.kube.api_resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PLACEMENT_POLICIES,
    PODS,
)
from sync.kube.client import KubeClient
from sync.placement.failback import Failback
from sync.placement.home_state import HomeState, slim_pod
from sync.placement.refusals import Refusals
from sync.placement.unbound_pods import UnboundPods
from sync.runtime.controller import Controller
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields
from translators.explain import persistent_volume_claims
from translators.explain.persistent_volume_claims import PodStorage
from translators.fit import published_room
from translators.merge_patch import merge_patch
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.offload_admission_patch import ANNOTATION_NODE_SELECTOR
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision, decide, fingerprint
from translators.placement.offload_limits import excluded_by_offload
from translators.placement.placement_policy import PlacementPolicy, policy_for
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

    def __init__(self, home: KubeClient, *, now: Callable[[], str], identity: str) -> None:
        self._home = home
        self._now = now
        self.state = HomeState()
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
        )
        self.unbound = UnboundPods(
            home, self.state, pods=lambda: self.pods.store, events=self.events
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
        self._waiting: dict[Key, None] = {}
        self._room_changed = asyncio.Event()
        # Decisions of the current state of the room that found no place.
        self._without_place: dict[tuple[object, ...], Decision] = {}
        self._announced: dict[str, float] = {}
        self.nodes.on_change(self.state.node_changed)
        self.pods.on_change(self._pod_changed)
        self.policies.on_change(self.state.policy_changed)
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
        return len(self._waiting)

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
        self._room_may_have_changed()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run(), name="placement")
            group.create_task(self.events.run(), name="placement-events")
            group.create_task(self._retry_after_changes(), name="placement-room")
            group.create_task(self.failback.run(), name="placement-failback")
            group.create_task(self.unbound.run(), name="placement-unbound")

    # -- handlers ----------------------------------------------------------------------

    def _room_may_have_changed(self) -> None:
        self._room_changed.set()

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        self.state.pod_changed(old, new)
        if self._refusals.pod_changed(old, new):
            self._without_place.clear()
        if new is not None and placed_pod.has_gate(new) and "usage" not in new:
            self._waiting[key] = None
            self.controller.queue.add(key)
        elif key in self._waiting:
            del self._waiting[key]
            self._announced.pop(uid_of(new or old or {}), None)

    async def _retry_after_changes(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # At the end of this time pods need no longer wait for the room of a remote.
                async with asyncio.timeout(self.state.seconds_until_not_awaited()):
                    await self._room_changed.wait()
            await asyncio.sleep(COLLECT_SECONDS)
            self._room_changed.clear()
            self._without_place.clear()
            for key in self._waiting:
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
            await self._write(pod, placed_pod.released(pod, None, "no policy is for the pod"))
            return
        remaining = self._seconds_to_wait(pod, policy)
        if remaining == 0:
            message = f"no tier of policy {policy.name} had room within maxWait"
            self.events.warn(pod, RELEASED, f"{message}; the scheduler decides among all tiers")
            await self._write(pod, placed_pod.released(pod, policy, message))
            return
        refused, forgotten = self._refusals.for_pod(pod, self._virtual_nodes())
        blocked = {**refused, **self._excluded_by_offload(pod)}
        decision = self._decide(pod, policy, blocked)
        if decision.choice is not None and (by_volumes := await self._blocked_by_volumes(pod)):
            if self.pods.store.get(key) is not pod:
                return  # The change has queued the key.
            decision = self._decide(pod, policy, {**by_volumes, **blocked})
        if decision.choice is None:
            self._announce(pod, decision)
            due = [it for it in (remaining, forgotten) if it is not None]
            if due:
                self.controller.queue.add_after(key, min(due) + 0.1)
            return
        place = "home" if decision.choice == HOME else f"node {decision.choice}"
        if await self._write(pod, placed_pod.placed(pod, decision)):
            message = f"{place}, tier {decision.tier} of policy {policy.name}: {decision.summary}"
            self.events.normal(pod, PLACED, message)
            log.info(
                "pod %s: placed: %s (policy %s)",
                key,
                place,
                policy.name,
                extra=name_fields("Pod", str(key), cluster="home"),
            )

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
        created = metadata(pod).get("creationTimestamp")
        if policy.max_wait is None or not created:
            return None
        age = (parse_time(self._now()) - parse_time(created)).total_seconds()
        return max(0.0, policy.max_wait - age)

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

    # -- volumes ---------------------------------------------------------------------------

    async def _blocked_by_volumes(self, pod: Object) -> dict[str, str]:
        """The candidates that cannot mount the pod's bound volumes."""
        names = set(persistent_volume_claims.claim_names(pod).values())
        if not names:
            return {}
        storage = await self._read_storage(namespace_of(pod), names)

        def failure(node: Object) -> str:
            failures = persistent_volume_claims.volume_binding_failures(pod, node, storage)
            return next((it.message for it in failures), "")

        found = {name_of(it): failure(it) for it in self.state.virtual_nodes()}
        at_home = [failure(it) for it in self.state.home_nodes()]
        if at_home and all(at_home):
            found[HOME] = at_home[0]
        return {candidate: text for candidate, text in found.items() if text}

    async def _read_storage(self, namespace: str, names: set[str]) -> PodStorage:
        claims: dict[str, Object | None] = {}
        volumes: dict[str, Object | None] = {}
        try:
            for name in names:
                found = await self._home.find(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
                claims[name] = found
                if volume := _volume_name(found):
                    volumes[volume] = await self._home.find(PERSISTENT_VOLUMES, volume)
        except Forbidden as error:
            log.debug("home: volumes do not count: %s", error)
            return PodStorage()
        # Unbound ones do not limit the choice: they are provisioned where the pod goes.
        bound = {name: it for name, it in claims.items() if _volume_name(it)}
        return PodStorage(claims=bound, volumes=volumes)


def _volume_name(claim: Object | None) -> str:
    return str(((claim or {}).get("spec") or {}).get("volumeName") or "")
