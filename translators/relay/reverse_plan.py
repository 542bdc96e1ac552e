"""Plans reverse forwarding, from Services in the remote to pods at home.

In the remote, the relay agent (`translators.relay.agent_pod`) listens on a port for each port of a
mirrored Service that has pods at home, and the bridge forwards each connection to a pod at home.
The bridge's EndpointSlices announce these ports to the remote's kube-proxy, beside the slices of
the remote's own controller.

Only the ready pods that home's own controller found by a Service's selector are reachable. Slices
that users write can contain any address and are ignored. Since users can copy the controller's
label, an endpoint only counts if the pod's status, which only kubelets write, contains the address
(`PodAddress`).

As in `translators.relay.forward_plan`, a Service has as many endpoints as ready pods, up to
`MAX_ENDPOINTS`, each with its own port of the agent. Ports of TCP and UDP are numbered together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from translators.derived_names import hashed_name
from translators.mirror.endpoint_slice import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGER
from translators.mirror.locality import hints_of_other_cluster, prefers_same_node
from translators.mirror.service import is_headless
from translators.object_accessors import (
    HomeNamespace,
    Object,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import DOMAIN, is_owned_by_node, owner_labels
from translators.relay import forward_plan
from translators.virtual_node_identity import Identity

#: On agents and slices of the reverse direction: their home namespace.
ANNOTATION_RELAY_FOR = f"{DOMAIN}/relay-for"
#: On agents and slices, for users and for NetworkPolicies of the remote.
LABEL_RELAY = f"{DOMAIN}/relay"
#: Maximum endpoints of a Service.
MAX_ENDPOINTS = 16
#: The protocols that an agent forwards.
PROTOCOLS = ("TCP", "UDP")
#: The range of ports of an agent, below the ephemeral ports (Linux: from 32768).
FIRST_PORT, LAST_PORT = 20000, 32000
#: The value of the label of a slice: an ordinal.
_NUMBER = re.compile(r"[0-9]{1,9}")
#: The creator of slices for the pods of a Service (k8s.io/kubernetes/pkg/controller/endpointslice).
_CONTROLLER = "endpointslice-controller.k8s.io"
_HEADLESS = (
    "it is headless: its name resolves to pod IPs, and pods at home have none in the remote; use "
    "a Service with a cluster IP"
)


class HomeTarget(NamedTuple):
    """The address of a ready pod at home that the bridge connects to."""

    address: str
    port: int


class PodAddress(NamedTuple):
    """The pod and address of an endpoint, to be verified: a user who may write EndpointSlices can
    enter any address."""

    pod: str
    uid: str
    address: str


class AgentPort(NamedTuple):
    """A port of the agent: a port of a Service by name ("" for the only one), the number of the
    endpoint, and whether the port is of UDP, or of TCP."""

    service: str
    port: str
    ordinal: int
    is_udp: bool = False


@dataclass(frozen=True, slots=True)
class ReversePlan:
    """The connections that the bridge forwards for a Service."""

    targets: Mapping[str, tuple[HomeTarget, ...]] = field(default_factory=dict)
    """By the name of the Service port: home's ready pods behind it, at least one."""
    sticky: bool = False
    """Whether connections of a client go to the same pod."""
    udp_ports: frozenset[str] = frozenset()
    """The names in ``targets`` whose protocol is UDP; all others are TCP."""
    unsupported: tuple[str, ...] = ()
    """Messages about parts of the Service that cannot be forwarded, for its owner."""

    def agent_ports(self, service: str) -> list[AgentPort]:
        """The required ports, in order."""
        return [
            AgentPort(service, port, number, is_udp=port in self.udp_ports)
            for port, targets in self.targets.items()
            for number in range(min(len(targets), MAX_ENDPOINTS))
        ]

    def route(self, agent_port: AgentPort) -> ReverseRoute:
        """The destination of the agent's port."""
        service, port, _, is_udp = agent_port
        targets = self.targets.get(port, ())
        if is_udp != (port in self.udp_ports):
            targets = ()  # the port's protocol has changed, and this number is of the other
        return ReverseRoute(service, targets, self.sticky, port=port, is_udp=is_udp)


NO_FORWARDING = ReversePlan()


@dataclass(frozen=True, slots=True)
class ReverseRoute:
    """The destination of connections to one port of the agent, or of datagrams if it is UDP."""

    service: str
    targets: tuple[HomeTarget, ...] = ()
    """Empty while the port only stays open so that clients are not refused too early."""
    sticky: bool = False
    port: str = ""
    """The name of the Service port."""
    is_udp: bool = False


def relay_home_namespace(remote: Object) -> HomeNamespace | None:
    """The home namespace of an agent or slice of the reverse direction; None for other objects."""
    namespace = (metadata(remote).get("annotations") or {}).get(ANNOTATION_RELAY_FOR)
    return HomeNamespace(str(namespace)) if namespace else None


def is_own_relay_object(remote: Object, identity: Identity) -> bool:
    """Whether the object is an agent or slice of this virtual node in the right mapped namespace.
    Users of the remote can copy labels to other objects."""
    home = relay_home_namespace(remote)
    return (
        home is not None
        and is_owned_by_node(remote, identity)
        and namespace_of(remote) == identity.remote_namespace(home)
    )


def pod_addresses(slices: Iterable[Object], identity: Identity) -> set[PodAddress]:
    """The addresses in these slices that have to be verified before the bridge forwards."""
    return {
        _pod_address(endpoint)
        for it in slices
        if _is_from_controller(it)
        for endpoint in _ready_endpoints(it, identity)
    }


def plan_reverse_forwarding(
    service: Object,
    slices: Iterable[Object],
    identity: Identity,
    *,
    verified: Container[PodAddress],
) -> ReversePlan:
    """The plan for a Service, from home's EndpointSlices of it and the verified addresses."""
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName" or not spec.get("selector"):
        return NO_FORWARDING
    verified_slices = []
    for it in filter(_is_from_controller, slices):
        endpoints = [e for e in _ready_endpoints(it, identity) if _pod_address(e) in verified]
        if endpoints:
            verified_slices.append({**it, "endpoints": endpoints})
    if not verified_slices:
        return NO_FORWARDING
    if is_headless(service):
        return ReversePlan(unsupported=(_HEADLESS,))
    # One address per pod is enough: of the Service's first family.
    families = [*(spec.get("ipFamilies") or ()), "IPv4", "IPv6"]
    present_families = {it.get("addressType") for it in verified_slices}
    family = next((it for it in families if it in present_families), None)
    ports, left_out = forward_plan.forwardable_ports(spec, PROTOCOLS)
    protocols = {str(it.get("name") or ""): forward_plan.port_protocol(it) for it in ports}
    targets = _targets(verified_slices, family, protocols, identity)
    sticky = forward_plan.session_affinity_seconds(spec) is not None
    udp_ports = frozenset(name for name in targets if protocols[name] == "UDP")
    return ReversePlan(targets, sticky, udp_ports, left_out)


def allocate_ports(
    wanted: Iterable[AgentPort], known: Mapping[AgentPort, int]
) -> dict[AgentPort, int]:
    """A port number for each agent port: the previous one, or the lowest free one. Ports without a
    free number are missing."""
    taken = set(known.values())
    free = (port for port in range(FIRST_PORT, LAST_PORT) if port not in taken)
    allocated: dict[AgentPort, int] = {}
    for agent_port in wanted:
        port = known[agent_port] if agent_port in known else next(free, None)
        if port is not None:
            allocated[agent_port] = port
    return allocated


def recorded_agent_ports(slices: Iterable[Object]) -> dict[AgentPort, int]:
    """The port numbers that existing slices of the bridge record, so that they are reused."""
    recorded: dict[int, AgentPort] = {}
    for slice_ in slices:
        labels = metadata(slice_).get("labels") or {}
        number = str(labels.get(LABEL_RELAY) or "")
        if not _NUMBER.fullmatch(number):
            continue
        for port in slice_.get("ports") or ():
            port_number = int(port.get("port") or 0)
            if FIRST_PORT <= port_number < LAST_PORT and port_number not in recorded:
                recorded[port_number] = AgentPort(
                    str(labels.get(LABEL_SERVICE)),
                    str(port.get("name") or ""),
                    int(number),
                    is_udp=forward_plan.port_protocol(port) == "UDP",
                )
    return {agent_port: port_number for port_number, agent_port in recorded.items()}


def reverse_slices(
    copy: Object,
    ports: Mapping[AgentPort, int],
    pod: Object,
    home: HomeNamespace,
    identity: Identity,
) -> list[Object]:
    """The remote's EndpointSlices for a mirrored Service, from the agent's Pod and its ports."""
    hints = hints_of_other_cluster(for_nodes=prefers_same_node(copy))
    by_number: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for agent_port, port in sorted(ports.items()):
        by_number[agent_port.ordinal][agent_port.port] = port
    return [
        forward_plan.build_slice(
            copy,
            _metadata(copy, number, family, home, identity),
            {**_endpoint(address, pod), "hints": hints},
            numbers,
        )
        for family, address in addresses_by_family(pod).items()
        for number, numbers in sorted(by_number.items())
    ]


def addresses_by_family(pod: Object) -> dict[str, str]:
    status = pod.get("status") or {}
    ips = [str(it.get("ip")) for it in status.get("podIPs") or ()] or [str(status.get("podIP"))]
    return {forward_plan.address_family(ip): ip for ip in reversed(ips) if ip != "None"}


def reverse_slice_name(service: str, number: int, family: str, identity: Identity) -> str:
    """The name of a slice; several virtual nodes can serve one Service."""
    return hashed_name(service, f"back/{identity.node}/{service}/{number}/{family}")


def _is_from_controller(slice_: Object) -> bool:
    labels = metadata(slice_).get("labels") or {}
    return labels.get(LABEL_MANAGED_BY) == _CONTROLLER


def _pod_address(endpoint: Object) -> PodAddress:
    target = endpoint["targetRef"]
    return PodAddress(
        str(target.get("name")), str(target.get("uid")), str(endpoint["addresses"][0])
    )


def _ready_endpoints(slice_: Object, identity: Identity) -> Iterator[Object]:
    """The endpoints that are ready pods of home, without those of this virtual node, which the
    remote sees itself. An unset condition counts as true (k8s.io/api/discovery/v1)."""
    for endpoint in slice_.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        kind = (endpoint.get("targetRef") or {}).get("kind")
        is_ready = conditions.get("ready") is not False and endpoint.get("addresses")
        if kind == "Pod" and is_ready and endpoint.get("nodeName") != identity.node:
            yield endpoint


def _targets(
    slices: Sequence[Object], family: str | None, protocols: Mapping[str, str], identity: Identity
) -> dict[str, tuple[HomeTarget, ...]]:
    """The ready pods behind each of the Service ports, whose ``protocols`` are given by name."""
    targets: defaultdict[str, set[HomeTarget]] = defaultdict(set)
    for slice_ in slices:
        if slice_.get("addressType") != family:
            continue
        endpoints = _ready_endpoints(slice_, identity)
        addresses = {str(endpoint["addresses"][0]) for endpoint in endpoints}
        for port in slice_.get("ports") or ():
            name = str(port.get("name") or "")
            if port.get("port") and protocols.get(name) == forward_plan.port_protocol(port):
                number = int(port["port"])
                targets[name] |= {HomeTarget(address, number) for address in addresses}
    return {name: tuple(sorted(targets[name])) for name in protocols if targets[name]}


def _endpoint(address: str, pod: Object) -> Object:
    """The agent as an endpoint. Without its node: the pods behind it are on none of the remote, and
    are local to no client (``internalTrafficPolicy: Local``)."""
    named = {"name": name_of(pod), "uid": uid_of(pod)}
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "namespace": namespace_of(pod), **named},
    }


def _metadata(
    copy: Object, number: int, family: str, home: HomeNamespace, identity: Identity
) -> Object:
    return {
        "name": reverse_slice_name(name_of(copy), number, family, identity),
        "namespace": namespace_of(copy),
        "labels": {
            **owner_labels(identity),
            LABEL_SERVICE: name_of(copy),
            LABEL_MANAGED_BY: MANAGER,
            LABEL_RELAY: str(number),
        },
        "annotations": {ANNOTATION_RELAY_FOR: home},
        "ownerReferences": forward_plan.service_owner_references(copy),
    }
