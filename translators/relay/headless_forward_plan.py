"""Plans forwarding to remote pods behind headless Services, each at its own address at home.

The name of a headless Service resolves to pod IPs, and ``web-0.web`` to that of one pod. With an
address range (`translators.relay.ipam`), the bridge listens at each pod's address on the target
ports. An EndpointSlice per pod announces the address, with the hostname and the conditions that
home's own controller would set (podToEndpoint in k8s.io/endpointslice, utils.go). While the bridge
or the remote is unreachable, endpoints are not ready; the slices remain, because they record the
addresses. A user who may write EndpointSlices can forge such a record. Therefore only those of pods
that run in the remote count; and the name of a slice follows from Service, pod and address, so that
a record is as old as its slice, and the oldest one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from translators.mirror.endpoint_slice import service_name
from translators.object_accessors import (
    Object,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.relay import forward_plan
from translators.relay.forward_plan import Backend, forward_slice_name
from translators.relay.ipam import PodName
from translators.virtual_node_identity import Identity

#: kube-proxy ignores slices with this label (IsHeadlessService in k8s.io/api/core/v1).
_LABEL_HEADLESS = "service.kubernetes.io/headless"


class ListenAddress(NamedTuple):
    """One listener for a port of a pod."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class HeadlessEndpoint:
    """A pod behind a headless Service."""

    pod: PodName
    uid: str
    """UID of the home pod."""
    hostname: str
    """The pod's DNS label in the Service's domain; "" for none."""
    serving: bool
    terminating: bool
    backends: Mapping[str, Backend]
    """By the name of the Service port, for TCP ports that the pod has."""


@dataclass(frozen=True, slots=True)
class HeadlessPlan:
    """The connections that the bridge forwards for a headless Service."""

    endpoints: tuple[HeadlessEndpoint, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Messages about parts of the Service that cannot be forwarded, for its owner."""


def plan_endpoints(
    service: Object, pods: Iterable[tuple[Object, Object | None]], *, family: str
) -> HeadlessPlan:
    """The plan for a headless Service. ``pods`` are pairs (home pod, remote pod) of the virtual
    node that the Service selects; ``family`` is the addressType of the slices."""
    spec = service["spec"]
    pairs = list(pods)
    if not pairs:
        return HeadlessPlan()
    if family not in (spec.get("ipFamilies") or [family]):
        message = f"it has no {family} address, but --relay-cidr only has {family} addresses"
        return HeadlessPlan(unsupported=(message,))
    ports, left_out = forward_plan.forwardable_ports(spec, ("TCP",))
    if not spec.get("ports"):
        left_out = ("it has no ports, so the bridge does not know where to listen",)
    endpoints = [
        _endpoint(service, home, remote, ports)
        for home, remote in pairs
        if remote is not None and (remote.get("status") or {}).get("phase") == "Running"
    ]
    return HeadlessPlan(tuple(it for it in endpoints if it.backends), left_out)


def listeners_of(endpoint: HeadlessEndpoint, address: str) -> dict[ListenAddress, Backend]:
    """The listeners of a pod, with their backends."""
    return {ListenAddress(address, it.port): it for it in endpoint.backends.values()}


def endpoint_slice(
    service: Object,
    endpoint: HeadlessEndpoint,
    address: str,
    identity: Identity,
    *,
    reachable: bool = True,
) -> Object:
    """Home's EndpointSlice for one pod behind the Service. ``reachable``: whether the bridge
    reaches the remote's pods."""
    spec = service["spec"]
    early = bool(spec.get("publishNotReadyAddresses"))
    entry: Object = {
        "addresses": [address],
        "conditions": {
            "ready": reachable and (early or (endpoint.serving and not endpoint.terminating)),
            "serving": reachable and endpoint.serving,
            "terminating": endpoint.terminating,
        },
        "nodeName": identity.node,
        "targetRef": {
            "kind": "Pod",
            "namespace": endpoint.pod.namespace,
            "name": endpoint.pod.name,
            "uid": endpoint.uid,
        },
    }
    if endpoint.hostname:
        entry["hostname"] = endpoint.hostname
    meta = forward_plan.slice_metadata(service, _record(endpoint.pod.name, address), identity)
    meta["labels"][_LABEL_HEADLESS] = ""
    ports = {name: backend.port for name, backend in endpoint.backends.items()}
    return forward_plan.build_slice(service, meta, entry, ports)


def not_ready_patch(slice_: Object) -> Object | None:
    """The patch that makes the endpoints of a slice not ready while no bridge serves; None if the
    slice is not of a headless Service."""
    if _LABEL_HEADLESS not in (metadata(slice_).get("labels") or {}):
        return None
    not_ready = {"ready": False, "serving": False}
    return {
        "endpoints": [
            {**endpoint, "conditions": {**(endpoint.get("conditions") or {}), **not_ready}}
            for endpoint in slice_.get("endpoints") or ()
        ]
    }


def recorded_address(slice_: Object, identity: Identity) -> tuple[PodName, str] | None:
    """The pod and address that a slice records: the only endpoint and its only address. None for
    other slices, after a user changed it, and while it is being deleted, which finalizers can
    extend for ever."""
    endpoints = slice_.get("endpoints") or []
    if is_deleting(slice_) or len(endpoints) != 1:
        return None
    addresses = endpoints[0].get("addresses") or []
    if len(addresses) != 1:
        return None
    pod = str((endpoints[0].get("targetRef") or {}).get("name"))
    which = _record(pod, addresses[0])
    if name_of(slice_) != forward_slice_name(service_name(slice_), which, identity):
        return None
    return PodName(namespace_of(slice_), pod), str(addresses[0])


def age_order(slice_: Object) -> str:
    """Sorts slices by their creation, which only the API server sets."""
    return str(metadata(slice_).get("creationTimestamp") or "")


def _record(pod: str, address: str) -> str:
    return f"{pod}/{address}"


def _endpoint(
    service: Object, home: Object, remote: Object, ports: Iterable[Object]
) -> HeadlessEndpoint:
    spec = home.get("spec") or {}
    has_hostname = spec.get("hostname") and spec.get("subdomain") == name_of(service)
    return HeadlessEndpoint(
        PodName(namespace_of(home), name_of(home)),
        uid_of(home),
        str(spec["hostname"]) if has_hostname else "",
        serving=is_ready(home) and is_ready(remote),
        terminating=is_deleting(home) or is_deleting(remote),
        backends=forward_plan.backends_of(ports, home, remote),
    )
