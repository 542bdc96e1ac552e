"""Checks whether volumes can be provisioned, home's StorageClasses, and retained data."""

from __future__ import annotations

from collections.abc import Collection

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, info, ok, warning
from bridge.node import join_record
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import (
    CSI_DRIVERS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)
from translators.object_accessors import Object, RemoteNamespace, name_of, namespace_of
from translators.ownership_labels import LABEL_HOME, origin_of
from translators.storage import storage_class
from translators.storage.identifiers import DRIVER, VolumeHandle, is_unfinished, volume_handle
from translators.storage.storage_class import StorageClassError

_COMMAND = "`bridge storage-class NAME` prints what to apply at home"


async def check_provisioning(context: CheckContext) -> list[Finding]:
    """BRG601."""
    if context.node is not None:
        mode = join_record.recorded_storage(context.node) or "none"
        return [_provisioning(mode == "provision", "recorded on the Node")]
    selected = await context.storage()
    return [_provisioning(selected.mode == "provision", selected.reason)]


def _provisioning(provisions: bool, reason: str) -> Finding:
    if provisions:
        text = f"PersistentVolumeClaims are provisioned in the remote ({reason})"
        return ok("BRG601", "both", text)
    text = f"pods use the remote's PersistentVolumeClaims of the same names ({reason})"
    return info("BRG601", "both", text)


async def check_classes(context: CheckContext) -> list[Finding]:
    """BRG602."""
    if not await _provisions(context):
        return []
    classes = (await context.home_client.list(STORAGE_CLASSES)).items
    served = [it for it in classes if storage_class.is_served(it)]
    if not served:
        return [info("BRG602", "home", f"no StorageClass has the provisioner {DRIVER}", _COMMAND)]
    remote_classes = (await context.remote_client.list(STORAGE_CLASSES)).items
    problems = [text for it in served if (text := _class_problem(it, remote_classes))]
    if not await _has_driver(context):
        problems.append(
            f"home has no CSIDriver {DRIVER}, so that its scheduler ignores the remote's capacity"
        )
    if problems:
        return [warning("BRG602", "home", "; ".join(problems))]
    names = summarize_names(sorted(map(name_of, served)))
    return [ok("BRG602", "home", f"StorageClasses with volumes in the remote: {names}")]


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
    labels = f"{LABEL_HOME}={await context.home_id()}"
    unused = [
        f"{namespace_of(it)}/{name_of(it)}"
        for scope in context.settings.remote_namespaces or (None,)
        for it in (
            await context.remote_client.list(
                PERSISTENT_VOLUME_CLAIMS, namespace=scope, labels=labels
            )
        ).items
        if origin_of(it) is not None
        and not is_unfinished(it)
        and VolumeHandle(remote_id, RemoteNamespace(namespace_of(it)), name_of(it)) not in used
    ]
    if not unused:
        return [ok("BRG603", "remote", "all volumes of this home are in use at home")]
    text = f"volumes without a PersistentVolume at home: {summarize_names(unused)}"
    return [info("BRG603", "remote", text)]


async def _provisions(context: CheckContext) -> bool:
    if context.node is not None:
        return join_record.recorded_storage(context.node) == "provision"
    return (await context.storage()).mode == "provision"


IMPLEMENTATIONS = (
    Implementation("BRG601", check_provisioning, ("home", "remote")),
    Implementation("BRG602", check_classes, ("home", "remote")),
    Implementation("BRG603", check_retained_data, ("home", "remote")),
)
