"""Carries out the actions of `sync.storage.pvc_planner`.

- Home is asked first whether the bridge may write the PVC: nothing is created in the remote for a
  namespace that is not bound to the bridge. `bridge rbac namespace` grants it.
- A PVC that the remote cannot have is given back to home's scheduler: an Event states why, the
  unfinished remote PVC is deleted, and the selected node is removed, so that the scheduler may
  choose another node. If it chooses this one again, the next attempt waits, longer each time.
- A change of an existing object that another client sets back is repeated at growing intervals
  (`sync.base.repeated_writes`).
- Each answer to a write is put into the cache at once, so that the next plan sees it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from sync.base.histograms import Histogram
from sync.base.namespace_fair_cache import FairCache
from sync.base.repeated_writes import OVERWRITES, REPORTED, RepeatedWrites, overwritten_message
from sync.base.resource_version import version_of
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext, StorageInformers
from sync.kube.api_errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
)
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from sync.kube.client import RUNNING_LIST_LIMIT
from sync.namespaces.per_namespace_informers import home_forbids
from sync.references.content_digest import digest
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import changes, object_fields
from sync.runtime.workqueue import WorkQueue
from sync.storage.exact_patch import patch_exactly
from sync.storage.pvc_planner import (
    REASON_FAILED,
    REASON_REFUSED,
    REASON_RESIZE_FAILED,
    Action,
    CreateRemote,
    CreateVolume,
    DeleteUnfinished,
    Expand,
    FinishRemote,
    FollowMetadata,
    GiveBack,
    PatchStatus,
    PatchVolume,
    PvcState,
    RecordOrigin,
    SelectNode,
    Update,
)
from translators.object_accessors import (
    HomeNamespace,
    Object,
    name_of,
    namespace_of,
    namespaced_name,
    uid_of,
)
from translators.ownership_labels import has_home_uid, is_owned, unmanaged_selector
from translators.storage.identifiers import (
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    bound_volume,
    selected_node,
)
from translators.storage.pvc_resolution import mounted_claims

log = logging.getLogger(__name__)

#: Seconds until the next attempt for a PVC that was given back: the first, and the longest.
FIRST_WAIT, LONGEST_WAIT = 5.0, 300.0
#: Reasons why a remote namespace cannot be used for a moment only.
_PASSING = frozenset({"RemoteNamespaceTerminating", "RemoteNamespaceChanged"})


@dataclass(slots=True)
class _Attempts:
    """The attempts for one PVC, by the loop's clock."""

    began: float
    given_back: int = 0
    next_at: float = 0.0
    has_volume: bool = False
    """Whether this bridge has created the PersistentVolume."""


class PvcExecutor:
    """``queue`` takes keys that are to be reconciled again."""

    def __init__(
        self, context: ControllerContext, storage: StorageInformers, queue: WorkQueue[Key]
    ) -> None:
        self._account = context.account
        self._remote = context.remote
        self._remote_pods = context.remote_pods
        self._policy = context.policy
        self._identity = context.identity
        self._namespaces = context.namespaces
        self._events = context.events
        self._storage = storage
        self._queue = queue
        # By the home PVC's UID.
        self._attempts: FairCache[str, _Attempts] = FairCache()
        # By the UID of the object, the kind of the write, and whether the write is optional.
        self._changes: RepeatedWrites[tuple[str, type[Action], bool]] = RepeatedWrites()
        self.results: Counter[str] = Counter({"success": 0, "failure": 0})
        """How many volumes were provisioned, and how many attempts failed."""
        self.duration = Histogram()
        """Seconds from the first attempt for a PVC, which follows the selection of the node at
        once, until home has bound it."""

    def forget(self, claim_uid: str) -> None:
        """Forgets earlier attempts: the PVC was deleted, or the cause of a failure removed."""
        self._attempts.pop(claim_uid)

    def observe_bound(self, claim_uid: str) -> None:
        """Records how long a PVC took that home has bound to a volume of this bridge."""
        attempts = self._attempts.pop(claim_uid)
        if attempts is not None and attempts.has_volume:
            self.duration.observe(asyncio.get_running_loop().time() - attempts.began)

    def seconds_left(self, state: PvcState, action: Action) -> float:
        """Seconds until the action may be executed, because another client set it back; 0 for
        now."""
        change = _change_of(state, action)
        if change is None:
            return 0.0
        return self._changes.seconds_left(change.key, change.patch_digest)

    async def execute(self, state: PvcState, action: Action) -> bool:
        """Carries out the action. Returns whether to plan again now. Raises KubeError and
        ReconcileBlocked."""
        plan_again = await self._execute(state, action)
        change = _change_of(state, action)
        if plan_again and change is not None:
            namespace = namespace_of(state.home or change.target)
            repetitions = self._changes.sent(namespace, change.key, change.patch_digest)
            is_remote = not isinstance(action, PatchVolume | PatchStatus)
            if repetitions == REPORTED and is_remote and state.home is not None:
                what = f"PersistentVolumeClaim {namespaced_name(change.target)}"
                self._events.warn(state.home, OVERWRITES, overwritten_message(what))
        return plan_again

    async def _execute(self, state: PvcState, action: Action) -> bool:
        home = state.home or {}
        match action:
            case DeleteUnfinished(remote):
                await self._delete_unfinished(remote)
                return False  # The remote's answer is a change that queues the key.
            case SelectNode():
                return await self._select_node(home)
            case CreateRemote(claim):
                return self._may_attempt(home) and await self._create_remote(home, claim)
            case FinishRemote(remote):
                return await self._finish_remote(remote)
            case CreateVolume(volume):
                return await self._create_volume(home, volume)
            case GiveBack(message, remote):
                if self._may_attempt(home):
                    await self._give_back(home, message, remote)
                return False
            case Expand() | FollowMetadata() | RecordOrigin() | PatchVolume() | PatchStatus():
                return await self._follow(home, action)

    # -- provision -------------------------------------------------------------------------

    def _may_attempt(self, home: Object) -> bool:
        """Whether the wait since the PVC was last given back is over; queues the key for its
        end."""
        now = asyncio.get_running_loop().time()
        attempts = self._attempts.get(uid_of(home))
        if attempts is None:
            self._attempts.put(namespace_of(home), uid_of(home), _Attempts(now))
            return True
        if attempts.next_at > now:
            self._queue.add_after(key_of(home), attempts.next_at - now)
            return False
        return True

    async def _select_node(self, home: Object) -> bool:
        """Writes this node to a PVC whose pod no scheduler handles; the PersistentVolume controller
        then calls the provisioner."""
        patch = _selected_node_patch(home, self._identity.node)
        try:
            await patch_exactly(self._storage.home_claims, home, patch)
        except Conflict:
            return False  # The scheduler, or a user, was faster.
        except Forbidden as error:
            raise self._not_bound(home, error) from error
        return True

    async def _create_remote(self, home: Object, claim: Object) -> bool:
        try:
            current = await self._confirm_writable(home)
        except NotFound:
            return False
        if selected_node(current) != selected_node(home) or bound_volume(current):
            return True  # The cache was older, as after a takeover, and has that state now.
        return await self._send_create(current, claim)

    async def _send_create(self, home: Object, claim: Object) -> bool:
        namespace = HomeNamespace(namespace_of(home))
        try:
            remote_namespace = await self._namespaces.ensure(namespace)
            created = await self._remote.create(
                PERSISTENT_VOLUME_CLAIMS, claim, namespace=remote_namespace
            )
        except AlreadyExists:
            created = await self._existing(home, claim)
        except ReconcileBlocked as blocked:
            if blocked.reason not in _PASSING:
                await self._give_back(home, blocked.message)
            raise
        except NamespaceTerminating:
            raise
        except (Forbidden, Invalid, BadRequest) as error:
            message = (
                f"remote: the API server rejects the PersistentVolumeClaim: {error.message}; "
                "change the PersistentVolumeClaim, or what the remote permits in namespace "
                f"{namespace_of(claim)}"
            )
            await self._give_back(home, message)
            return False
        else:
            _log(home, f"created in the remote as {namespaced_name(created)}")
        self._storage.remote_claims.observe_write(created)
        return True

    async def _confirm_writable(self, home: Object) -> Object:
        """Confirms by a patch without change that home still has the PVC, and that the bridge may
        write it. Raises NotFound; ReconcileBlocked if home forbids it."""
        patch: Object = {"metadata": {"uid": uid_of(home)}}
        try:
            current = await self._account.patch(
                PERSISTENT_VOLUME_CLAIMS, name_of(home), patch, namespace=namespace_of(home)
            )
        except Forbidden as error:
            raise self._not_bound(home, error) from error
        self._storage.home_claims.observe_write(current)
        return current

    def _not_bound(self, home: Object, error: Forbidden) -> ReconcileBlocked:
        """Reports that the PVC's namespace is not bound to the bridge."""
        namespace = HomeNamespace(namespace_of(home))
        action = "patch persistentvolumeclaims"
        blocked = home_forbids(action, namespace, server_message=error.message)
        self._events.warn(home, REASON_FAILED, blocked.message)
        return blocked

    async def _existing(self, home: Object, claim: Object) -> Object:
        """The remote PVC that an earlier request created. Raises ReconcileBlocked if it is
        unmanaged."""
        namespace, name = namespace_of(claim), name_of(claim)
        found = await self._remote.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
        if is_owned(found, self._identity) and has_home_uid(found, uid_of(home)):
            return found
        message = (
            f"remote: PersistentVolumeClaim {namespace}/{name} exists and is not managed by this "
            "home; delete or rename it"
        )
        self._events.warn(home, REASON_FAILED, message)
        raise ReconcileBlocked("RemoteClash", message)

    async def _finish_remote(self, remote: Object) -> bool:
        patch = {"metadata": {"annotations": {ANNOTATION_UNFINISHED: None}}}
        return await patch_exactly(self._storage.remote_claims, remote, patch)

    async def _create_volume(self, home: Object, volume: Object) -> bool:
        try:
            created = await self._account.create(PERSISTENT_VOLUMES, volume)
        except AlreadyExists:
            return False  # The response to an earlier request was lost; the cache will show it.
        self.results["success"] += 1
        if attempts := self._attempts.get(uid_of(home)):
            attempts.has_volume = True
        message = f"PersistentVolume {name_of(volume)} has its data in the remote cluster"
        self._events.normal(home, "ProvisioningSucceeded", message)
        _log(home, f"PersistentVolume {name_of(volume)} created")
        self._storage.home_volumes.observe_write(created)
        return True

    async def _give_back(self, home: Object, message: str, remote: Object | None = None) -> None:
        self.results["failure"] += 1
        now = asyncio.get_running_loop().time()
        attempts = self._attempts.get(uid_of(home)) or _Attempts(now)
        wait = min(FIRST_WAIT * 2**attempts.given_back, LONGEST_WAIT)
        attempts.given_back += 1
        attempts.next_at = now + wait
        self._attempts.put(namespace_of(home), uid_of(home), attempts)
        self._events.warn(home, REASON_FAILED, message)
        if remote is not None:
            await self._delete_unfinished(remote)
        if selected_node(home) == self._identity.node:
            try:
                await patch_exactly(
                    self._storage.home_claims, home, _selected_node_patch(home, None)
                )
            except Conflict:
                log.debug("PersistentVolumeClaim %s: changed meanwhile", namespaced_name(home))
        self._queue.add_after(key_of(home), wait)

    async def _delete_unfinished(self, remote: Object) -> None:
        """Deletes the remote PVC at exactly this version: one that is finished in the meantime
        stays. So does one that a pod mounts: no pod of the bridge mounts an unfinished PVC, but a
        pod of the remote mounts a PVC that was restored from a backup of an unfinished one."""
        if await self._is_mounted(remote):
            _log_remote(remote, "unfinished, and kept: a pod of the remote mounts it")
            return
        await self._remote.delete(
            PERSISTENT_VOLUME_CLAIMS,
            name_of(remote),
            namespace=namespace_of(remote),
            uid=uid_of(remote),
            resource_version=version_of(remote),
        )
        _log_remote(remote, "unfinished, deleted in the remote")

    async def _is_mounted(self, remote: Object) -> bool:
        """Whether a pod of the remote mounts the PVC: the cache has the managed pods, and the API
        server lists the unmanaged ones, of which a mapped namespace has few. Raises KubeError."""
        unmanaged = await self._remote.list(
            PODS,
            namespace=namespace_of(remote),
            labels=unmanaged_selector(self._identity),
            slim=mounted_claims,
            most=RUNNING_LIST_LIMIT,
        )
        managed = self._remote_pods.store.by_index("place", namespace_of(remote))
        mounted = (*unmanaged.items, *map(mounted_claims, managed))
        return any(name_of(remote) in claims.values() for claims in mounted)

    # -- follow ----------------------------------------------------------------------------

    async def _follow(self, home: Object, action: Update) -> bool:
        match action:
            case Expand(remote, patch):
                return await self._expand(home, remote, patch)
            case FollowMetadata(remote, patch):
                return await self._follow_metadata(home, remote, patch)
            case RecordOrigin(remote, patch):
                return await patch_exactly(self._storage.remote_claims, remote, patch)
            case PatchVolume(volume, patch):
                return await patch_exactly(self._storage.home_volumes, volume, patch)
            case PatchStatus(patch, is_optional):
                return await self._patch_status(home, patch, is_optional=is_optional)

    async def _expand(self, home: Object, remote: Object, patch: Object) -> bool:
        try:
            return await patch_exactly(self._storage.remote_claims, remote, patch)
        except (Forbidden, Invalid) as error:
            message = f"remote: the API server rejects the larger volume: {error.message}"
            self._events.warn(home, REASON_RESIZE_FAILED, message)
            raise

    async def _follow_metadata(self, home: Object, remote: Object, patch: Object) -> bool:
        """Patches exactly this version: a controller of the remote may write the same key."""
        meta = {**patch["metadata"], "resourceVersion": version_of(remote)}
        try:
            return await patch_exactly(self._storage.remote_claims, remote, {"metadata": meta})
        except Conflict:
            return False  # The newer version is a change that queues the key.
        except (Forbidden, Invalid) as error:
            message = (
                "remote: the API server rejects the changed labels and annotations: "
                f"{error.message}; change them at home, or the remote's policy"
            )
            self._events.warn(home, REASON_REFUSED, message)
            raise

    async def _patch_status(self, home: Object, patch: Object, *, is_optional: bool) -> bool:
        try:
            return await patch_exactly(self._storage.home_claims, home, patch, subresource="status")
        except Invalid as error:
            if not is_optional:
                raise
            log.debug(
                "PersistentVolumeClaim %s: progress not shown: %s", namespaced_name(home), error
            )
            return False


class _Change(NamedTuple):
    """A change of an existing object, with the digest of its patch."""

    target: Object
    key: tuple[str, type[Action], bool]
    patch_digest: str


def _change_of(state: PvcState, action: Action) -> _Change | None:
    """None for an action that creates, deletes or hands over."""
    target: Object = state.home or {}
    patch: Object = {}
    is_optional = False
    match action:
        case FinishRemote(remote):
            target = remote
        case Expand(remote, patch) | FollowMetadata(remote, patch) | RecordOrigin(remote, patch):
            target = remote
        case PatchVolume(volume, patch):
            target = volume
        case PatchStatus(patch, is_optional):
            pass
        case _:
            return None
    return _Change(target, (uid_of(target), type(action), is_optional), digest(patch))


def _selected_node_patch(home: Object, node: str | None) -> Object:
    """Changes the selected node, if the PVC is unchanged."""
    annotations = {ANNOTATION_SELECTED_NODE: node}
    return {"metadata": {"resourceVersion": version_of(home), "annotations": annotations}}


def _log_remote(remote: Object, what: str) -> None:
    fields = object_fields("PersistentVolumeClaim", remote, cluster="remote")
    changes.info("PersistentVolumeClaim %s: %s", namespaced_name(remote), what, extra=fields)


def _log(home: Object, what: str) -> None:
    fields = object_fields("PersistentVolumeClaim", home, cluster="home")
    changes.info("PersistentVolumeClaim %s: %s", namespaced_name(home), what, extra=fields)
