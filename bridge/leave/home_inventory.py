"""Finds what belongs to a leaving virtual node in home and on this machine. Read-only.

A credential that may not list a resource cannot have created any, so the resource counts as absent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bridge.base.command_error import PreflightError
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.certificate_kinds import CLIENT, SERVING
from bridge.certificates.signing_outcome import list_csrs_of_node
from bridge.certificates.tls_key_pair import CertificateError
from bridge.clusters.connection import cluster_uid
from bridge.election import serving_bridge_lookup
from bridge.install import installation_lookup
from bridge.leave.leave_summary import HomeState, LeaveSettings
from bridge.node import join_record, node_object
from bridge.node.node_lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.relay.forward import relay_cidr_route, stale_endpoint_slices
from sync.kube import discovery
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import (
    CSI_STORAGE_CAPACITIES,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    VOLUME_SNAPSHOT_CONTENTS,
    Resource,
)
from sync.kube.client import KubeClient
from translators import offload_admission_patch
from translators.derived_names import label_value
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_NODE
from translators.storage import storage_capacity
from translators.storage.identifiers import (
    VolumeHandle,
    awaits_driver,
    bound_volume,
    selected_node,
    volume_handle,
)
from translators.storage.volume_snapshot import served_handle
from translators.timestamps import parse_time
from translators.virtual_node_identity import Identity, home_id_from_uid


async def collect(home: KubeClient, settings: LeaveSettings) -> HomeState:
    """Reads everything. Raises PreflightError if the Node is unmanaged or a running bridge prevents
    the removal, and KubeError."""
    node = await _get_node(home, settings.name)
    warnings: list[str] = []
    if settings.deployment is not None:
        installation = await installation_lookup.read_deployment(
            home, settings.name, *settings.deployment
        )
        if installation is None:
            place = "/".join(settings.deployment)
            warnings.append(f"home: Deployment {place} does not exist, so no bridge is stopped")
    else:
        installation = await installation_lookup.find_installation(
            home, settings.name, node, warn=warnings.append
        )
    lease = await get_lease(home, settings.name)
    must_be_stopped = not settings.drain and (settings.keep_workloads or not settings.force)
    if must_be_stopped and lease is not None and installation is None:
        await _check_not_served(home, settings, lease)
    home_id = home_id_from_uid(await cluster_uid(home))
    state = HomeState(
        identity=Identity(home_id=home_id, home_name=home_id[:8], node=settings.name),
        node=node,
        lease=lease,
        relay_cidr=_leftover_relay_cidr(node),
        installation=installation,
        remote_namespaces=settings.remote_namespaces or join_record.remote_namespaces(node),
        warnings=warnings,
    )
    state.relay_slices = await list_relay_slices(home, state.identity)
    state.storage_capacities = await list_storage_capacities(home, state.identity)
    if installation is not None and installation.has_webhook:
        offloaded = await home.list(NAMESPACES, labels=offload_admission_patch.LABEL_OFFLOAD)
        state.offloaded_namespaces = sorted(map(name_of, offloaded.items))
    await refresh(home, settings, state)
    return state


async def refresh(home: KubeClient, settings: LeaveSettings, state: HomeState) -> None:
    """Reads again what the node's bridges write until they have stopped; also the Node, if they
    created it only then."""
    state.node = state.node or await _get_node(home, settings.name)
    state.pods = await list_pods(home, settings.name)
    state.certificate_requests = await _list_certificate_requests(home, settings.name)
    state.lease = await get_lease(home, settings.name) or state.lease
    if state.certificate_store is None:
        state.certificate_store = _certificate_store(settings, state)
    others = await _list_other_nodes(home, settings.name)
    state.sibling_nodes = _sibling_nodes(others, state.node)
    state.pending_claims = await list_pending_claims(home, settings.name)
    remote_id = node_object.remote_id_of(state.node or {})
    # The affinity of a PersistentVolume names one ID of the remote.
    are_served = any(node_object.remote_id_of(other) == remote_id for other in others or ())
    state.volumes = [] if are_served else await _list_volumes(home, remote_id)


async def _get_node(home: KubeClient, name: str) -> Object | None:
    node = await home.find(NODES, name)
    if node is not None and not node_object.is_virtual_node(node):
        raise PreflightError(
            f"home: node {name} is not a bridge's virtual node; nothing was changed"
        )
    return node


async def get_lease(home: KubeClient, name: str) -> Object | None:
    """The node's Lease."""
    return await home.find(LEASES, name, namespace=LEASE_NAMESPACE)


async def _check_not_served(home: KubeClient, settings: LeaveSettings, lease: Object) -> None:
    """Raises PreflightError if a bridge serves the node. With ``keep_workloads`` it must be stopped
    first in any case, since it would delete the pods that are to be kept."""
    if evidence := await find_serving_bridge(home, settings.name, lease):
        hint = "" if settings.keep_workloads else ", or leave with --force"
        raise PreflightError(
            f"home: a bridge serves node {settings.name}: {evidence}; stop it with Ctrl-C and "
            f"leave again{hint}"
        )


async def find_serving_bridge(home: KubeClient, name: str, lease: Object | None) -> str:
    """The evidence that a bridge serves the node, as text; "" if none does."""
    holder = await serving_bridge_lookup.find_serving_bridge(home, name)
    if holder is not None:
        return f"{holder} renews its lease" if holder else ""
    # Without an election lease, only the Node's Lease shows a bridge.
    spec = (lease or {}).get("spec") or {}
    if not (spec.get("holderIdentity") and spec.get("renewTime")):
        return ""
    # Home's clock can be ahead of this machine's.
    age = max((datetime.now(UTC) - parse_time(str(spec["renewTime"]))).total_seconds(), 0.0)
    return f"its Lease was renewed {age:.0f} s ago" if age < LEASE_SECONDS else ""


async def _list_other_nodes(home: KubeClient, name: str) -> list[Object] | None:
    """The home cluster's other virtual nodes; None if the credential is not permitted to list nodes
    (`bridge rbac home` grants only the named ones)."""
    try:
        nodes = (await home.list(NODES, labels=node_object.LABEL_REMOTE)).items
    except Forbidden:
        return None
    return [node for node in nodes if name_of(node) != name]


def _sibling_nodes(others: list[Object] | None, node: Object | None) -> set[str] | None:
    """The label values of the other virtual nodes that may have objects in the same remote: all of
    them if the Node does not exist, and those whose remote is identified by prepared namespaces.
    None if these are unknown."""
    if others is None:
        return None
    remote_id = node_object.remote_id_of(node or {})
    if remote_id and not join_record.remote_namespaces(node):
        others = [
            other
            for other in others
            if node_object.remote_id_of(other) == remote_id or join_record.remote_namespaces(other)
        ]
    return {label_value(name_of(other)) for other in others}


async def list_pods(home: KubeClient, node_name: str) -> list[Object]:
    return (await home.list(PODS, fields=f"spec.nodeName={node_name}")).items


async def list_relay_slices(home: KubeClient, identity: Identity) -> list[Object]:
    """The EndpointSlices of the node's relay; empty if the credential may not list them."""
    try:
        return await stale_endpoint_slices.list_slices(home, identity)
    except Forbidden:
        return []


async def list_storage_capacities(home: KubeClient, identity: Identity) -> list[Object]:
    """The CSIStorageCapacity objects of the node; empty if the credential may not list them."""
    labels = f"{LABEL_NODE}={identity.node_label}"
    namespace = storage_capacity.NAMESPACE
    try:
        found = await home.list(CSI_STORAGE_CAPACITIES, namespace=namespace, labels=labels)
    except Forbidden:
        return []
    return found.items


async def list_pending_claims(home: KubeClient, node_name: str) -> list[Object]:
    """The PVCs that the node's bridge is to provision and has not; empty if the credential is not
    permitted to list PVCs."""
    try:
        claims = (await home.list(PERSISTENT_VOLUME_CLAIMS)).items
    except Forbidden:
        return []
    return [
        claim
        for claim in claims
        if selected_node(claim) == node_name and awaits_driver(claim) and not bound_volume(claim)
    ]


async def _list_volumes(home: KubeClient, remote_id: str) -> list[Object]:
    """The home cluster's PersistentVolumes and VolumeSnapshotContents with data in the remote;
    without those that the credential is not permitted to list."""
    if not remote_id:
        return []
    readers: dict[Resource, Callable[[Object], VolumeHandle | None]] = {
        PERSISTENT_VOLUMES: volume_handle
    }
    if await discovery.serves_resource(home, VOLUME_SNAPSHOT_CONTENTS):
        readers[VOLUME_SNAPSHOT_CONTENTS] = served_handle
    found: list[Object] = []
    for resource, handle_of in readers.items():
        with contextlib.suppress(Forbidden):
            for it in (await home.list(resource)).items:
                handle = handle_of(it)
                if handle is not None and handle.remote_id == remote_id:
                    found.append(it)
    return found


def _leftover_relay_cidr(node: Object | None) -> str:
    cidr = join_record.relay_cidr(node)
    try:
        return cidr if cidr and relay_cidr_route.is_stale(cidr) else ""
    except ValueError:  # The annotation does not hold a CIDR.
        return ""


async def _list_certificate_requests(home: KubeClient, node_name: str) -> list[Object]:
    """The node's CSRs; empty if the credential may not list them."""
    try:
        found = [await list_csrs_of_node(home, kind, node_name) for kind in (SERVING, CLIENT)]
    except Forbidden:
        return []
    return [request for requests in found for request in requests]


def _certificate_store(settings: LeaveSettings, state: HomeState) -> CertDir | None:
    """The directory of the options, or the node's own. Another one that the Node names is none of
    the files to delete: anyone who may write the Node could choose it."""
    if settings.cert_dir is not None:
        store = CertDir(settings.cert_dir)
        return store if store.exists() else None
    recorded = (metadata(state.node or {}).get("annotations") or {}).get(
        node_object.ANNOTATION_CERT_DIR
    )
    with contextlib.suppress(CertificateError):  # No home directory: no default folder either.
        default = default_cert_dir(state.identity.home_id, settings.name)
        if recorded and Path(recorded) != default and CertDir(Path(recorded)).exists():
            state.warnings.append(
                f"here: certificates in {recorded} stay: name the directory with --cert-dir"
            )
        store = CertDir(default)
        return store if store.exists() else None
    return None
