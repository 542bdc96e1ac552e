"""Selects whether the bridge provisions home's PersistentVolumeClaims in the remote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.base.printable_text import summarize_names
from bridge.node import join_record, node_object
from bridge.rbac import permissions
from sync.kube import discovery
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import (
    PERSISTENT_VOLUMES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object
from translators.storage.identifiers import volume_handle
from translators.translation_options import Storage

#: The most permissions that a message names.
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class SelectedStorage:
    """A storage mode and why it was selected."""

    mode: Storage
    reason: str
    no_snapshots: str = "volumes are not provisioned"
    """Why volumes have no snapshots; "" if they do: both sides serve VolumeSnapshots, and the
    permissions are granted."""

    @property
    def snapshots(self) -> bool:
        """Whether volumes have snapshots."""
        return not self.no_snapshots


async def select_storage(
    settings: JoinSettings,
    *,
    registered_node: Callable[[], Awaitable[Object | None]],
    home: KubeClient,
    remote: KubeClient,
) -> SelectedStorage:
    """``auto`` provisions where both clusters grant the permissions. ``home`` acts as the bridge's
    account; ``registered_node`` reads the Node of an earlier join.

    Raises KubeError; and PreflightError if the permissions of an earlier join that provisioned are
    missing now, and home has volumes in the remote, or does not say: pods would mount other
    PersistentVolumeClaims than before.
    """
    if settings.storage == "none":
        return SelectedStorage("none", "by --storage")
    if settings.storage == "provision":
        no_snapshots = await why_no_snapshots(settings, home, remote)
        return SelectedStorage("provision", "by --storage", no_snapshots)
    missing = await _missing(settings, home, remote)
    if not missing:
        no_snapshots = await why_no_snapshots(settings, home, remote)
        return SelectedStorage("provision", "all permissions for it are granted", no_snapshots)
    names = summarize_names(missing, _MAX_NAMED)
    node = await registered_node()
    provisioned = node is not None and join_record.recorded_storage(node) == "provision"
    if node is not None and provisioned and await _may_have_volumes(home, node):
        raise PreflightError(
            f"both: the virtual node has volumes, and the credentials may no longer {names};"
            " grant it (`bridge rbac home` and `bridge rbac remote` with --storage provision), or "
            "join with --storage none, after which pods mount the remote's PersistentVolumeClaims "
            "of the same names"
        )
    return SelectedStorage("none", f"the credentials may not {names}; see --storage")


async def _may_have_volumes(home: KubeClient, node: Object) -> bool:
    """Whether home has PersistentVolumes with data in the node's remote; also if the credential may
    not find out."""
    try:
        volumes = (await home.list(PERSISTENT_VOLUMES)).items
    except Forbidden:
        return True
    remote_id = node_object.remote_id_of(node)
    handles = map(volume_handle, volumes)
    return any(handle is not None and handle.remote_id == remote_id for handle in handles)


async def _missing(settings: JoinSettings, home: KubeClient, remote: KubeClient) -> list[str]:
    in_remote = permissions.for_remote_storage(settings.remote_namespaces)
    return [
        *await permissions.missing_permissions(home, permissions.HOME_STORAGE, ""),
        *await permissions.missing_permissions(remote, in_remote, ""),
    ]


async def why_no_snapshots(settings: JoinSettings, home: KubeClient, remote: KubeClient) -> str:
    """Why volumes have no snapshots, see `SelectedStorage.no_snapshots`. Raises KubeError."""
    for side, client, resource in (
        ("home", home, VOLUME_SNAPSHOT_CONTENTS),
        ("remote", remote, VOLUME_SNAPSHOTS),
    ):
        if not await discovery.serves_resource(client, resource):
            return f"{side} does not serve {resource.plural}.{resource.version}.{resource.group}"
    in_remote = permissions.for_remote_snapshots(settings.remote_namespaces)
    missing = [
        *await permissions.missing_permissions(home, permissions.HOME_SNAPSHOTS, ""),
        *await permissions.missing_permissions(remote, in_remote, ""),
    ]
    return f"the credentials may not {summarize_names(missing, _MAX_NAMED)}" if missing else ""
