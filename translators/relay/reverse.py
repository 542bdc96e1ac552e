"""Home's pods behind Services in the remote, where no network leads to them.

In the remote, a pod of ours (`translators.relay.agent_pod`) listens for each port of a copied Service that
has pods at home; slices of ours say so to the remote's kube-proxy, beside those that the remote's
own controller makes of offloaded pods. The bridge carries each connection to one of home's pods.

What may be reached is decided here, and by home's objects alone: the ready pods that home's own
controller found by a Service's selector. Slices that people write lead wherever they like, and the
bridge's machine may reach more than they do, so these do not count; and since people may give
theirs the controller's label, an endpoint counts only where its pod's status has the address, which
kubelets alone write (`Claim`).

As in `translators.relay.forward`, a Service has as many endpoints as ready pods, up to `MOST_ENDPOINTS`, so
that a pod at home gets as many connections as one in the remote. Each is a *slot*, with a port of
the relay pod's own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from translators.identity import DOMAIN, Identity, is_owned_by_node, owner_labels
from translators.mirror import service as services
from translators.mirror.endpointslice import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGER
from translators.names import hashed_name
from translators.objects import HomeNamespace, Object, metadata, name_of, namespace_of, uid_of
from translators.relay import forward

#: On our pods and slices of this direction: the home namespace that they are for.
ANNOTATION_RELAY_FOR = f"{DOMAIN}/relay-for"
#: On both, for people and for policies of the remote's network.
LABEL_RELAY = f"{DOMAIN}/relay"
#: Endpoints of one Service.
MAX_ENDPOINTS = 16
#: The ports that a relay pod listens on, in its own network. Below those that a system gives to
#: outgoing connections (Linux: from 32768 on).
FIRST_PORT, LAST_PORT = 20000, 32000
#: Who makes slices of a Service's pods (k8s.io/kubernetes/pkg/controller/endpointslice).
_CONTROLLER = "endpointslice-controller.k8s.io"
_HEADLESS = (
    "it is headless: its name leads to addresses of pods, and those at home have none in the "
    "remote; a Service with a cluster IP leads to them"
)


class HomeTarget(NamedTuple):
    """A ready pod of home: where the bridge connects to."""

    address: str
    port: int


class PodAddress(NamedTuple):
    """What an EndpointSlice says of one endpoint: that this pod of its namespace has the address.
    Whoever may write EndpointSlices can claim anything."""

    pod: str
    uid: str
    address: str


class AgentPort(NamedTuple):
    """One endpoint of one port of a Service: "" is the name of the only port."""

    service: str
    port: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class ReversePlan:
    """What is to be carried for a Service; for none, nothing."""

    targets: Mapping[str, tuple[HomeTarget, ...]] = field(default_factory=dict)
    """By the name of the Service's port: home's ready pods behind it, at least one."""
    sticky: bool = False
    """Whether a client's connections go to the same pod."""
    unsupported: tuple[str, ...] = ()
    """What of the Service cannot be carried, and why, in sentences for its owner."""

    def agent_ports(self, service: str) -> list[AgentPort]:
        """Where to listen, in order."""
        return [
            AgentPort(service, port, number)
            for port, targets in self.targets.items()
            for number in range(min(len(targets), MAX_ENDPOINTS))
        ]


NO_FORWARDING = ReversePlan()


@dataclass(frozen=True, slots=True)
class ReverseRoute:
    """Where connections to one port of a relay pod go."""

    service: str
    targets: tuple[HomeTarget, ...] = ()
    """None while the port is only listened on so that nobody is refused too soon."""
    sticky: bool = False


def relay_home_namespace(remote: Object) -> HomeNamespace | None:
    """The home namespace that a relay pod or a slice of this direction is for; None for others."""
    said = (metadata(remote).get("annotations") or {}).get(ANNOTATION_RELAY_FOR)
    return HomeNamespace(str(said)) if said else None


def is_own_relay_object(remote: Object, identity: Identity) -> bool:
    """Whether it is a relay pod or slice of this virtual node, where it should be: elsewhere
    somebody has copied labels."""
    home = relay_home_namespace(remote)
    return (
        home is not None
        and is_owned_by_node(remote, identity)
        and namespace_of(remote) == identity.remote_namespace(home)
    )


def pod_addresses(slices: Iterable[Object], identity: Identity) -> set[PodAddress]:
    """What is to be confirmed before connections are carried to endpoints of these slices."""
    return {
        _claim(endpoint) for it in slices if _is_of_pods(it) for endpoint in _ready(it, identity)
    }


def plan_reverse_forwarding(
    service: Object,
    slices: Iterable[Object],
    identity: Identity,
    *,
    verified: Container[PodAddress],
) -> ReversePlan:
    """What to carry, given home's EndpointSlices of the Service and the claims that are true."""
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName" or not spec.get("selector"):
        return NO_FORWARDING
    found = [kept for it in slices if _is_of_pods(it) and (kept := _of(it, identity, verified))]
    if not found:
        return NO_FORWARDING
    if services.is_headless(service):
        return ReversePlan(unsupported=(_HEADLESS,))
    # Of pods with two addresses, one is enough: that which the Service has first.
    families = [*(spec.get("ipFamilies") or ()), "IPv4", "IPv6"]
    kinds = {it.get("addressType") for it in found}
    family = next((it for it in families if it in kinds), None)
    targets: dict[str, tuple[HomeTarget, ...]] = {}
    left_out: list[str] = []
    for port in spec.get("ports") or ():
        protocol = str(port.get("protocol") or "TCP")
        name = str(port.get("name") or "")
        if protocol != "TCP":
            left_out.append(f"port {port.get('port')} is {protocol}, and only TCP is relayed")
        elif behind := _targets(found, family, name, identity):
            targets[name] = behind
    return ReversePlan(targets, forward.session_affinity_seconds(spec) is not None, tuple(left_out))


def allocate_ports(
    wanted: Iterable[AgentPort], known: Mapping[AgentPort, int]
) -> dict[AgentPort, int]:
    """A port for each slot: that of before, or the lowest that is free. Fewer than wanted where
    there are no more."""
    slots = list(wanted)
    taken = set(known.values())
    free = (port for port in range(FIRST_PORT, LAST_PORT) if port not in taken)
    given: dict[AgentPort, int] = {}
    for slot in slots:
        port = known.get(slot)
        if port is None:
            port = next(free, None)
        if port is not None:
            given[slot] = port
    return given


def recorded_agent_ports(slices: Iterable[Object]) -> dict[AgentPort, int]:
    """The ports that slices of ours tell: where a relay pod listened before."""
    found: dict[AgentPort, int] = {}
    for slice_ in slices:
        labels = metadata(slice_).get("labels") or {}
        number = str(labels.get(LABEL_RELAY) or "")
        if not number.isdecimal():
            continue
        for port in slice_.get("ports") or ():
            told = int(port.get("port") or 0)
            if FIRST_PORT <= told < LAST_PORT and told not in found.values():
                slot = AgentPort(
                    str(labels.get(LABEL_SERVICE)), str(port.get("name") or ""), int(number)
                )
                found[slot] = told
    return found


def reverse_slices(
    copy: Object,
    ports: Mapping[AgentPort, int],
    pod: Object,
    home: HomeNamespace,
    identity: Identity,
) -> list[Object]:
    """The remote's EndpointSlices for a copied Service, given the relay pod and its ports."""
    told = {str(port.get("name") or ""): port for port in copy["spec"].get("ports") or ()}
    numbers = sorted({slot.ordinal for slot in ports})
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": _metadata(copy, number, family, home, identity),
            "addressType": family,
            "endpoints": [_endpoint(address, pod)],
            "ports": [
                forward.slice_port(told[slot.port], port)
                for slot, port in sorted(ports.items())
                if slot.ordinal == number and slot.port in told
            ],
        }
        for family, address in addresses_by_family(pod).items()
        for number in numbers
    ]


def addresses_by_family(pod: Object) -> dict[str, str]:
    """The pod's addresses by family."""
    status = pod.get("status") or {}
    ips = [str(it.get("ip")) for it in status.get("podIPs") or ()] or [str(status.get("podIP"))]
    return {forward.address_family(ip): ip for ip in reversed(ips) if ip != "None"}


def reverse_slice_name(service: str, number: int, family: str, identity: Identity) -> str:
    """The name of a slice. Several virtual nodes can serve one remote Service."""
    return hashed_name(service, f"back/{identity.node}/{service}/{number}/{family}")


# -- parts -----------------------------------------------------------------------------------


def _is_of_pods(slice_: Object) -> bool:
    labels = metadata(slice_).get("labels") or {}
    return labels.get(LABEL_MANAGED_BY) == _CONTROLLER


def _of(slice_: Object, identity: Identity, confirmed: Container[PodAddress]) -> Object | None:
    """The slice with the endpoints that are ready and confirmed alone; None where none is."""
    endpoints = [it for it in _ready(slice_, identity) if _claim(it) in confirmed]
    return {**slice_, "endpoints": endpoints} if endpoints else None


def _claim(endpoint: Object) -> PodAddress:
    target = endpoint["targetRef"]
    return PodAddress(
        str(target.get("name")), str(target.get("uid")), str(endpoint["addresses"][0])
    )


def _ready(slice_: Object, identity: Identity) -> Iterator[Object]:
    """Its endpoints that are ready pods of home. Those of this node's pods the remote sees itself;
    where a condition is not told it counts as true (k8s.io/api/discovery/v1)."""
    for endpoint in slice_.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        kind = (endpoint.get("targetRef") or {}).get("kind")
        if (
            endpoint.get("nodeName") != identity.node
            and conditions.get("ready") is not False
            and kind == "Pod"
            and endpoint.get("addresses")
        ):
            yield endpoint


def _targets(
    slices: Sequence[Object], family: str | None, name: str, identity: Identity
) -> tuple[HomeTarget, ...]:
    found = {
        HomeTarget(str(endpoint["addresses"][0]), int(port["port"]))
        for slice_ in slices
        if slice_.get("addressType") == family
        for port in slice_.get("ports") or ()
        if str(port.get("name") or "") == name and port.get("port")
        for endpoint in _ready(slice_, identity)
    }
    return tuple(sorted(found))


def _endpoint(address: str, pod: Object) -> Object:
    endpoint: Object = {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {
            "kind": "Pod",
            "namespace": namespace_of(pod),
            "name": name_of(pod),
            "uid": uid_of(pod),
        },
    }
    if node := (pod.get("spec") or {}).get("nodeName"):
        endpoint["nodeName"] = node
    return endpoint


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
        "ownerReferences": forward.service_owner_references(copy),
    }
