"""The state that `bridge leave` works on, and the text that describes it to the user. Pure.

`removal_lines` lists what will be removed, `warning_lines` what stays and the consequences,
`leftover_lines` what could not be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bridge.certificates.cert_dir import CertDir
from bridge.install.installation_lookup import ExistingInstallation
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.remote_claim.claim_record import Claim
from sync.cleanup.remote_inventory import Inventory
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, name_of, namespaced_name
from translators.storage import volume_snapshot
from translators.storage.identifiers import claim_of_volume
from translators.virtual_node_identity import Identity

#: Objects of a kind that are listed before the rest is only counted.
MAX_LISTED = 20
#: Default of the longest wait for pods, in seconds: an uninstallation must not hang, and most grace
#: periods are shorter.
DEFAULT_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class LeaveSettings:
    """Options of `bridge leave`."""

    name: str
    home: KubeconfigRef
    remote: KubeconfigRef | None
    """None for the kubeconfig that the Node records."""
    force: bool
    """Continue although a bridge serves the node, or the remote cannot be reached."""
    drain: bool = False
    """Evict the pods first, within their PodDisruptionBudgets."""
    keep_workloads: bool = False
    """Change nothing in the remote."""
    keep_volumes: bool = False
    """Leave although volumes of home have their data in the remote."""
    timeout: float = DEFAULT_TIMEOUT
    """Longest wait for pods, in seconds."""
    cert_dir: Path | None = None
    """Folder of the serving certificate; None for the one that the Node records."""
    remote_namespaces: tuple[str, ...] = ()
    """The remote's prepared namespaces; () for those that the Node records."""
    deployment: tuple[str, str] | None = None
    """Namespace and name of the Deployment of the node's bridges that another tool installed and
    will remove: it is scaled to 0 and stays."""


@dataclass(slots=True)
class HomeState:
    """Everything of the node in the home cluster and on this machine."""

    identity: Identity
    node: Object | None
    lease: Object | None
    pods: list[Object] = field(default_factory=list)
    certificate_requests: list[Object] = field(default_factory=list)
    """CertificateSigningRequests."""
    sibling_nodes: set[str] | None = None
    """Label values of the home cluster's other virtual nodes that may have objects in the same
    remote; None if unknown."""
    certificate_store: CertDir | None = None
    """None if this machine stores no certificate of the node."""
    relay_slices: list[Object] = field(default_factory=list)
    """EndpointSlices that route home's Services to the bridge."""
    volumes: list[Object] = field(default_factory=list)
    """Home's PersistentVolumes and VolumeSnapshotContents with data in the node's remote, if no
    other virtual node serves it."""
    pending_claims: list[Object] = field(default_factory=list)
    """Unbound PersistentVolumeClaims for which the home cluster's scheduler has selected the
    node."""
    storage_capacities: list[Object] = field(default_factory=list)
    """CSIStorageCapacity objects of the node."""
    relay_cidr: str = ""
    """The range of a local route that a killed bridge left on this machine; "" for none."""
    installation: ExistingInstallation | None = None
    """What `bridge install` installed."""
    remote_namespaces: tuple[str, ...] = ()
    """The remote's prepared namespaces; () if the bridge was not limited to some."""
    warnings: list[str] = field(default_factory=list)
    """Secrets with an installation's labels that were ignored, and why."""
    offloaded_namespaces: list[str] = field(default_factory=list)
    """Namespaces whose pods the installation's webhook mutates."""


@dataclass(slots=True)
class RemoteState:
    """Everything of the node in the remote cluster."""

    client: KubeClient | None = None
    """None if the remote cannot be reached."""
    failure: str = ""
    """Why something was not removed; "" if nothing failed."""
    inventory: Inventory = field(default_factory=Inventory)
    claim: Claim | None = None
    """The claim of this home's bridges on the remote, if there is one."""


def removal_lines(
    settings: LeaveSettings, home_state: HomeState, remote_state: RemoteState
) -> list[str]:
    """The objects that will be removed, one object or group per line."""
    lines = []
    if home_state.node is not None:
        lines.append(f"home:   Node {settings.name} and its Lease")
    elif home_state.lease is not None:
        lines.append(f"home:   Lease {LEASE_NAMESPACE}/{settings.name}")
    requests = home_state.certificate_requests
    lines += [f"home:   CertificateSigningRequest {name_of(it)}" for it in requests]
    lines += _object_lines("home:   Pod", home_state.pods)
    lines += _object_lines("home:   EndpointSlice", home_state.relay_slices)
    lines += _object_lines("home:   CSIStorageCapacity", home_state.storage_capacities)
    pending = home_state.pending_claims
    lines += _object_lines("home:   the selection of the node by PersistentVolumeClaim", pending)
    if home_state.installation is not None:
        lines += home_state.installation.lines()
    if home_state.certificate_store is not None:
        lines.append(f"here:   the node's certificate and key in {home_state.certificate_store}")
    if home_state.relay_cidr:
        lines.append(f"here:   the local route for {home_state.relay_cidr}")
    return lines if settings.keep_workloads else lines + remote_lines(remote_state.inventory)


def warning_lines(
    settings: LeaveSettings, home_state: HomeState, remote_state: RemoteState
) -> list[str]:
    """The objects that stay, and other consequences to know before confirming."""
    lines = []
    if home_state.offloaded_namespaces:
        lines.append(
            f"home: namespace(s) {', '.join(home_state.offloaded_namespaces)} are offloaded, and "
            "the webhook that is removed no longer mutates their pods; `bridge offload` lists what "
            "does, `bridge unoffload` stops offloading"
        )
    if home_state.volumes:
        lines.append(
            f"home: {_volume_names(home_state.volumes)} and the data in the remote stay; pods can "
            "use them again after the next join of the same remote"
        )
    if remote_state.client is None:
        return [
            *lines,
            f"remote: cannot be reached, so nothing is removed there: {remote_state.failure}",
        ]
    if settings.keep_workloads:
        return lines + _keep_workloads_lines(settings, remote_state.inventory)
    return lines + shared_lines(remote_state.inventory)


def volumes_error(name: str, volumes: Sequence[Object]) -> str:
    """Why the node cannot leave: home's volumes have their data in its remote."""
    return (
        f"home: {_volume_names(volumes)} have their data in the remote of node {name}, and pods "
        "cannot use it without the node; delete their PersistentVolumeClaims and VolumeSnapshots, "
        "or leave with --keep-volumes, which keeps the volumes and their data for the next join"
    )


def _volume_names(volumes: Sequence[Object]) -> str:
    snapshots = [it for it in volumes if volume_snapshot.is_served(it)]
    others = [it for it in volumes if not volume_snapshot.is_served(it)]
    listed = {
        "PersistentVolumes": [_volume_name(it) for it in others],
        "VolumeSnapshots": [str(volume_snapshot.snapshot_ref(it)) for it in snapshots],
    }
    return " and ".join(f"{kind} {_first(names)}" for kind, names in listed.items() if names)


def _volume_name(volume: Object) -> str:
    claim = claim_of_volume(volume)
    of = f" ({claim.namespace}/{claim.name})" if claim is not None else ""
    return f"{name_of(volume)}{of}"


def _first(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return ", ".join([*names[:MAX_LISTED], *more])


def _keep_workloads_lines(settings: LeaveSettings, inventory: Inventory) -> list[str]:
    pods, copies = len(inventory.pods), len(inventory.copies)
    stays = (
        f"remote: {pods} pod(s) and {copies} object(s) for them stay as they are, with their "
        "labels. No bridge manages them from now on: failed or deleted pods are not replaced; "
        "ConfigMaps, Secrets and endpoints are not updated; tokens of home's service accounts "
        "expire; and a pod with restartPolicy Never that has not started never starts"
    )
    runs_twice = (
        "home: controllers create replacements elsewhere, so their workload runs twice from now "
        f"on; joining again as {settings.name} would remove what stays"
    )
    return [stays, runs_twice]


def leftover_lines(home_state: HomeState, remote_state: RemoteState) -> list[str]:
    """The objects that could not be removed, and the command that removes them later."""
    identity = home_state.identity
    if remote_state.client is not None:
        lines = remote_lines(remote_state.inventory)
    else:
        lines = _object_lines("remote: the remote pod of home's Pod", home_state.pods)
        lines.append("remote: the objects that were copied for these pods, and their namespaces")
    later = (
        "remote: when it is reachable again, `bridge prune --kubeconfig REMOTE --remove "
        f"{identity.home_id} --node {identity.node_label}` removes the rest"
    )
    return [
        f"remote: not everything was removed: {remote_state.failure}",
        *(f"{line}: may be left" for line in lines),
        later,
    ]


def shared_lines(inventory: Inventory) -> list[str]:
    """The copies that stay because other virtual nodes use them."""
    lines = [
        f"remote: {it.resource.kind} {namespaced_name(it.copy)} stays: pods of virtual node "
        f"{it.user} use it"
        for it in inventory.shared[:MAX_LISTED]
    ]
    if (more := len(inventory.shared) - MAX_LISTED) > 0:
        lines.append(f"remote: {more} more object(s) stay for the same reason")
    return lines


def format_counts(inventory: Inventory) -> str:
    """The number of objects of an inventory by kind, as part of a sentence."""
    counts = {
        "Pod": len(inventory.pods),
        "copy": len(inventory.copies),
        "PersistentVolumeClaim": len(inventory.unfinished_claims),
        "Namespace": len(inventory.namespaces),
    }
    return ", ".join(f"{kind}: {count}" for kind, count in counts.items() if count)


def remote_lines(inventory: Inventory) -> list[str]:
    """The objects of an inventory of the remote, one per line."""
    lines = _object_lines("remote: Pod", inventory.pods)
    for resource in dict.fromkeys(resource for resource, _ in inventory.copies):
        copies = [copy for kind, copy in inventory.copies if kind is resource]
        lines += _object_lines(f"remote: {resource.kind}", copies)
    claims = _object_lines("remote: PersistentVolumeClaim", inventory.unfinished_claims)
    lines += [f"{line}, which has no data yet" for line in claims]
    namespaces = _object_lines("remote: Namespace", inventory.namespaces)
    return lines + [f"{line}, if otherwise empty" for line in namespaces]


def _object_lines(prefix: str, objects: Sequence[Object]) -> list[str]:
    lines = [f"{prefix} {namespaced_name(obj)}" for obj in objects[:MAX_LISTED]]
    if (more := len(objects) - MAX_LISTED) > 0:
        lines.append(f"{prefix}: {more} more")
    return lines
