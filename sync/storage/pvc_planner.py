"""Decides the next action for one home PVC from the state of both clusters. Pure.

Each action is the one write that is due; `sync.storage.pvc_controller` carries it out and plans
again, until there is none. The plan depends on the objects alone, so that a bridge that is killed
between two writes, and one that takes over, continue with the next.

| home PVC                       | remote PVC           | PersistentVolume | action               |
|--------------------------------|----------------------|------------------|----------------------|
| unbound, of a pod on this node | any                  | none             | select this node     |
| wants a volume on this node    | none                 | none             | create remote PVC    |
| wants a volume on this node    | unbound, Immediate   | none             | none: wait           |
| wants a volume on this node    | failing, Immediate   | none             | give it back [1]     |
| wants a volume on this node    | too small            | none             | give it back         |
| wants a volume on this node    | usable               | none             | create the volume    |
| any                            | unfinished           | exists           | finish remote PVC    |
| wants one that cannot be       | none, or unfinished  | none             | give it back         |
| deleted, or wants another node | unfinished           | none             | delete remote PVC    |
| bound                          | names another PVC    | exists           | record origin        |
| bound                          | another capacity     | exists           | patch volume and PVC |
| bound                          | requests less        | exists           | expand               |
| bound                          | other metadata       | exists           | follow metadata      |

[1] A copy of another PVC or VolumeSnapshot is not given back: no other remote has its source.

A remote PVC is *unfinished* (`ANNOTATION_UNFINISHED`) until home has its PersistentVolume. No pod
of the bridge mounts one, so it has no data; one that another pod of the remote mounts is kept. No
plan deletes another remote PVC: that takes the deletion of its PersistentVolume
(`sync.storage.volume_planner`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from translators.object_accessors import Object, is_deleting, name_of, namespaced_name, uid_of
from translators.ownership_labels import has_home_uid
from translators.storage import followed_metadata, home_volume, remote_pvc, storage_class
from translators.storage.identifiers import (
    awaits_driver,
    bound_volume,
    is_bound,
    is_unfinished,
    is_volume_of,
    selected_node,
    volume_handle,
    volume_name,
)
from translators.storage.pvc_resolution import Unresolved, holds_data_of
from translators.storage.storage_class import ServedClass, StorageClassError
from translators.translation_options import Policy

#: Reasons of Events: the provisioner cannot create the volume, as of every provisioner; the remote
#: rejects a larger request.
REASON_FAILED, REASON_RESIZE_FAILED = "ProvisioningFailed", "VolumeResizeFailed"
#: The remote rejects changed labels or annotations, as for pods.
REASON_REFUSED = "UpdateRefused"


@dataclass(frozen=True, slots=True)
class PvcState:
    """The known state of one home PVC."""

    home: Object | None
    volume: Object | None = None
    """Home's PersistentVolume of the PVC, by its name or by the PVC's UID."""
    remote: Object | None = None
    """The PVC in the remote for this home PVC."""
    unfinished: Iterable[Object] = ()
    """Unfinished PVCs without PersistentVolume in the mapped namespace of the remote, for home PVCs
    of this name, that this virtual node created."""
    home_class: Object | None = None
    remote_classes: Iterable[Object] = ()
    source: str | Unresolved = ""
    """The remote PVC of which the home PVC is a clone; "" if it is none."""
    failure: str = ""
    """Why the remote's provisioner fails for good (`sync.storage.provisioning_failures`); "" if it
    does not."""
    has_pod: bool = False
    """Whether a pod on this node mounts the PVC."""


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Write this node to the home PVC, in place of home's scheduler."""


@dataclass(frozen=True, slots=True)
class CreateRemote:
    """Create the PVC in the remote."""

    claim: Object


@dataclass(frozen=True, slots=True)
class FinishRemote:
    """Remove the mark of an unfinished PVC: pods may mount it."""

    remote: Object


@dataclass(frozen=True, slots=True)
class CreateVolume:
    """Create home's PersistentVolume."""

    volume: Object


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Report why this remote cannot have the volume, delete the unfinished PVC, and let home's
    scheduler select again."""

    message: str
    remote: Object | None = None


@dataclass(frozen=True, slots=True)
class DeleteUnfinished:
    """Delete an unfinished PVC of the remote, if it still is unfinished."""

    remote: Object


@dataclass(frozen=True, slots=True)
class Expand:
    """Patch the request of the PVC in the remote."""

    remote: Object
    patch: Object


@dataclass(frozen=True, slots=True)
class FollowMetadata:
    """Patch the labels and annotations of the PVC in the remote."""

    remote: Object
    patch: Object


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Record on the PVC of the remote which home PVC has its volume now."""

    remote: Object
    patch: Object


@dataclass(frozen=True, slots=True)
class PatchVolume:
    """Patch home's PersistentVolume."""

    volume: Object
    patch: Object


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Patch the home PVC's status; a rejection is of no consequence if it ``is_optional``."""

    patch: Object
    is_optional: bool = field(default=False)


#: Of a PVC that is bound to its volume.
Update = Expand | FollowMetadata | RecordOrigin | PatchVolume | PatchStatus
Action = (
    SelectNode | CreateRemote | FinishRemote | CreateVolume | GiveBack | DeleteUnfinished | Update
)

#: Writes that the remote's admission or storage may reject for good, or another client set back.
SKIPPABLE = (Expand, FollowMetadata)


def plan_action(
    state: PvcState, policy: Policy, *, skipped: Collection[type[Action]] = ()
) -> Action | None:
    """The next write; None if there is nothing to do, or only to wait. One of `SKIPPABLE` that is
    among ``skipped`` does not keep others from being written."""
    wanted = _wanted_here(state, policy)
    # The cache may show the binding before the PersistentVolume.
    uid = uid_of(state.home or {})
    is_in_use = wanted or (state.home and bound_volume(state.home) == volume_name(uid))
    for remote in state.unfinished:
        is_current = is_in_use and has_home_uid(remote, uid)
        if not is_current and not is_deleting(remote):
            return DeleteUnfinished(remote)
    if state.home is None:
        return None
    leads_to_remote = state.volume is not None and volume_handle(state.volume) is not None
    if leads_to_remote and state.remote is not None and is_unfinished(state.remote):
        return FinishRemote(state.remote)
    if is_deleting(state.home):
        return None
    if wanted:
        return _provision(state, policy)
    if _needs_node(state):
        return SelectNode()
    if bound_volume(state.home) and state.volume is not None and state.remote is not None:
        return _follow(state.home, state.volume, state.remote, policy, skipped)
    return None


def _wanted_here(state: PvcState, policy: Policy) -> bool:
    home = state.home
    if home is None or bound_volume(home):
        return False
    return is_to_provision(home, state.home_class, policy)


def is_to_provision(home: Object, home_class: Object | None, policy: Policy) -> bool:
    """Whether home wants this bridge to provision the PVC, or did until it was bound."""
    if is_deleting(home) or not awaits_driver(home):
        return False
    if home_class is None or not storage_class.is_served(home_class):
        return False
    if node := selected_node(home):
        return node == policy.identity.node
    # Binding mode Immediate: the class has to name the remote.
    remotes = storage_class.permitted_remotes(home_class)
    waits = storage_class.waits_for_consumer(home_class)
    return not waits and remotes == (policy.remote_id,)


def _needs_node(state: PvcState) -> bool:
    """Whether the PVC waits for a node that no scheduler selects: its pod is on this node."""
    home = state.home or {}
    return (
        state.has_pod
        and not bound_volume(home)
        and not selected_node(home)
        and state.home_class is not None
        and storage_class.is_served(state.home_class)
        and storage_class.waits_for_consumer(state.home_class)
    )


def _provision(state: PvcState, policy: Policy) -> Action | None:
    home, remote = state.home or {}, state.remote
    if state.volume is not None and volume_handle(state.volume) is None:
        message = f"home: PersistentVolume {name_of(state.volume)} leads elsewhere; delete it"
        return GiveBack(message, remote if remote and is_unfinished(remote) else None)
    if state.volume is not None:
        return None  # Home's PersistentVolume controller binds the two.
    try:
        served = storage_class.parse_served_class(state.home_class or {})
        if remote is None:
            return _create_remote(state, served, policy)
    except StorageClassError as error:
        return GiveBack(str(error), remote if remote and is_unfinished(remote) else None)
    if is_deleting(remote):
        return None
    remote_status = remote.get("status") or {}
    if remote_status.get("phase") == "Lost":
        message = (
            "the remote has lost the volume of PersistentVolumeClaim "
            f"{namespaced_name(remote)}; the bridge creates another unless that one had data: "
            "restore or delete it then"
        )
        return GiveBack(message, remote if is_unfinished(remote) else None)
    if not is_bound(remote) and not _may_be_unbound(remote, served, state.remote_classes):
        # No other remote has the source of a copy, and a second attempt would start it again.
        if state.failure and is_unfinished(remote) and not remote_pvc.data_source(remote):
            message = f"{state.failure}; request what the remote has, or use another StorageClass"
            return GiveBack(message, remote)
        return None
    if remote_pvc.is_too_small(remote, home):
        message = (
            f"the remote has provisioned {remote_pvc.capacity(remote)}, which is less than the "
            f"requested {remote_pvc.requested(home)}; use another StorageClass"
        )
        return GiveBack(message, remote if is_unfinished(remote) else None)
    return CreateVolume(home_volume.home_volume(home, remote, served, policy.remote_id))


def _create_remote(state: PvcState, served: ServedClass, policy: Policy) -> Action:
    home = state.home or {}
    if served.remotes is not None and policy.remote_id not in served.remotes:
        message = (
            f"allowedTopologies of StorageClass {served.name} exclude this remote; use a "
            "StorageClass that permits it, or run the pod on another node"
        )
        return GiveBack(message)
    if unsupported := remote_pvc.unsupported_field(home, served):
        return GiveBack(unsupported)
    if isinstance(state.source, Unresolved):
        message = (
            f"the data source cannot be used: {state.source.message}; use a bound "
            "PersistentVolumeClaim, or a VolumeSnapshot that is ready, in the same remote, or none"
        )
        return GiveBack(message)
    storage_class.find_remote_class(served, state.remote_classes)
    return CreateRemote(remote_pvc.to_remote(home, served, policy, source=state.source))


def _may_be_unbound(remote: Object, served: ServedClass, classes: Iterable[Object]) -> bool:
    """Whether the remote PVC may wait for a pod; also if its class no longer exists."""
    name = (remote.get("spec") or {}).get("storageClassName")
    try:
        wanted = served if name is None else replace(served, remote_class=str(name))
        return storage_class.waits_for_consumer(storage_class.find_remote_class(wanted, classes))
    except StorageClassError:
        return True


def _follow(
    home: Object,
    volume: Object,
    remote: Object,
    policy: Policy,
    skipped: Collection[type[Action]],
) -> Action | None:
    """Expands the remote volume, shows its capacity at home, and updates its metadata."""
    handle = volume_handle(volume)
    if handle is None or handle.remote_id != policy.remote_id or not is_bound(home):
        return None
    if not is_volume_of(volume, home) or is_deleting(remote):
        return None
    if not holds_data_of(remote, volume, policy.identity):
        return None
    if patch := remote_pvc.origin_patch(home, remote):
        return RecordOrigin(remote, patch)
    if Expand not in skipped and (patch := remote_pvc.request_patch(home, remote)):
        return Expand(remote, patch)
    if patch := home_volume.capacity_patch(volume, remote):
        return PatchVolume(volume, patch)
    if patch := home_volume.claim_capacity_patch(home, remote):
        return PatchStatus(patch)
    if patch := home_volume.progress_patch(home, remote):
        return PatchStatus(patch, is_optional=True)
    if FollowMetadata in skipped:
        return None
    if patch := followed_metadata.metadata_patch(home, remote, policy):
        return FollowMetadata(remote, patch)
    return None
