"""Finds what belongs to a leaving virtual node in home and on this machine. Read-only.

A credential that may not list a resource cannot have created any, so the resource counts as absent.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from bridge.base.command_error import PreflightError
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.tls_key_pair import CertificateError
from bridge.election import leave_lock
from bridge.install import installation_lookup
from bridge.install.installation_lookup import ExistingInstallation
from bridge.leave.leave_summary import HomeState, LeaveSettings
from bridge.node import join_record_annotation, node_object
from bridge.node.node_lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.relay.forward import stale_endpoint_slices
from sync.kube.api_errors import Forbidden, NotFound
from sync.kube.client import KubeClient
from sync.kube.resources import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
)
from translators import offload_admission_patch
from translators.names import label_value
from translators.objects import Object, metadata, name_of, uid_of
from translators.timestamps import parse_time
from translators.virtual_node_identity import Identity, home_id_from_uid


async def collect(home: KubeClient, settings: LeaveSettings) -> HomeState:
    """Reads everything. Raises PreflightError if the Node is unmanaged or a running bridge prevents
    the removal, and KubeError."""
    node = await _get_node(home, settings.name)
    warnings: list[str] = []
    installation = await installation_lookup.find_installation(
        home, settings.name, node, warn=warnings.append
    )
    lease = await _get_lease(home, settings, installation)
    home_id = home_id_from_uid(uid_of(await home.get(NAMESPACES, "kube-system")))
    has_webhook = installation is not None and installation.has_webhook
    return HomeState(
        home_id=home_id,
        node=node,
        lease=lease,
        pods=await list_pods(home, settings.name),
        certificate_requests=await _list_certificate_requests(home, settings.name),
        sibling_nodes=await _list_sibling_nodes(home, settings.name, node),
        certificate_store=_certificate_store(settings, node, home_id),
        relay_slices=await list_relay_slices(home, settings.name, home_id),
        relay_cidr=_leftover_relay_cidr(node),
        installation=installation,
        warnings=warnings,
        offloaded_namespaces=await _list_offloaded_namespaces(home) if has_webhook else [],
    )


async def refresh(home: KubeClient, settings: LeaveSettings, state: HomeState) -> None:
    """Updates ``state`` after the node's bridges have stopped writing."""
    state.pods = await list_pods(home, settings.name)
    state.certificate_requests = await _list_certificate_requests(home, settings.name)
    with contextlib.suppress(NotFound):
        state.lease = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    if state.certificate_store is None:
        state.certificate_store = _certificate_store(settings, state.node, state.home_id)
    state.sibling_nodes = await _list_sibling_nodes(home, settings.name, state.node)


async def _list_offloaded_namespaces(home: KubeClient) -> list[str]:
    return sorted(
        map(
            name_of,
            (await home.list(NAMESPACES, labels=offload_admission_patch.LABEL_OFFLOAD)).items,
        )
    )


async def _get_node(home: KubeClient, name: str) -> Object | None:
    try:
        node = await home.get(NODES, name)
    except NotFound:
        return None
    if not node_object.is_virtual_node(node):
        raise PreflightError(
            f"home: node {name} is not a bridge's virtual node; nothing was changed"
        )
    return node


async def _get_lease(
    home: KubeClient, settings: LeaveSettings, installation: ExistingInstallation | None
) -> Object | None:
    """The node's Lease. Raises PreflightError if a bridge outside of home's cluster holds it and
    must be stopped first: with ``keep_workloads`` always, since it would delete the pods that are
    to be kept, otherwise unless ``force`` or ``drain`` is set."""
    try:
        lease = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    except NotFound:
        return None
    must_be_stopped = not settings.drain and (settings.keep_workloads or not settings.force)
    if not must_be_stopped or installation is not None:
        return lease
    if evidence := await find_serving_bridge(home, settings.name, lease):
        hint = "" if settings.keep_workloads else ", or leave with --force"
        raise PreflightError(
            f"home: a bridge serves node {settings.name}: {evidence}; stop it with Ctrl-C and "
            f"leave again{hint}"
        )
    return lease


async def find_serving_bridge(home: KubeClient, name: str, lease: Object | None) -> str:
    """The evidence that a bridge serves the node, as text; "" if none does."""
    holder = await leave_lock.find_serving_bridge(home, name)
    if holder is not None:
        return f"{holder} renews its lease" if holder else ""
    # Without an election lease, only the Node's Lease shows a bridge.
    age = seconds_since_renewal(lease)
    return "" if age is None else f"its Lease was renewed {age:.0f} s ago"


def seconds_since_renewal(lease: Object | None) -> float | None:
    """The age of a valid renewal by a holder; None if the Lease has no holder or has expired."""
    spec = (lease or {}).get("spec") or {}
    if not (spec.get("holderIdentity") and spec.get("renewTime")):
        return None
    renewed = parse_time(str(spec["renewTime"]))
    # Home's clock can be ahead of this machine's.
    age = max((datetime.now(UTC) - renewed).total_seconds(), 0.0)
    return age if age < LEASE_SECONDS else None


async def _list_sibling_nodes(home: KubeClient, name: str, node: Object | None) -> set[str] | None:
    """The label values of home's other virtual nodes for the same remote, or for all remotes if the
    Node does not exist. None if the credential may not list nodes (`bridge rbac home --name` grants
    only the named ones)."""
    remote_id = node_object.remote_id_of(node or {})
    selector = f"{node_object.LABEL_REMOTE}={remote_id}" if remote_id else node_object.LABEL_REMOTE
    try:
        nodes = (await home.list(NODES, labels=selector)).items
    except Forbidden:
        return None
    return {label_value(name_of(it)) for it in nodes if name_of(it) != name}


async def list_pods(home: KubeClient, node_name: str) -> list[Object]:
    return (await home.list(PODS, fields=f"spec.nodeName={node_name}")).items


async def list_relay_slices(home: KubeClient, node_name: str, home_id: str) -> list[Object]:
    """The EndpointSlices of the node's relay; empty if the credential may not list them."""
    try:
        return await stale_endpoint_slices.list_slices(
            home, Identity(home_id=home_id, home_name=home_id[:8], node=node_name)
        )
    except Forbidden:
        return []


def _leftover_relay_cidr(node: Object | None) -> str:
    from bridge.relay.forward import local_route

    cidr = join_record_annotation.relay_cidr(node)
    try:
        return cidr if cidr and local_route.is_stale(cidr) else ""
    except ValueError:  # The annotation does not hold a CIDR.
        return ""


async def _list_certificate_requests(home: KubeClient, node_name: str) -> list[Object]:
    """The node's CSRs for serving certificates; empty if the credential may not list them."""
    from bridge.certificates.csr import list_csrs_of_node

    try:
        return await list_csrs_of_node(home, node_name)
    except Forbidden:
        return []


def _certificate_store(
    settings: LeaveSettings, node: Object | None, home_id: str
) -> CertDir | None:
    annotations = (metadata(node).get("annotations") or {}) if node else {}
    path = settings.cert_dir or annotations.get(node_object.ANNOTATION_CERT_DIR)
    with contextlib.suppress(CertificateError):  # No home directory: no default folder either.
        store = CertDir(Path(path) if path else default_cert_dir(home_id, settings.name))
        return store if store.exists() else None
    return None
