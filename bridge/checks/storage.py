"""Checks whether volumes can be provisioned, home's StorageClasses, and whether volumes at home and
PVCs in the remote lead to each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, info, ok, warning
from bridge.clusters.storage_selection import why_no_snapshots
from bridge.node import join_record
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import (
    CSI_DRIVERS,
    CSI_STORAGE_CAPACITIES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from translators.derived_names import label_value
from translators.object_accessors import (
    Object,
    RemoteNamespace,
    name_of,
    namespace_of,
    namespaced_name,
)
from translators.ownership_labels import LABEL_HOME, LABEL_NODE, origin_of
from translators.quantity import parse_quantity
from translators.storage import storage_capacity, storage_class
from translators.storage.identifiers import DRIVER, VolumeHandle, is_unfinished, volume_handle
from translators.storage.pvc_resolution import REASON_UNREACHABLE
from translators.storage.storage_capacity import class_of_storage_capacity
from translators.storage.storage_class import StorageClassError
from translators.storage.volume_state import VolumeSummary

_MANIFEST = "apply manifests/storage-class.yaml in the home cluster"


async def check_provisioning(context: CheckContext) -> list[Finding]:
    """BRG601."""
    if context.node is not None:
        mode, reason = join_record.recorded_storage(context.node), "recorded on the Node"
        if mode != "provision":
            return [_not_provisioned(reason)]
        no_snapshots = await why_no_snapshots(
            context.settings, context.home_client, context.remote_client
        )
        return [_provisioned(reason, no_snapshots)]
    selected = await context.storage()
    if selected.mode != "provision":
        return [_not_provisioned(selected.reason)]
    return [_provisioned(selected.reason, selected.no_snapshots)]


def _provisioned(reason: str, no_snapshots: str) -> Finding:
    """The bridge looks for VolumeSnapshots when it starts, and no object records the result."""
    text = f"PersistentVolumeClaims are provisioned in the remote ({reason})"
    snapshots = f"no VolumeSnapshots: {no_snapshots}" if no_snapshots else "VolumeSnapshots"
    return ok("BRG601", "both", f"{text}; a bridge that starts now takes {snapshots}")


def _not_provisioned(reason: str) -> Finding:
    text = f"pods use the remote's PersistentVolumeClaims of the same names ({reason})"
    return info("BRG601", "both", text)


async def check_classes(context: CheckContext) -> list[Finding]:
    """BRG602."""
    if not await _provisions(context):
        return []
    classes = (await context.home_client.list(STORAGE_CLASSES)).items
    served = [it for it in classes if storage_class.is_served(it)]
    if not served:
        return [info("BRG602", "home", f"no StorageClass has the provisioner {DRIVER}", _MANIFEST)]
    remote_classes = (await context.remote_client.list(STORAGE_CLASSES)).items
    problems = [text for it in served if (text := _class_problem(it, remote_classes))]
    problems += _without_capacity(served, await _capacities(context))
    if not await _has_driver(context):
        problems.append(
            f"home has no CSIDriver {DRIVER}, so that its scheduler ignores the remote's capacity"
        )
    deleting = _not_retained(served, remote_classes)
    if problems:
        return [warning("BRG602", "home", "; ".join(problems)), *deleting]
    names = summarize_names(sorted(map(name_of, served)))
    return [ok("BRG602", "home", f"StorageClasses with volumes in the remote: {names}"), *deleting]


async def _capacities(context: CheckContext) -> dict[str, str]:
    """The capacity that the node's bridge reports to home's scheduler, by StorageClass; empty
    before a join, and if the credential may not list it."""
    if context.node is None:
        return {}
    labels = f"{LABEL_NODE}={label_value(context.name)}"
    try:
        page = await context.home_client.list(
            CSI_STORAGE_CAPACITIES, namespace=storage_capacity.NAMESPACE, labels=labels
        )
    except Forbidden:
        return {}
    return {class_of_storage_capacity(it): str(it.get("capacity") or "0") for it in page.items}


def _without_capacity(served: Collection[Object], capacities: Mapping[str, str]) -> list[str]:
    return [
        f"the remote has no capacity left for StorageClass {name}, so that home's scheduler "
        "selects other nodes"
        for name in sorted(map(name_of, served))
        if name in capacities and not parse_quantity(capacities[name])
    ]


def _not_retained(served: Collection[Object], remote_classes: Collection[Object]) -> list[Finding]:
    """Home's classes that retain data by a remote class that does not."""
    names = []
    for home_class in served:
        try:
            parsed = storage_class.parse_served_class(home_class)
            remote_class = storage_class.find_remote_class(parsed, remote_classes)
        except StorageClassError:
            continue  # Reported as a problem of the class.
        if parsed.reclaim_policy == "Retain" and remote_class.get("reclaimPolicy") != "Retain":
            names.append(f"{parsed.name} ({name_of(remote_class)} in the remote)")
    if not names:
        return []
    text = (
        "StorageClasses that retain data at home, of remote classes that do not: "
        f"{summarize_names(sorted(names))}; the data is lost if an administrator of the remote "
        "deletes the remote PersistentVolumeClaim, or its namespace"
    )
    hint = "use a StorageClass of the remote with the reclaim policy Retain"
    return [info("BRG602", "both", text, hint)]


def _class_problem(home_class: Object, remote_classes: Collection[Object]) -> str:
    try:
        served = storage_class.parse_served_class(home_class)
        storage_class.find_remote_class(served, remote_classes)
    except StorageClassError as error:
        return str(error)
    if served.waits_for_consumer or (served.remotes is not None and len(served.remotes) == 1):
        return ""
    return (
        f"StorageClass {served.name} has the binding mode Immediate, in which no remote is "
        "selected: use WaitForFirstConsumer, or name one remote in allowedTopologies"
    )


async def _has_driver(context: CheckContext) -> bool:
    """Whether home has the CSIDriver; also if the credential may not find out."""
    try:
        return await context.home_client.find(CSI_DRIVERS, DRIVER) is not None
    except Forbidden:
        return True


async def check_retained_data(context: CheckContext) -> list[Finding]:
    """BRG603."""
    if not await _provisions(context):
        return []
    remote_id = await context.remote_id()
    volumes = (await context.home_client.list(PERSISTENT_VOLUMES)).items
    used = {handle for it in volumes if (handle := volume_handle(it)) is not None}
    unused = [
        f"{handle.namespace}/{handle.name}"
        for handle, it in (await _remote_claims(context)).items()
        if origin_of(it) is not None and not is_unfinished(it) and handle not in used
    ]
    released = [
        f"{name_of(it)} ({handle.namespace}/{handle.name})"
        for it in volumes
        if (handle := volume_handle(it)) is not None
        and handle.remote_id == remote_id
        and (it.get("status") or {}).get("phase") == "Released"
    ]
    findings = []
    if unused:
        text = f"volumes without a PersistentVolume at home: {summarize_names(unused)}"
        findings.append(info("BRG603", "remote", text))
    if released:
        text = (
            "PersistentVolumes whose PersistentVolumeClaims at home were deleted, with their data "
            f"in the remote: {summarize_names(released)}"
        )
        hint = "delete the PersistentVolumes at home too, or bind them to new claims"
        findings.append(info("BRG603", "home", text, hint))
    return findings or [ok("BRG603", "remote", "all volumes of this home are in use at home")]


async def check_missing_data(context: CheckContext) -> list[Finding]:
    """BRG604."""
    if not await _provisions(context):
        return []
    summary = VolumeSummary(await context.remote_id(), await context.identity())
    claims = await _remote_claims(context)
    for volume in (await context.home_client.list(PERSISTENT_VOLUMES)).items:
        summary.add(volume, claims.get)
    findings = []
    if summary.missing:
        lost = [f"{it.claim or it.name}: {it.problem}" for it in summary.missing]
        text = f"volumes of home without their data: {summarize_names(lost)}"
        findings.append(warning("BRG604", "remote", text))
    if waiting := await _pods_without_volume(context):
        text = f"pods wait for volumes that are not in the remote: {summarize_names(waiting)}"
        findings.append(warning("BRG604", "home", text))
    if not findings:
        count = f"{summary.total} volume(s) of home have their data in the remote"
        findings.append(ok("BRG604", "both", count))
    return findings


async def _pods_without_volume(context: CheckContext) -> list[str]:
    """The node's pods whose PVC is bound to a volume elsewhere, or whose data is missing."""
    if context.node is None:
        return []
    pods = (await context.home_client.list(PODS, fields=f"spec.nodeName={context.name}")).items
    return [
        f"{namespaced_name(it)}: {status.get('message') or REASON_UNREACHABLE}"
        for it in pods
        if (status := it.get("status") or {}).get("reason") == REASON_UNREACHABLE
    ]


async def _remote_claims(context: CheckContext) -> dict[VolumeHandle, Object]:
    """The managed PVCs of the remote."""
    remote_id = await context.remote_id()
    labels = f"{LABEL_HOME}={await context.home_id()}"
    pages = [
        await context.remote_client.list(PERSISTENT_VOLUME_CLAIMS, namespace=it, labels=labels)
        for it in context.settings.remote_namespaces or (None,)
    ]
    return {
        VolumeHandle(remote_id, RemoteNamespace(namespace_of(it)), name_of(it)): it
        for page in pages
        for it in page.items
    }


async def _provisions(context: CheckContext) -> bool:
    if context.node is not None:
        return join_record.recorded_storage(context.node) == "provision"
    return (await context.storage()).mode == "provision"


IMPLEMENTATIONS = (
    Implementation("BRG601", check_provisioning, ("home", "remote")),
    Implementation("BRG602", check_classes, ("home", "remote")),
    Implementation("BRG603", check_retained_data, ("home", "remote")),
    Implementation("BRG604", check_missing_data, ("home", "remote")),
)
