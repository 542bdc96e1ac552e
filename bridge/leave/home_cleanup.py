"""Deletes what belongs to a leaving virtual node in home and on this machine.

The Node is deleted last: as long as it exists, another `bridge leave` finds the rest. Objects that
the credential may not delete are reported and stay.
"""

from __future__ import annotations

from bridge.base.progress_lines import Caveat
from bridge.certificates.tls_key_pair import CertificateError
from bridge.clusters.cluster_reads_selection import select_cluster_reads
from bridge.clusters.connection import Notify
from bridge.install import uninstall
from bridge.leave import home_inventory
from bridge.leave.leave_summary import HomeState, LeaveSettings, RemoteState
from bridge.node import namespace_ownership_lease
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.relay.forward import relay_cidr_route
from sync.base.resource_version import version_of
from sync.kube import bearer_token
from sync.kube.api_errors import Conflict, Forbidden, NotFound
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CSI_STORAGE_CAPACITIES,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
)
from sync.kube.client import KubeClient
from sync.namespaces import namespace_ownership
from translators.object_accessors import Object, name_of, namespace_of, namespaced_name, uid_of
from translators.ownership_labels import home_selector
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE

#: Attempts to change PVCs that other clients change in the meantime.
ATTEMPTS = 3


async def remove_namespace_record(
    settings: LeaveSettings,
    home: KubeClient,
    home_state: HomeState,
    remote_state: RemoteState,
    *,
    notify: Notify,
) -> None:
    """Removes the node's entries from the record of namespaces that the bridge created.

    Entries of namespaces that stay because they hold unmanaged objects are kept for the next join.
    If the remote was not cleaned up, all entries are removed.
    """
    staying: list[str] = []
    remote = remote_state.client
    is_cleaned = not remote_state.failure and not settings.keep_workloads
    if remote is not None and is_cleaned:
        recorded = await namespace_ownership_lease.recorded_namespaces(home, settings.name)
        labels = home_selector(home_state.identity)
        # With prepared namespaces alone, a bridge creates none.
        reads = await select_cluster_reads(remote, home_state.remote_namespaces)
        may_exist = recorded and reads.namespaces
        existing = (await remote.list(NAMESPACES, labels=labels)).items if may_exist else []
        staying = namespace_ownership.still_existing(recorded, existing)
    try:
        await namespace_ownership_lease.remove_record(home, settings.name, staying)
    except Forbidden:
        notify(
            Caveat(
                f"home: Lease {namespace_ownership_lease.NAME} keeps the "
                f"entries of node {settings.name}: the credential may not change it"
            )
        )


async def remove(
    settings: LeaveSettings, home: KubeClient, state: HomeState, *, notify: Notify
) -> None:
    """Deletes everything except the pods, the Node last. Raises KubeError and PreflightError."""
    # Listed again: a bridge that was stopped meanwhile deleted some, or created others.
    slices = await home_inventory.list_relay_slices(home, state.identity)
    capacities = await home_inventory.list_storage_capacities(home, state.identity)
    expires = "home deletes it within a day"
    is_unused = "its endpoints no longer answer, so delete it with kubectl"
    for resource, obj, consequence in (
        *((CERTIFICATE_SIGNING_REQUESTS, it, expires) for it in state.certificate_requests),
        *((ENDPOINT_SLICES, it, is_unused) for it in slices),
        *((CSI_STORAGE_CAPACITIES, it, "it has no effect without the Node") for it in capacities),
    ):
        try:
            await home.delete(resource, name_of(obj), namespace=namespace_of(obj), uid=uid_of(obj))
        except Forbidden:
            notify(
                Caveat(
                    f"home: {resource.kind} {namespaced_name(obj)} stays: the credential may not "
                    f"delete it; {consequence}"
                )
            )
    await _release_pending_claims(home, settings.name, notify)
    if state.lease is not None:
        await home.delete(LEASES, settings.name, namespace=LEASE_NAMESPACE, uid=uid_of(state.lease))
    if state.certificate_store is not None:
        try:
            state.certificate_store.remove()
        except CertificateError as error:
            notify(Caveat(f"here: {error}"))
    if state.relay_cidr:
        _delete_local_route(state.relay_cidr, notify=notify)
    if state.installation is not None:
        await uninstall.remove(home, state.installation)
    if state.node is not None:
        await home.delete(NODES, settings.name, uid=uid_of(state.node))
        # DaemonSet controllers may have created pods for the node meanwhile.
        for pod in await home_inventory.list_pods(home, settings.name):
            await delete_pod(home, pod, grace_seconds=0)


async def _release_pending_claims(home: KubeClient, node_name: str, notify: Notify) -> None:
    """Lets the home cluster's scheduler select other nodes for PVCs that no bridge of this node
    will provision: the scheduler considers no other node while the annotation names one, and leaves
    its removal to the provisioner, which is the bridge. Raises KubeError."""
    patch: Object = {"annotations": {ANNOTATION_SELECTED_NODE: None}}
    for _ in range(ATTEMPTS):
        has_changed = False
        for claim in await home_inventory.list_pending_claims(home, node_name):
            version = {"uid": uid_of(claim), "resourceVersion": version_of(claim)}
            try:
                await home.patch(
                    PERSISTENT_VOLUME_CLAIMS,
                    name_of(claim),
                    {"metadata": {**patch, **version}},
                    namespace=namespace_of(claim),
                )
            except (Conflict, NotFound):
                has_changed = True  # The next list decides.
            except Forbidden:
                notify(
                    Caveat(
                        f"home: PersistentVolumeClaim {namespaced_name(claim)} still selects node "
                        f"{node_name}: the credential may not change it; remove its annotation "
                        f"{ANNOTATION_SELECTED_NODE}, so that its pod can run on another node"
                    )
                )
        if not has_changed:
            return


def _delete_local_route(cidr: str, *, notify: Notify) -> None:
    try:
        relay_cidr_route.remove_stale(cidr)
    except relay_cidr_route.LocalRouteError as error:
        notify(Caveat(f"here: {error}; `ip route del local {cidr} dev lo` removes it"))


def forget_renewed_token(state: HomeState, remote_state: RemoteState, *, notify: Notify) -> None:
    """Deletes the token of this machine that replaced the one of the remote's kubeconfig, unless
    another virtual node of the remote may use it."""
    token = remote_state.client.credentials.kubeconfig_token.own if remote_state.client else ""
    if not token or state.sibling_nodes is None or state.sibling_nodes:
        return
    try:
        bearer_token.forget(token)
    except OSError as error:
        notify(Caveat(f"here: the renewed token of the remote stays: {error.strerror}"))


async def delete_pod(home: KubeClient, pod: Object, *, grace_seconds: int | None = None) -> None:
    """Deletes the pod by its UID; None keeps the pod's own grace period."""
    await home.delete(
        PODS,
        name_of(pod),
        namespace=namespace_of(pod),
        uid=uid_of(pod),
        grace_seconds=grace_seconds,
    )
