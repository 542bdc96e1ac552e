"""Reconciles home's PVCs: `sync.storage.pvc_planner` decides, one write at a time, and
`sync.storage.pvc_executor` acts.

One key, a home PVC's namespace and name, stands for the PVC, its PersistentVolume, and the PVC in
the remote. All three are found by names that follow from the home PVC's UID, or from the volume's
handle, so that nothing has to be remembered.
"""

from __future__ import annotations

import asyncio

from sync.base.namespace_fair_cache import FairCache
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext, StorageInformers
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube.api_errors import Forbidden, Invalid, KubeError
from sync.kube.api_resources import EVENTS
from sync.runtime.controller import Controller
from sync.storage import pvc_planner
from sync.storage.provisioning_failures import ProvisioningFailures
from sync.storage.pvc_executor import PvcExecutor
from sync.storage.pvc_lookup import PvcLookup
from sync.storage.pvc_planner import REASON_FAILED, SKIPPABLE, Action, PvcState
from translators.mirror.event import MESSAGE_MAX
from translators.object_accessors import (
    HomeNamespace,
    Object,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import (
    has_home_uid,
    is_in_mapped_namespace,
    is_owned,
    is_owned_by_node,
    origin_of,
)
from translators.storage import remote_pvc
from translators.storage.identifiers import (
    ClaimKey,
    VolumeHandle,
    bound_volume,
    claim_of_volume,
    claims_of_pod,
    class_name,
    is_bound,
    is_unfinished,
    remote_claim_name,
    volume_handle,
    volume_name,
)
from translators.storage.pvc_resolution import Unresolved
from translators.storage.volume_state import VolumeSummary

#: PVCs reconciled at once.
WORKERS = 16
#: Selects the Events of the remote that are repeated at home: provisioning and expansion fail.
_WARNINGS = "involvedObject.kind=PersistentVolumeClaim,type=Warning"
#: Events of the remote about one PVC that are repeated while this process runs.
EVENTS_MAX = 20
_EVENT_METADATA = ("name", "namespace", "uid", "resourceVersion")
_EVENT_FIELDS = ("involvedObject", "reason")
#: Volumes that are summed up before the event loop runs other tasks.
VOLUMES_PER_BATCH = 200
#: Plans of one reconcile: a new PVC takes four, an expansion as many.
PLANS = 12


class PvcController:
    """The reconciler of PVCs."""

    def __init__(self, context: ControllerContext, storage: StorageInformers) -> None:
        self._policy = context.policy
        self._identity = context.identity
        self._home_pods = context.home_pods
        self.storage = storage
        self._lookup = PvcLookup(context, storage)
        self.controller: Controller[Key] = Controller(
            "pvcs", self._reconcile, workers=WORKERS, kind="PersistentVolumeClaim"
        )
        self._executor = PvcExecutor(context, storage, self.controller.queue)
        self._events = context.events
        self._remote_events = [
            Informer(context.remote, EVENTS, namespace=it, fields=_WARNINGS, slim=_slim_event)
            for it in context.policy.remote_namespaces or (None,)
        ]
        # How many Events were repeated, by the remote PVC's UID.
        self._repeated: FairCache[str, int] = FairCache()
        self._failures = ProvisioningFailures()

    @property
    def executor(self) -> PvcExecutor:
        """Counts what became of PVCs, for metrics."""
        return self._executor

    def pending_claims(self) -> int:
        """The number of home PVCs that this bridge is to provision and that are not Bound."""
        storage = self.storage
        return sum(
            not is_bound(it)
            and pvc_planner.is_to_provision(
                it, storage.home_classes.store.get(Key("", class_name(it))), self._policy
            )
            for it in storage.home_claims.store
        )

    async def summarize_volumes(self) -> VolumeSummary:
        """Home's PersistentVolumes with data in this remote. Other tasks run between batches."""
        summary = VolumeSummary(self._policy.remote_id, self._identity)
        for count, volume in enumerate(list(self.storage.home_volumes.store), start=1):
            summary.add(volume, self._lookup.remote_claim)
            if count % VOLUMES_PER_BATCH == 0:
                await asyncio.sleep(0)
        return summary

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        storage = self.storage
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(storage.home_claims, self.home_claim_changed),
                Watch(storage.home_volumes, self.home_volume_changed, replay=False),
                Watch(storage.home_classes, self.home_class_changed, replay=False),
                Watch(storage.remote_claims, self.remote_claim_changed),
                Watch(storage.remote_classes, self.remote_class_changed, replay=False),
                Watch(self._home_pods, self.home_pod_changed, replay=False),
                *self._snapshot_watches(),
                *(Watch(it, self.remote_event_changed, replay=False) for it in self._remote_events),
            ],
        )

    def home_claim_changed(self, old: Object | None, new: Object | None) -> None:
        claim = new or old or {}
        if new is None:
            self._executor.forget(uid_of(claim))
        elif is_bound(new) and (old is None or not is_bound(old)):
            self._executor.observe_bound(uid_of(claim))
        self.controller.queue.add(key_of(claim))

    def home_volume_changed(self, old: Object | None, new: Object | None) -> None:
        volume = new or old or {}
        claim = claim_of_volume(volume)
        if claim is not None and volume_handle(volume) is not None:
            self.controller.queue.add(Key(*claim))

    def home_class_changed(self, _: Object | None, new: Object | None) -> None:
        """Queues the unbound PVCs of a class that changed."""
        if new is not None:
            for claim in self.storage.home_claims.store.by_index("class", name_of(new)):
                self._queue_unbound(claim)

    def remote_claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the home PVC that a remote PVC was created for, and the one that has it now."""
        remote = new or old or {}
        if (origin := origin_of(remote)) is not None:
            self.controller.queue.add(Key(origin.namespace, origin.name))
        for volume in self._lookup.volumes_of(remote):
            self.home_volume_changed(None, volume)

    def remote_class_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues all unbound PVCs when the remote gets another class: they may have lacked it."""
        if old is not None or new is None:
            return
        for claim in self.storage.home_claims.store:
            self._queue_unbound(claim)

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the PVCs of a pod that was bound to this node, as by its ``nodeName``."""
        if old is None and new is not None:
            for claim in claims_of_pod(new):
                self.controller.queue.add(Key(*claim))

    def _snapshot_watches(self) -> list[Watch]:
        snapshots = self.storage.snapshots
        if snapshots is None:
            return []
        return [
            Watch(snapshots.home_snapshots, self.snapshot_changed, replay=False),
            Watch(snapshots.home_contents, replay=False),
        ]

    def snapshot_changed(self, _: Object | None, new: Object | None) -> None:
        """Queues the unbound PVCs that are to be restored from a VolumeSnapshot which is ready."""
        if new is None or not (new.get("status") or {}).get("readyToUse"):
            return
        key = ClaimKey(namespace_of(new), name_of(new))
        for claim in self.storage.home_claims.store.by_index("snapshot", key):
            self._queue_unbound(claim)

    def remote_event_changed(self, old: Object | None, new: Object | None) -> None:
        """Repeats a warning of the remote about a PVC on the home PVC, once for each message, and
        counts failures to provision it."""
        if new is None or self.controller.queue.is_paused:
            return
        involved = new.get("involvedObject") or {}
        key = Key(str(involved.get("namespace")), str(involved.get("name")))
        remote = self.storage.remote_claims.store.get(key)
        origin = origin_of(remote) if remote is not None else None
        if remote is None or origin is None or uid_of(remote) != involved.get("uid"):
            return
        home = self.storage.home_claims.store.get(Key(origin.namespace, origin.name))
        if home is None or not has_home_uid(remote, uid_of(home)):
            return
        message = new["message"]
        reason = str(new.get("reason") or REASON_FAILED)[:128]
        if reason == REASON_FAILED and is_unfinished(remote):
            self._failures.observe(remote, f"remote: {message}")
            self.controller.queue.add(key_of(home))
        count = self._repeated.get(uid_of(remote)) or 0
        is_new = old is None or old["message"] != message
        if is_new and count < EVENTS_MAX:
            self._repeated.put(key.namespace, uid_of(remote), count + 1)
            self._events.warn(home, reason, f"remote: {message}")

    def _queue_unbound(self, claim: Object) -> None:
        if not bound_volume(claim):
            self._executor.forget(uid_of(claim))
            self.controller.queue.add(key_of(claim))

    async def _reconcile(self, key: Key) -> None:
        # A write that is rejected, or that another client sets back, is tried again later and
        # delays no other one.
        rejected: dict[type[Action], KubeError] = {}
        delayed: set[type[Action]] = set()
        for _ in range(PLANS):
            state = self._state(key)
            skipped = rejected.keys() | delayed
            action = pvc_planner.plan_action(state, self._policy, skipped=skipped)
            if action is not None and (wait := self._executor.seconds_left(state, action)):
                self.controller.queue.add_after(key, wait)
                if not isinstance(action, SKIPPABLE):
                    break
                delayed.add(type(action))
                continue
            try:
                if action is None or not await self._executor.execute(state, action):
                    break
            except (Forbidden, Invalid) as error:
                if not isinstance(action, SKIPPABLE):
                    raise
                rejected[type(action)] = error
        for first in rejected.values():
            raise first

    def _state(self, key: Key) -> PvcState:
        storage = self.storage
        home = storage.home_claims.store.get(key)
        of_name = storage.remote_claims.store.by_index("origin", ClaimKey(*key))
        unfinished = [
            it
            for it in of_name
            if is_unfinished(it)
            and is_owned_by_node(it, self._identity)
            and is_in_mapped_namespace(it, self._identity)
            and not self._lookup.volumes_of(it)
        ]
        if home is None:
            return PvcState(None, unfinished=unfinished)
        volume = storage.home_volumes.store.get(
            Key("", bound_volume(home) or volume_name(uid_of(home)))
        )
        remote = self._remote_of(home, volume)
        return PvcState(
            home,
            volume=volume,
            remote=remote,
            unfinished=unfinished,
            home_class=storage.home_classes.store.get(Key("", class_name(home))),
            remote_classes=list(storage.remote_classes.store),
            source=self._source_of(home),
            failure=self._failures.lasting(remote) if remote is not None else "",
            has_pod=self._home_pods.store.has("claim", ClaimKey(*key)),
        )

    def _remote_of(self, home: Object, volume: Object | None) -> Object | None:
        handle = volume_handle(volume) if volume is not None else None
        if handle is not None:
            return self._lookup.remote_claim(handle)
        namespace = self._identity.remote_namespace(HomeNamespace(namespace_of(home)))
        handle = VolumeHandle(self._policy.remote_id, namespace, remote_claim_name(home))
        remote = self._lookup.remote_claim(handle)
        if remote is None or not has_home_uid(remote, uid_of(home)):
            return None
        return remote if is_owned(remote, self._identity) else None

    def _source_of(self, home: Object) -> str | Unresolved:
        """The remote object of which the home PVC is a clone; "" if it is none."""
        namespace = namespace_of(home)
        if name := remote_pvc.source_claim(home):
            return self._lookup.resolve(ClaimKey(namespace, name))
        if name := remote_pvc.source_snapshot(home):
            return self._lookup.resolve_snapshot(ClaimKey(namespace, name))
        return ""


def _slim_event(event: Object) -> Object:
    """The fields of an Event that `PvcController.remote_event_changed` reads. A longer message is
    not written to the home cluster."""
    meta = {key: value for key, value in metadata(event).items() if key in _EVENT_METADATA}
    message = str(event.get("message") or "")[:MESSAGE_MAX]
    return {**{key: event.get(key) for key in _EVENT_FIELDS}, "message": message, "metadata": meta}
