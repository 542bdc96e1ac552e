"""Plans forwarding from Services at home to pods in the remote, and the EndpointSlices for it.

The bridge listens at home and forwards each connection to a ready pod of the virtual node. Its
EndpointSlices announce the bridge's address and ports to home's kube-proxy, beside the slices of
home's own controller. That controller only manages slices with its own name in
``endpointslice.kubernetes.io/managed-by`` (k8s.io/api/discovery/v1, well_known_labels.go), and has
no addresses of these pods (`translators.pods.pod_status`).

kube-proxy balances evenly over endpoints. A single endpoint for all pods of the remote would get
the share of one pod, so there are as many endpoints as ready pods, up to `MAX_ENDPOINTS`. They
share one address and differ by port. A port name can occur only once in a slice, so each endpoint
is a slice of its own with a port for each port of the Service.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from translators.derived_names import hashed_name
from translators.mirror.endpoint_slice import LABEL_MANAGED_BY, LABEL_SERVICE, service_name
from translators.mirror.locality import hints_of_other_cluster, prefers_same_node
from translators.mirror.service import is_headless
from translators.object_accessors import (
    Object,
    RemoteUid,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import LABEL_NODE
from translators.virtual_node_identity import Identity

#: The bridge's value of ``endpointslice.kubernetes.io/managed-by``. It differs from that of
#: mirrored slices (`endpoint_slice.MANAGER`), which home contains if it is the remote of another
#: home.
MANAGER = "cluster-bridge-relay"
#: Maximum endpoints of a Service; the share of connections does not grow beyond it.
MAX_ENDPOINTS = 16
#: Default of ClientIP session affinity (DefaultClientIPServiceAffinitySeconds in
#: k8s.io/api/core/v1).
_AFFINITY_SECONDS = 10800
_HEADLESS = (
    "it is headless: its name resolves to pod IPs, and pods in the remote have none at home; use "
    "a Service with a cluster IP, or assign addresses with --relay-cidr"
)


class EndpointPort(NamedTuple):
    """One listener: a port of the Service by name ("" for the only one), and the number of the
    endpoint."""

    port: str
    ordinal: int


class Backend(NamedTuple):
    """A pod in the remote, and the target port."""

    namespace: str
    name: str
    uid: RemoteUid
    port: int


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The connections that the bridge forwards for a Service."""

    backends: Mapping[str, tuple[Backend, ...]] = field(default_factory=dict)
    """By the name of the Service port: the ready pods behind it, at least one."""
    affinity_seconds: float | None = None
    """Timeout of session affinity; None without affinity."""
    unsupported: tuple[str, ...] = ()
    """Messages about parts of the Service that cannot be forwarded, for its owner."""

    @property
    def endpoint_ports(self) -> list[EndpointPort]:
        """The required listeners, in order."""
        return [
            EndpointPort(port, number)
            for port, pods in self.backends.items()
            for number in range(min(len(pods), MAX_ENDPOINTS))
        ]


NO_FORWARDING = ForwardPlan()


def slice_selector(identity: Identity) -> str:
    return f"{LABEL_MANAGED_BY}={MANAGER},{LABEL_NODE}={identity.node_label}"


def selects_pod(service: Object, pod: Object) -> bool:
    """Whether the Service selects the pod; a Service without a selector has no pods."""
    wanted: Mapping[str, str] = (service.get("spec") or {}).get("selector") or {}
    labels = metadata(pod).get("labels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def can_receive_connections(
    home: Object, remote: Object | None, *, allow_not_ready: bool = False
) -> bool:
    """Whether new connections may be forwarded to the pod. Both pods count: home's condition
    includes readiness gates, and the remote pod is the first to terminate or become unready."""
    if remote is None or is_deleting(home) or is_deleting(remote):
        return False
    if allow_not_ready:
        return (remote.get("status") or {}).get("phase") == "Running"
    return is_ready(home) and is_ready(remote)


def plan_inputs(pod: Object | None) -> object:
    """The parts of a pod of either cluster that affect a plan; equal values mean an unchanged
    plan."""
    if pod is None:
        return None
    phase = (pod.get("status") or {}).get("phase")
    labels = metadata(pod).get("labels")
    return uid_of(pod), labels, is_deleting(pod), is_ready(pod), phase


def plan_forwarding(
    service: Object, pods: Iterable[tuple[Object, Object | None]], *, address: str
) -> ForwardPlan:
    """The plan for a Service. ``pods`` are pairs (home pod, remote pod) of the virtual node that
    the Service selects; ``address`` is the bridge's at home."""
    spec = service.get("spec") or {}
    pairs = list(pods)
    if not pairs or spec.get("type") == "ExternalName" or not spec.get("selector"):
        return NO_FORWARDING
    if is_headless(service):
        return ForwardPlan(unsupported=(_HEADLESS,))
    if (family := address_family(address)) not in (spec.get("ipFamilies") or [family]):
        return ForwardPlan(
            unsupported=(f"it has no {family} address, but the bridge listens on {address}",)
        )
    early = bool(spec.get("publishNotReadyAddresses"))
    ready = [
        (home, remote)
        for home, remote in pairs
        if remote is not None and can_receive_connections(home, remote, allow_not_ready=early)
    ]
    ports, left_out = forwardable_ports(spec, ("TCP",))
    backends: dict[str, list[Backend]] = {str(port.get("name") or ""): [] for port in ports}
    for home, remote in ready:
        for name, backend in backends_of(ports, home, remote).items():
            backends[name].append(backend)
    reached = {name: tuple(of_port) for name, of_port in backends.items() if of_port}
    return ForwardPlan(reached, session_affinity_seconds(spec), left_out)


def forward_slices(
    service: Object, ports: Mapping[EndpointPort, int], identity: Identity, *, address: str
) -> list[Object]:
    """Home's EndpointSlices for a Service, from the port number of each listener."""
    endpoint = {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "hints": hints_of_other_cluster(for_nodes=prefers_same_node(service)),
        "nodeName": identity.node,
    }
    by_number: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for endpoint_port, port in sorted(ports.items()):
        by_number[endpoint_port.ordinal][endpoint_port.port] = port
    return [
        build_slice(service, slice_metadata(service, number, identity), endpoint, numbers)
        for number, numbers in sorted(by_number.items())
    ]


def build_slice(
    service: Object, slice_metadata: Object, endpoint: Object, ports: Mapping[str, int]
) -> Object:
    """An EndpointSlice with one endpoint, and the port numbers of its listeners by the name of the
    Service port."""
    service_ports = {str(it.get("name") or ""): it for it in service["spec"].get("ports") or ()}
    entries = []
    for name, number in ports.items():
        if (service_port := service_ports.get(name)) is not None:
            protocol = port_protocol(service_port)
            entries.append({"name": name, "port": number, "protocol": protocol})
            if service_port.get("appProtocol"):
                entries[-1]["appProtocol"] = service_port["appProtocol"]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": slice_metadata,
        "addressType": address_family(endpoint["addresses"][0]),
        "endpoints": [endpoint],
        "ports": entries,
    }


def recorded_forward_ports(
    slices: Iterable[Object], service: str, identity: Identity
) -> dict[EndpointPort, int]:
    """The port numbers that existing slices of the bridge record; not those of slices that are
    being deleted, which finalizers can extend for ever."""
    names = {
        forward_slice_name(service, number, identity): number for number in range(MAX_ENDPOINTS)
    }
    return {
        EndpointPort(str(port.get("name") or ""), names[name_of(slice_)]): int(port["port"])
        for slice_ in slices
        if name_of(slice_) in names and not is_deleting(slice_)
        for port in slice_.get("ports") or ()
        if port.get("port")
    }


def recorded_port_numbers(identity: Identity, slice_: Object) -> set[int]:
    """The port numbers of a slice as `recorded_forward_ports` has them: the indexer of slices."""
    service = service_name(slice_)
    return set(recorded_forward_ports([slice_], service, identity).values())


def forward_slice_name(service: str, which: int | str, identity: Identity) -> str:
    """The name of a slice: ``which`` is the number of an endpoint, or a pod name. It depends on the
    node, because several virtual nodes can have pods of one Service."""
    return hashed_name(service, f"{identity.node}/{service}/{which}")


def slice_metadata(service: Object, which: int | str, identity: Identity) -> Object:
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
    """The kind of the address, such as ``loopback``, if an EndpointSlice cannot contain it; "" if
    it can (ValidateNonSpecialIP in k8s.io/kubernetes/pkg/apis/core/validation)."""
    ip = ipaddress.ip_address(address)
    kinds = {
        "unspecified": ip.is_unspecified,
        "loopback": ip.is_loopback,
        "link-local": ip.is_link_local,
        "multicast": ip.is_multicast,
    }
    return next((kind for kind, is_invalid in kinds.items() if is_invalid), "")


def session_affinity_seconds(spec: Object) -> float | None:
    """The timeout of a Service's ClientIP session affinity; None without affinity."""
    if spec.get("sessionAffinity") != "ClientIP":
        return None
    config = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    return float(config.get("timeoutSeconds") or _AFFINITY_SECONDS)


def address_family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def service_owner_references(service: Object) -> list[Object]:
    """The Service as owner, so that garbage collection deletes the slice even without the bridge.
    It does not block the deletion, which would require permission for finalizers."""
    owner = {"apiVersion": "v1", "kind": "Service", "name": name_of(service)}
    return [{**owner, "uid": uid_of(service), "controller": True}]


def forwardable_ports(
    spec: Object, protocols: Sequence[str]
) -> tuple[list[Object], tuple[str, ...]]:
    """The Service ports of these protocols, and a message for each other port."""
    forwarded = f"only {' and '.join(protocols)} {'is' if len(protocols) == 1 else 'are'} forwarded"
    ports, left_out = [], []
    for port in spec.get("ports") or ():
        protocol = port_protocol(port)
        if protocol in protocols:
            ports.append(port)
        else:
            left_out.append(f"port {port.get('port')} is {protocol}, but {forwarded}")
    return ports, tuple(left_out)


def port_protocol(port: Object) -> str:
    """The protocol of a port of any object, which is TCP if it is not set."""
    return str(port.get("protocol") or "TCP")


def backends_of(ports: Iterable[Object], home: Object, remote: Object) -> dict[str, Backend]:
    """The backends in a pod for these ports of a Service, by the name of the Service port. A port
    is missing if its ``targetPort`` is a name that no port of the pod has."""
    backends: dict[str, Backend] = {}
    namespace, pod, uid = namespace_of(remote), name_of(remote), RemoteUid(uid_of(remote))
    named: Mapping[str, int] | None = None
    for port in ports:
        target: Any = port.get("targetPort") or port.get("port")
        if not isinstance(target, int):
            named = _named_ports(home) if named is None else named
            target = named.get(target)
        if target is not None:
            backends[str(port.get("name") or "")] = Backend(namespace, pod, uid, target)
    return backends


def _named_ports(pod: Object) -> dict[str, int]:
    """The numbers of the pod's TCP ports by name. Containers come first, then sidecars (FindPort in
    k8s.io/kubernetes/pkg/api/v1/pod)."""
    spec = pod.get("spec") or {}
    sidecars = [
        container
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    ]
    named: dict[str, int] = {}
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            if port.get("name") and port_protocol(port) == "TCP":
                named.setdefault(port["name"], int(port["containerPort"]))
    return named
