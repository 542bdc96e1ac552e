"""Finds and deletes the unfinished PVCs of a leaving virtual node in the remote.

A bridge that is stopped while it provisions leaves a PVC that it has marked as unfinished
(`translators.storage.identifiers.ANNOTATION_UNFINISHED`) and that no bridge would delete any more.
It has no data: no pod mounts a PVC before the mark is removed. A PVC is deleted only if

- its labels and annotations name this home and this node, or a node that no longer exists, and it
  is in the namespace to which the join that the Node records maps its home namespace;
- home has no PersistentVolume for it, and its home PVC, if that exists, is not to be provisioned by
  another node: the bridge of that node continues with the same remote PVC;
- no pod of the remote mounts it;
- it is unchanged since it was read: its deletion names its UID and resourceVersion.

Every other PVC stays. A credential that may not list PVCs, or not read what decides, deletes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from bridge.base.progress_lines import Waiting
from bridge.clusters.connection import Notify
from bridge.leave.leave_summary import HomeState
from bridge.node import join_record
from bridge.rbac import permissions
from sync.cleanup.remote_inventory import ReadScope
from sync.kube.api_errors import Conflict, Forbidden
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.ownership_labels import (
    LABEL_NODE,
    home_selector,
    is_in_mapped_namespace,
    origin_of,
)
from translators.storage.identifiers import is_unfinished, selected_node, volume_name
from translators.storage.pvc_resolution import mounted_claims

#: Seconds until the end of a deletion is no longer awaited, and between two reads. Without a pod
#: nothing delays it; a namespace with a PVC that is left stays.
TIMEOUT, POLL = 30.0, 0.2


async def find(
    home: KubeClient, remote: KubeClient, state: HomeState, scope: ReadScope
) -> list[Object]:
    """The PVCs that may be deleted. Raises KubeError."""
    labels = home_selector(state.identity)
    # Asked first: a bridge without storage sends no request that the remote forbids.
    reads = [
        permissions.Permission(PERSISTENT_VOLUME_CLAIMS, ("list",), namespace=it)
        for it in scope.namespaces or ("",)
    ]
    if not await permissions.are_granted(remote, reads):
        return []
    try:
        pages = [
            await remote.list(PERSISTENT_VOLUME_CLAIMS, namespace=it, labels=labels)
            for it in scope.namespaces or (None,)
        ]
        candidates = [it for page in pages for it in page.items if _is_of_node(it, state)]
        if not candidates:
            return []
        volumes = {name_of(it) for it in (await home.list(PERSISTENT_VOLUMES)).items}
        unused = [it for it in candidates if await _is_unused_at_home(home, it, volumes, state)]
        return await _unmounted(remote, unused)
    except Forbidden:
        return []


async def delete(remote: KubeClient, claims: Iterable[Object], *, notify: Notify) -> None:
    """Deletes the PVCs that are unchanged, and waits at most `TIMEOUT` seconds until they no longer
    exist. Raises KubeError."""
    left = []
    for claim in claims:
        try:
            await remote.delete_unchanged(PERSISTENT_VOLUME_CLAIMS, claim)
        except Conflict:
            continue  # Changed meanwhile; the next inventory decides again.
        left.append(claim)
    try:
        async with asyncio.timeout(TIMEOUT):
            while left := [it for it in left if await _exists(remote, it)]:
                notify(Waiting(f"remote: {len(left)} PersistentVolumeClaim(s) are being deleted"))
                await asyncio.sleep(POLL)
    except TimeoutError:
        return


def _is_of_node(claim: Object, state: HomeState) -> bool:
    node = (metadata(claim).get("labels") or {}).get(LABEL_NODE)
    is_of_lost_node = state.sibling_nodes is not None and node not in state.sibling_nodes
    is_ours = node == state.identity.node_label or is_of_lost_node
    is_candidate = is_ours and is_unfinished(claim) and origin_of(claim) is not None
    if not is_candidate or state.node is None:
        return is_candidate
    policy, is_recorded = join_record.read_policy(state.node, state.identity.home_id)
    return not is_recorded or is_in_mapped_namespace(claim, policy.identity)


async def _is_unused_at_home(
    home: KubeClient, claim: Object, volumes: Collection[str], state: HomeState
) -> bool:
    origin = origin_of(claim)
    if origin is None or volume_name(origin.uid) in volumes:
        return False
    wanted = await home.find(PERSISTENT_VOLUME_CLAIMS, origin.name, namespace=str(origin.namespace))
    if wanted is None or uid_of(wanted) != origin.uid:
        return True
    return selected_node(wanted) in ("", state.identity.node)


async def _unmounted(remote: KubeClient, claims: list[Object]) -> list[Object]:
    mounted = {
        (namespace, name)
        for namespace in sorted(set(map(namespace_of, claims)))
        for pod in (await remote.list(PODS, namespace=namespace)).items
        for name in mounted_claims(pod).values()
    }
    return [it for it in claims if (namespace_of(it), name_of(it)) not in mounted]


async def _exists(remote: KubeClient, claim: Object) -> bool:
    now = await remote.find(PERSISTENT_VOLUME_CLAIMS, name_of(claim), namespace=namespace_of(claim))
    return now is not None and uid_of(now) == uid_of(claim)
