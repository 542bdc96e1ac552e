"""A Service's pods in the remote, where no network leads to them: what home publishes instead.

The bridge listens at home and carries each connection to a ready pod of the virtual node. Home's
kube-proxy learns of that by EndpointSlices of ours: the bridge's address, and the ports that it
listens on. They stand beside those of home's own controller, which minds only slices with its own
name in ``endpointslice.kubernetes.io/managed-by`` (k8s.io/api/discovery/v1, well_known_labels.go),
and has no addresses of these pods (`translators.pods.status`).

kube-proxy gives every endpoint the same share. One endpoint for all pods of the remote would take
the share of one pod, so there are as many endpoints as ready pods, up to `MOST_ENDPOINTS`. All have
one address and so differ by port, and ports stand once in a slice: each endpoint, a *place*, is a
slice of its own, with a port for each port of the Service.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from translators.identity import LABEL_NODE, Identity
from translators.mirror import service as services
from translators.mirror.endpointslice import LABEL_MANAGED_BY, LABEL_SERVICE
from translators.names import hashed_name
from translators.objects import (
    Object,
    RemoteUid,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)

#: Our name in ``endpointslice.kubernetes.io/managed-by``. Another than that of the copies which a
#: cluster has that is also the remote of others (`endpointslice.MANAGER`).
MANAGER = "cluster-bridge-relay"
#: Endpoints of one Service. More pods than this get as many connections as this many would.
MAX_ENDPOINTS = 16
#: Seconds for which a client stays with its pod unless the Service says (k8s.io/api/core/v1,
#: DefaultClientIPServiceAffinitySeconds).
_AFFINITY_SECONDS = 10800
_HEADLESS = (
    "it is headless: its name leads to addresses of pods, and those in the remote have none at "
    "home; a Service with a cluster IP leads to them, and --relay-cidr gives them addresses"
)


class EndpointPort(NamedTuple):
    """Where the bridge listens: for a port of the Service by its name ("" for the only one), and
    the how many-eth of its endpoints that is."""

    port: str
    ordinal: int


class Backend(NamedTuple):
    """One pod of the remote, and the port in it that a port of the Service leads to."""

    namespace: str
    name: str
    uid: RemoteUid
    port: int


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What is to be relayed for a Service; for none, nothing."""

    backends: Mapping[str, tuple[Backend, ...]] = field(default_factory=dict)
    """By the name of the Service's port: the ready pods behind it, at least one."""
    affinity_seconds: float | None = None
    """Seconds for which a client's connections go to the same pod; None: they need not."""
    unsupported: tuple[str, ...] = ()
    """What of the Service cannot be relayed, and why, in sentences for its owner."""

    @property
    def endpoint_ports(self) -> list[EndpointPort]:
        """Where to listen, in order."""
        return [
            EndpointPort(port, number)
            for port, pods in self.backends.items()
            for number in range(min(len(pods), MAX_ENDPOINTS))
        ]


NO_FORWARDING = ForwardPlan()


def slice_selector(identity: Identity) -> str:
    """The label selector of the slices of this virtual node."""
    return f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_NODE}={identity.node_label}"


def selects_pod(service: Object, pod: Object) -> bool:
    """Whether the pod is behind the Service; one without a selector has no pods."""
    wanted: Mapping[str, str] = (service.get("spec") or {}).get("selector") or {}
    labels = metadata(pod).get("labels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def can_receive_connections(
    home: Object, remote: Object | None, *, allow_not_ready: bool = False
) -> bool:
    """Whether new connections may go to the pod.

    Both sides count: home's condition has its readiness gates; the remote's is the first to say
    that the pod is not ready any more, or is ending.
    """
    if remote is None or is_deleting(home) or is_deleting(remote):
        return False
    if allow_not_ready:
        return (remote.get("status") or {}).get("phase") == "Running"
    return is_ready(home) and is_ready(remote)


def plan_inputs(pod: Object | None) -> object:
    """What of a pod, of either side, a plan is made from."""
    if pod is None:
        return None
    phase = (pod.get("status") or {}).get("phase")
    labels = metadata(pod).get("labels")
    return uid_of(pod), labels, is_deleting(pod), is_ready(pod), phase


def plan_forwarding(
    service: Object, pods: Iterable[tuple[Object, Object | None]], *, address: str
) -> ForwardPlan:
    """What to relay. ``pods`` are those of the virtual node that the Service selects: (at home, in
    the remote). ``address`` is the bridge's, at home."""
    spec = service.get("spec") or {}
    found = list(pods)
    if not found or spec.get("type") == "ExternalName" or not spec.get("selector"):
        return NO_FORWARDING
    if services.is_headless(service):
        return ForwardPlan(unsupported=(_HEADLESS,))
    if (family := address_family(address)) not in (spec.get("ipFamilies") or [family]):
        return ForwardPlan(
            unsupported=(f"it has no {family} address, and the bridge listens on {address}",)
        )
    early = bool(spec.get("publishNotReadyAddresses"))
    ready = [
        (home, remote)
        for home, remote in found
        if remote is not None and can_receive_connections(home, remote, allow_not_ready=early)
    ]
    ports, left_out = tcp_ports(spec)
    backends: dict[str, tuple[Backend, ...]] = {}
    for port in ports:
        if behind := tuple(_backends(port, ready)):
            backends[str(port.get("name") or "")] = behind
    return ForwardPlan(backends, session_affinity_seconds(spec), left_out)


def forward_slices(
    service: Object, ports: Mapping[EndpointPort, int], identity: Identity, *, address: str
) -> list[Object]:
    """Home's EndpointSlices for a Service, given the port that the bridge listens on at each
    place."""
    told = {str(port.get("name") or ""): port for port in service["spec"].get("ports") or ()}
    numbers = sorted({place.ordinal for place in ports})
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": slice_metadata(service, number, identity),
            "addressType": address_family(address),
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "nodeName": identity.node,
                }
            ],
            "ports": [
                slice_port(told[place.port], port)
                for place, port in sorted(ports.items())
                if place.ordinal == number and place.port in told
            ],
        }
        for number in numbers
    ]


def recorded_forward_ports(
    slices: Iterable[Object], service: str, identity: Identity
) -> dict[EndpointPort, int]:
    """The ports that slices of ours tell: where a bridge listened before."""
    names = {
        forward_slice_name(service, number, identity): number for number in range(MAX_ENDPOINTS)
    }
    return {
        EndpointPort(str(port.get("name") or ""), names[name_of(slice_)]): int(port["port"])
        for slice_ in slices
        if name_of(slice_) in names
        for port in slice_.get("ports") or ()
        if port.get("port")
    }


def forward_slice_name(service: str, which: int | str, identity: Identity) -> str:
    """The name of a slice: of a place by its number, of a pod by its name
    (`translators.relay.headless`). Several virtual nodes can have pods of one Service."""
    return hashed_name(service, f"{identity.node}/{service}/{which}")


def slice_metadata(service: Object, which: int | str, identity: Identity) -> Object:
    """What a slice of ours has to be found by, and to go with its Service."""
    return {
        "name": forward_slice_name(name_of(service), which, identity),
        "namespace": namespace_of(service),
        "labels": {
            LABEL_SERVICE: name_of(service),
            LABEL_MANAGED_BY: MANAGER,
            LABEL_NODE: identity.node_label,
        },
        "ownerReferences": service_owner_references(service),
    }


def invalid_endpoint_address(address: str) -> str:
    """Why the address cannot stand in an EndpointSlice, as half a sentence; "" where it can
    (k8s.io/kubernetes/pkg/apis/core/validation, ValidateNonSpecialIP)."""
    ip = ipaddress.ip_address(address)
    for is_so, what in (
        (ip.is_unspecified, "no address at all"),
        (ip.is_loopback, "of loopback"),
        (ip.is_link_local, "link-local"),
        (ip.is_multicast, "of multicast"),
    ):
        if is_so:
            return what
    return ""


def session_affinity_seconds(spec: Object) -> float | None:
    """Seconds for which a Service's client stays with its pod, by the spec; None: it need not."""
    if spec.get("sessionAffinity") != "ClientIP":
        return None
    config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    return float(config.get("timeoutSeconds") or _AFFINITY_SECONDS)


def address_family(address: str) -> str:
    """The slice's addressType for it."""
    return "IPv6" if ":" in address else "IPv4"


def service_owner_references(service: Object) -> list[Object]:
    """A slice's owner references: it goes with its Service, whatever becomes of the bridge. It does
    not block the deletion: that would take a right on the Service's finalizers."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": name_of(service),
            "uid": uid_of(service),
            "controller": True,
        }
    ]


def slice_port(told: Object, number: int) -> Object:
    """A Service's port as that of a slice, which is listened for at this number."""
    port = {"name": str(told.get("name") or ""), "port": number, "protocol": "TCP"}
    if told.get("appProtocol"):
        port["appProtocol"] = told["appProtocol"]
    return port


def tcp_ports(spec: Object) -> tuple[list[Object], tuple[str, ...]]:
    """A Service's ports that can be relayed, and a sentence for each that cannot."""
    ports, left_out = [], []
    for port in spec.get("ports") or ():
        protocol = str(port.get("protocol") or "TCP")
        if protocol == "TCP":
            ports.append(port)
        else:
            left_out.append(f"port {port.get('port')} is {protocol}, and only TCP is relayed")
    return ports, tuple(left_out)


def resolve_target_port(port: Object, pod: Object) -> int | None:
    """The number of the port in the pod; None where the pod has none of that name. Containers
    first, then sidecars (k8s.io/kubernetes/pkg/api/v1/pod, FindPort)."""
    wanted: Any = port.get("targetPort") or port.get("port")
    if isinstance(wanted, int):
        return wanted
    spec = pod.get("spec") or {}
    sidecars = [
        it for it in spec.get("initContainers") or () if it.get("restartPolicy") == "Always"
    ]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for known in container.get("ports") or ():
            if known.get("name") == wanted and (known.get("protocol") or "TCP") == "TCP":
                return int(known["containerPort"])
    return None


# -- parts -----------------------------------------------------------------------------------


def _backends(port: Object, pods: Iterable[tuple[Object, Object]]) -> Iterable[Backend]:
    for home, remote in pods:
        number = resolve_target_port(port, home)
        if number is not None:
            uid = RemoteUid(uid_of(remote))
            yield Backend(namespace_of(remote), name_of(remote), uid, number)
