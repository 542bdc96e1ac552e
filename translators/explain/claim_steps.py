"""Determines which step of provisioning a home PVC waits for, and why.

The steps are those of `sync.storage.pvc_planner`, extended by those of home's scheduler and
PersistentVolume controller. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from translators.object_accessors import Object, is_deleting, metadata, name_of
from translators.quantity import parse_quantity
from translators.storage import pvc_resolution, remote_pvc, storage_class
from translators.storage.identifiers import (
    ANNOTATION_REMOTE_PVC,
    DRIVER,
    awaits_driver,
    bound_volume,
    is_bound,
    is_unfinished,
    selected_node,
    volume_handle,
)
from translators.storage.pvc_resolution import Unresolved
from translators.storage.storage_class import StorageClassError
from translators.storage.volume_state import missing_data
from translators.translation_options import Policy


@dataclass(frozen=True, slots=True)
class ClaimObjects:
    """The objects of both clusters that belong to a home PVC."""

    home: Object
    home_class: Object | None
    """The PVC's StorageClass; None if it does not exist or could not be read."""
    volume: Object | None
    """Home's PersistentVolume that the PVC names, or that the bridge has created for it."""
    remote: Object | None = None
    """The remote PVC that has or will have the data."""
    remote_classes: Collection[Object] | None = None
    """The remote's StorageClasses; None if they could not be read."""
    is_remote_known: bool = False
    """Whether the remote was read, so that a remote PVC that is None does not exist."""
    has_pod: bool = False
    """Whether a pod of the namespace mounts the PVC."""


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """The state of a PVC as one word; who acts next ("" if no step is due), and why it waits."""

    state: str
    waits_for: str = ""
    why: str = ""


def claim_step(objects: ClaimObjects, policy: Policy) -> ClaimStep:
    """The step of a PVC, for the virtual node of the policy."""
    home = objects.home
    if is_deleting(home):
        return ClaimStep("Deleting", "home", "the PersistentVolumeClaim is being deleted")
    if existing := (metadata(home).get("annotations") or {}).get(ANNOTATION_REMOTE_PVC):
        return ClaimStep("Existing", why=f"pods mount the existing claim {existing} of the remote")
    if bound_volume(home):
        return _bound_step(objects, policy)
    if objects.home_class is None or not storage_class.is_served(objects.home_class):
        return _unserved_step(objects.home_class)
    if policy.storage != "provision":
        return ClaimStep(
            "NotProvisioned",
            "an administrator",
            f"node {policy.identity.node} provisions no volumes: join with --storage provision",
        )
    return _unbound_step(objects, objects.home_class, policy)


def _bound_step(objects: ClaimObjects, policy: Policy) -> ClaimStep:
    home, volume, remote = objects.home, objects.volume, objects.remote
    handle = pvc_resolution.used_handle(home, volume, policy, name=name_of(home))
    if isinstance(handle, Unresolved):
        is_elsewhere = handle.reason == pvc_resolution.REASON_UNREACHABLE
        state = "Elsewhere" if is_elsewhere else "Binding"
        waits_for = "" if is_elsewhere else "home's PersistentVolume controller"
        return ClaimStep(state, waits_for, handle.message)
    if not objects.is_remote_known or volume is None:
        return ClaimStep("Bound")
    if problem := missing_data(volume, remote, policy.identity):
        return ClaimStep("Missing", "an administrator of the remote", f"remote: {problem}")
    if remote is None or is_unfinished(remote):
        return ClaimStep("Finishing", "the bridge", "it has to mark the remote claim as finished")
    if not is_bound(remote):
        why = "its StorageClass creates the volume for the first pod that mounts the claim"
        return ClaimStep("Bound", "a pod in the remote", why)
    if parse_quantity(remote_pvc.requested(home)) > parse_quantity(remote_pvc.capacity(home)):
        why = f"to expand the volume to {remote_pvc.requested(home)}"
        return ClaimStep("Expanding", "the remote's provisioner", why)
    return ClaimStep("Bound")


def _unserved_step(home_class: Object | None) -> ClaimStep:
    if home_class is None:
        why = "home has no such StorageClass; create it, or name another one"
        return ClaimStep("NotProvisioned", "an administrator", why)
    why = f"it provisions StorageClass {name_of(home_class)}; the bridge does not"
    return ClaimStep("NotProvisioned", f"the provisioner {home_class.get('provisioner')}", why)


def _unbound_step(objects: ClaimObjects, home_class: Object, policy: Policy) -> ClaimStep:
    home = objects.home
    try:
        served = storage_class.parse_served_class(home_class)
        if objects.remote_classes is not None and objects.remote is None:
            storage_class.find_remote_class(served, objects.remote_classes)
    except StorageClassError as error:
        return ClaimStep("Unsupported", "an administrator", str(error))
    if unsupported := remote_pvc.unsupported_field(home, served):
        return ClaimStep("Unsupported", "its author", unsupported)
    node = selected_node(home)
    if not node and served.waits_for_consumer:
        if not objects.has_pod:
            why = "the class waits for the first pod that mounts the claim, and there is none"
            return ClaimStep("Unscheduled", "a pod", why)
        why = "it has to select a node for the pod that mounts the claim"
        return ClaimStep("Unscheduled", "home's scheduler", why)
    if node and node != policy.identity.node:
        return ClaimStep("Elsewhere", f"node {node}", "home's scheduler has selected that node")
    if not node and served.remotes != (policy.remote_id,):
        why = (
            "the class has the binding mode Immediate, in which no remote is selected: use "
            "WaitForFirstConsumer, or name one remote in allowedTopologies"
        )
        return ClaimStep("Unsupported", "an administrator", why)
    if not awaits_driver(home):
        why = f"it has to hand the claim to the provisioner {DRIVER}"
        return ClaimStep("Provisioning", "home's PersistentVolume controller", why)
    return _provisioning_step(objects)


def _provisioning_step(objects: ClaimObjects) -> ClaimStep:
    remote = objects.remote
    if objects.volume is not None and volume_handle(objects.volume) is not None:
        why = "it has to bind the claim to its PersistentVolume"
        return ClaimStep("Binding", "home's PersistentVolume controller", why)
    if not objects.is_remote_known:
        return ClaimStep("Provisioning", "the bridge")
    if remote is None:
        return ClaimStep("Provisioning", "the bridge", "it has to create the claim in the remote")
    name = (remote.get("spec") or {}).get("storageClassName")
    found = [it for it in objects.remote_classes or () if name_of(it) == name]
    waits = storage_class.waits_for_consumer(found[0] if found else None)
    if is_bound(remote) or waits:
        why = "it has to create the PersistentVolume at home"
        return ClaimStep("Provisioning", "the bridge", why)
    return ClaimStep(
        "Provisioning", "the remote's provisioner", "it has to create the volume of the claim"
    )
