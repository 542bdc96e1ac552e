"""What leaving knows of both sides, and how it says that to the person who asked.

`summary` is what will be removed, `notes` what will not be and what that means, `left_behind` what
could not be removed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bridge.certificates.cert_dir import CertDir
from bridge.install.uninstall import ExistingInstallation
from bridge.node.lease import LEASE_NAMESPACE
from bridge.remote_claim.claim_record import Claim
from sync.cleanup.inventory import Inventory
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.names import label_value
from translators.objects import Object, name_of, namespace_of

#: Lines of objects that are shown in full before the rest is only counted.
MAX_LISTED = 20
#: Seconds that leaving waits for pods to end, unless told otherwise: an uninstallation must not
#: hang, and the grace of pods is mostly below.
DEFAULT_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class LeaveSettings:
    """What `bridge leave` was asked for."""

    name: str
    home: KubeconfigRef
    remote: KubeconfigRef | None
    """None: the one that the Node remembers of its join."""
    force: bool
    """Leave although a bridge seems to serve the node, or the remote cannot be reached."""
    drain: bool = False
    """Evict the pods first, as far as PodDisruptionBudgets allow it."""
    keep_workloads: bool = False
    """Leave all that is in the remote as it is."""
    timeout: float = DEFAULT_TIMEOUT
    """The longest wait for pods, in seconds."""
    cert_dir: Path | None = None
    """Where the serving certificate is kept; the folder that the Node remembers unless given."""


@dataclass(slots=True)
class HomeState:
    """What is the node's in the home cluster, and on this machine."""

    home_id: str
    node: Object | None
    lease: Object | None
    pods: list[Object]
    certificate_requests: list[Object]
    """CertificateSigningRequests."""
    sibling_nodes: set[str] | None
    """The labels of the home's other virtual nodes that stand for the same remote."""
    certificate_store: CertDir | None
    """Where the certificate is kept; None where nothing is kept on this machine."""
    relay_slices: list[Object] = field(default_factory=list)
    """EndpointSlices that lead home's Services to the bridge."""
    relay_cidr: str = ""
    """What a bridge that was killed has left on this machine, a route to itself; "" for nothing."""
    installation: ExistingInstallation | None = None
    """What `bridge join --in-cluster` made."""
    warnings: list[str] = field(default_factory=list)
    """Secrets that have an installation's labels and were ignored, and why."""
    offloaded_namespaces: list[str] = field(default_factory=list)
    """Namespaces whose pods its webhook changes."""


@dataclass(slots=True)
class RemoteState:
    """The other side: ``client`` is None where it cannot be reached; ``away`` says why something
    was not removed there."""

    client: KubeClient | None = None
    failure: str = ""
    inventory: Inventory = field(default_factory=Inventory)
    claim: Claim | None = None
    """The claim of this home's bridges, where there is one."""


def removal_lines(settings: LeaveSettings, found: HomeState, remote: RemoteState) -> list[str]:
    """What will be removed, line by line."""
    lines = []
    if found.node is not None:
        lines.append(f"home:   Node {settings.name} and its Lease")
    elif found.lease is not None:
        lines.append(f"home:   Lease {LEASE_NAMESPACE}/{settings.name}")
    lines += [
        f"home:   CertificateSigningRequest {name_of(it)}" for it in found.certificate_requests
    ]
    lines += _listed("home:   Pod", found.pods)
    lines += _listed("home:   EndpointSlice", found.relay_slices)
    if found.installation is not None:
        lines += found.installation.lines()
    if found.certificate_store is not None:
        lines.append(f"here:   the node's certificate and key in {found.certificate_store}")
    if found.relay_cidr:
        lines.append(f"here:   the route that has {found.relay_cidr} be this machine's own")
    return lines if settings.keep_workloads else lines + remote_lines(remote.inventory)


def warning_lines(settings: LeaveSettings, found: HomeState, remote: RemoteState) -> list[str]:
    """What the person has to know before the answer."""
    lines = (
        [_WITHOUT_WEBHOOK.format(", ".join(found.offloaded_namespaces))]
        if found.offloaded_namespaces
        else []
    )
    if remote.client is None:
        return [*lines, f"remote: not reached, and nothing is removed there: {remote.failure}"]
    if settings.keep_workloads:
        return lines + _kept(settings, remote)
    return lines + shared_lines(remote.inventory)


_WITHOUT_WEBHOOK = (
    "home: namespace(s) {} are offloaded, and the webhook that goes changes their pods no more; "
    "`bridge offload` lists what does, `bridge unoffload` undoes it"
)


def _kept(settings: LeaveSettings, remote: RemoteState) -> list[str]:
    """What it means that the remote's side stays."""
    pods, copies = len(remote.inventory.pods), len(remote.inventory.copies)
    stays = (
        f"remote: {pods} pod(s) and {copies} object(s) for them stay as they are, with their "
        "labels. Nobody looks after them: what fails or is deleted is not made again; ConfigMaps, "
        "Secrets and endpoints do not follow; tokens of home's service accounts end now; and a pod "
        "that has not begun under restartPolicy Never never does"
    )
    anew = (
        "home: controllers make their pods anew elsewhere, so what they control runs twice from "
        f"now on; joining again as {settings.name} would remove what stays"
    )
    return [stays, anew]


def leftover_lines(settings: LeaveSettings, found: HomeState, remote: RemoteState) -> list[str]:
    """What could not be removed, and how to finish later."""
    node = label_value(settings.name)
    if remote.client is not None:
        what = remote_lines(remote.inventory)
    else:
        what = _listed("remote: what stands for home's Pod", found.pods)
        what.append("remote: what was copied for these pods, and the namespaces that were made")
    later = (
        "remote: when it is back, `bridge garbage --kubeconfig REMOTE --remove "
        f"{found.home_id} --node {node}` removes that"
    )
    return [
        f"remote: not all was removed: {remote.failure}",
        *(f"{line}: may be left" for line in what),
        later,
    ]


def shared_lines(ours: Inventory) -> list[str]:
    """What stays of an inventory since other virtual nodes use it, line by line."""
    lines = [
        f"remote: {it.resource.kind} {namespace_of(it.copy)}/{name_of(it.copy)} stays: pods of "
        f"virtual node {it.user} use it"
        for it in ours.shared[:MAX_LISTED]
    ]
    more = len(ours.shared) - MAX_LISTED
    return (
        [*lines, f"remote: {more} more object(s) stay for the same reason"] if more > 0 else lines
    )


def format_counts(ours: Inventory) -> str:
    """How much an inventory of the remote holds, as part of a sentence."""
    counts = {"Pod": len(ours.pods), "copy": len(ours.copies), "Namespace": len(ours.namespaces)}
    return ", ".join(f"{kind}: {count}" for kind, count in counts.items() if count)


def remote_lines(ours: Inventory) -> list[str]:
    """What an inventory of the remote holds, line by line."""
    lines = _listed("remote: Pod", ours.pods)
    for resource in dict.fromkeys(resource for resource, _ in ours.copies):
        copies = [copy for kind, copy in ours.copies if kind is resource]
        lines += _listed(f"remote: {resource.kind}", copies)
    lines += [
        f"remote: Namespace {name_of(namespace)}, if nothing else is in it"
        for namespace in ours.namespaces[:MAX_LISTED]
    ]
    if len(ours.namespaces) > MAX_LISTED:
        more = len(ours.namespaces) - MAX_LISTED
        lines.append(f"remote: Namespace: {more} more, if nothing else is in them")
    return lines


def _listed(kind: str, objects: Iterable[Object]) -> list[str]:
    found = list(objects)
    lines = [f"{kind} {namespace_of(obj)}/{name_of(obj)}" for obj in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        lines.append(f"{kind}: {len(found) - MAX_LISTED} more")
    return lines
