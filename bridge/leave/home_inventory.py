"""What of a virtual node is at home, and on this machine, when it is to leave. Only reads.

What the credential may not see it has not made, and counts as not there.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from bridge.base.errors import PreflightError
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.tls_key_pair import CertificateError
from bridge.election import leave_lock
from bridge.install import uninstall
from bridge.install.uninstall import ExistingInstallation
from bridge.leave.summary import HomeState, LeaveSettings
from bridge.node import join_record, node_object
from bridge.node.lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.relay.forward import stale_slices
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden, NotFound
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS, LEASES, NAMESPACES, NODES, PODS
from translators import offload_patch
from translators.identity import Identity, home_id_from_uid
from translators.names import label_value
from translators.objects import Object, metadata, name_of, uid_of
from translators.timestamps import parse_time


async def collect(home: KubeClient, settings: LeaveSettings) -> HomeState:
    node = await _node(home, settings.name)
    warnings: list[str] = []
    there = await uninstall.find_installation(home, settings.name, node, warn=warnings.append)
    lease = await _lease(home, settings, there)
    identity = home_id_from_uid(uid_of(await home.get(NAMESPACES, "kube-system")))
    return HomeState(
        home_id=identity,
        node=node,
        lease=lease,
        pods=await list_pods(home, settings.name),
        certificate_requests=await _requests(home, settings.name),
        sibling_nodes=await _others(home, settings.name, node),
        certificate_store=_folder(settings, node, identity),
        relay_slices=await list_relay_slices(home, settings.name, identity),
        relay_cidr=_left_cidr(node),
        installation=there,
        warnings=warnings,
        offloaded_namespaces=await _offloaded(home)
        if there is not None and there.has_webhook
        else [],
    )


async def refresh(home: KubeClient, settings: LeaveSettings, found: HomeState) -> None:
    """Brings ``found`` up to date, once no bridge of the node writes any more."""
    found.pods = await list_pods(home, settings.name)
    found.certificate_requests = await _requests(home, settings.name)
    with contextlib.suppress(NotFound):
        found.lease = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    found.certificate_store = found.certificate_store or _folder(
        settings, found.node, found.home_id
    )
    found.sibling_nodes = await _others(home, settings.name, found.node)


async def _offloaded(home: KubeClient) -> list[str]:
    return sorted(
        map(name_of, (await home.list(NAMESPACES, labels=offload_patch.LABEL_OFFLOAD)).items)
    )


async def _node(home: KubeClient, name: str) -> Object | None:
    try:
        node = await home.get(NODES, name)
    except NotFound:
        return None
    if node_object.LABEL_REMOTE not in (metadata(node).get("labels") or {}):
        raise PreflightError(f"home: node {name} is not a bridge's virtual node; left alone")
    return node


async def _lease(
    home: KubeClient, settings: LeaveSettings, there: ExistingInstallation | None
) -> Object | None:
    """The node's Lease. Raises PreflightError where a bridge that holds it is in the way: not of a
    drain, and what is to be kept it would end, whatever the force. One that is installed in home is
    stopped later on."""
    try:
        lease = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    except NotFound:
        return None
    in_the_way = not settings.drain and (settings.keep_workloads or not settings.force)
    in_the_way = in_the_way and there is None
    if in_the_way and (served := await find_serving_bridge(home, settings.name, lease)):
        how = "" if settings.keep_workloads else ", or leave with --force"
        raise PreflightError(
            f"home: a bridge serves node {settings.name}: {served}; stop it with Ctrl-C and "
            f"leave again{how}"
        )
    return lease


async def find_serving_bridge(home: KubeClient, name: str, lease: Object | None) -> str:
    """How it is known that a bridge serves the node; "" where none does."""
    served = await leave_lock.find_serving_bridge(home, name)
    if served is not None:
        return f"{served} renews its lease" if served else ""
    # Of a bridge that had no other lease than the Node's.
    age = seconds_since_renewal(lease)
    return "" if age is None else f"its Lease was renewed {age:.0f} s ago"


def seconds_since_renewal(lease: Object | None) -> float | None:
    """How many seconds ago a bridge last said that it serves the node; None where none does."""
    spec = (lease or {}).get("spec") or {}
    if not (spec.get("holderIdentity") and spec.get("renewTime")):
        return None
    renewed = parse_time(str(spec["renewTime"]))
    # Home's clock can be ahead of ours.
    age = max((datetime.now(UTC) - renewed).total_seconds(), 0.0)
    return age if age < LEASE_SECONDS else None


async def _others(home: KubeClient, name: str, node: Object | None) -> set[str] | None:
    """The labels of the other virtual nodes of the same remote, or of all remotes where the Node
    is gone that names it; None where the credential may not list nodes (`bridge rbac home --name`
    grants those that it names)."""
    remote_id = (metadata(node).get("labels") or {}).get(node_object.LABEL_REMOTE) if node else None
    selector = f"{node_object.LABEL_REMOTE}={remote_id}" if remote_id else node_object.LABEL_REMOTE
    try:
        nodes = (await home.list(NODES, labels=selector)).items
    except Forbidden:
        return None
    return {label_value(name_of(it)) for it in nodes if name_of(it) != name}


async def list_pods(home: KubeClient, node_name: str) -> list[Object]:
    return (await home.list(PODS, fields=f"spec.nodeName={node_name}")).items


async def list_relay_slices(home: KubeClient, node_name: str, identity: str) -> list[Object]:
    """The slices of a relay; none where the credential may not look: then it has made none."""
    try:
        return await stale_slices.list_slices(
            home, Identity(home_id=identity, home_name=identity[:8], node=node_name)
        )
    except Forbidden:
        return []


def _left_cidr(node: Object | None) -> str:
    from bridge.relay.forward import local_route

    told = join_record.relay_cidr(node)
    try:
        return told if told and local_route.is_stale(told) else ""
    except ValueError:  # Somebody has written something else there.
        return ""


async def _requests(home: KubeClient, node_name: str) -> list[Object]:
    """The node's requests for a serving certificate; none where the credential may not look: then
    it has made none."""
    from bridge.certificates.csr import SIGNER, is_csr_of_node

    try:
        page = await home.list(CERTIFICATE_SIGNING_REQUESTS, fields=f"spec.signerName={SIGNER}")
    except Forbidden:
        return []
    return [it for it in page.items if is_csr_of_node(it, node_name)]


def _folder(settings: LeaveSettings, node: Object | None, identity: str) -> CertDir | None:
    remembered = (metadata(node).get("annotations") or {}) if node else {}
    path = settings.cert_dir or remembered.get(node_object.ANNOTATION_CERT_DIR)
    with contextlib.suppress(CertificateError):  # no home folder: nothing is kept in it
        folder = CertDir(Path(path) if path else default_cert_dir(identity, settings.name))
        return folder if folder.exists() else None
    return None
