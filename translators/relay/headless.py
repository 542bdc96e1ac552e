"""Pods of the remote behind a headless Service: each at an address of its own at home.

The name of such a Service leads to addresses of pods, and ``web-0.web`` to that of one pod. Where
the bridge has addresses for that (`translators.relay.ipam`), it listens at the pod's for what the
Service's ports lead to, and an EndpointSlice of ours for each pod tells the address, with the
hostname and the conditions that home's own controller would tell
(k8s.io/endpointslice, utils.go: podToEndpoint): a pod is there while it runs, ready or not, and
conditions say which it is. While the bridge or the remote is away it is not ready. The slices stay:
they tell who has which address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from translators.identity import Identity
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
from translators.relay import forward
from translators.relay.forward import Backend
from translators.relay.ipam import PodName

#: By this label kube-proxies know that a slice is none of theirs (k8s.io/api/core/v1,
#: IsHeadlessService).
_LABEL_HEADLESS = "service.kubernetes.io/headless"


class ListenAddress(NamedTuple):
    """Where the bridge listens for one port of one pod."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class HeadlessEndpoint:
    """One pod behind a headless Service."""

    pod: PodName
    uid: str
    """Home's."""
    hostname: str
    """Its name before the Service's; "" where it has none there."""
    serving: bool
    terminating: bool
    backends: Mapping[str, Backend]
    """By the name of the Service's port; of TCP ones those that the pod has."""


@dataclass(frozen=True, slots=True)
class HeadlessPlan:
    """What is to be reached through one headless Service; for none, nothing."""

    endpoints: tuple[HeadlessEndpoint, ...] = ()
    unsupported: tuple[str, ...] = ()
    """What of the Service cannot be relayed, and why, in sentences for its owner."""


NO_ENDPOINTS = HeadlessPlan()


def plan_endpoints(
    service: Object, pods: Iterable[tuple[Object, Object | None]], *, family: str
) -> HeadlessPlan:
    """What to relay. ``pods`` are those of the virtual node that the Service selects: (at home, in
    the remote). ``family`` is the addressType that slices would have."""
    spec = service["spec"]
    found = list(pods)
    if not found:
        return NO_ENDPOINTS
    if family not in (spec.get("ipFamilies") or [family]):
        return HeadlessPlan(
            unsupported=(f"it has no {family} address, and --relay-cidr has no others",)
        )
    ports, left_out = forward.tcp_ports(spec)
    if not spec.get("ports"):
        left_out = ("it names no port, so the bridge does not know which to listen for",)
    running = [(home, remote) for home, remote in found if remote is not None and _runs(remote)]
    endpoints = [_endpoint(service, home, remote, ports) for home, remote in running]
    return HeadlessPlan(tuple(it for it in endpoints if it.backends), left_out)


def listeners_of(endpoint: HeadlessEndpoint, address: str) -> dict[ListenAddress, Backend]:
    """Where to listen for a pod, and what each leads to."""
    return {ListenAddress(address, it.port): it for it in endpoint.backends.values()}


def endpoint_slice(
    service: Object,
    endpoint: HeadlessEndpoint,
    address: str,
    identity: Identity,
    *,
    reachable: bool = True,
) -> Object:
    """Home's EndpointSlice for one pod behind the Service. ``reached``: whether the bridge reaches
    the remote's pods at all."""
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
    told = {str(port.get("name") or ""): port for port in spec.get("ports") or ()}
    meta = forward.slice_metadata(service, endpoint.pod.name, identity)
    meta["labels"][_LABEL_HEADLESS] = ""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": forward.address_family(address),
        "endpoints": [entry],
        "ports": [
            forward.slice_port(told[name], backend.port)
            for name, backend in endpoint.backends.items()
        ],
    }


def not_ready_patch(slice_: Object) -> Object | None:
    """What is to be written over a slice of ours while no bridge serves: nobody is ready. None
    where it is not of pods of a headless Service."""
    if _LABEL_HEADLESS not in (metadata(slice_).get("labels") or {}):
        return None
    nobody = {"ready": False, "serving": False}
    return {
        "endpoints": [
            {**endpoint, "conditions": {**(endpoint.get("conditions") or {}), **nobody}}
            for endpoint in slice_.get("endpoints") or ()
        ]
    }


def recorded_address(slice_: Object) -> tuple[PodName, str] | None:
    """The pod that a slice of ours is about, and its address; None where it is of another kind, or
    somebody has changed it."""
    for endpoint in slice_.get("endpoints") or ():
        target = endpoint.get("targetRef") or {}
        addresses = endpoint.get("addresses") or ()
        if target.get("kind") == "Pod" and target.get("name") and addresses:
            return PodName(namespace_of(slice_), str(target["name"])), str(addresses[0])
    return None


# -- parts -----------------------------------------------------------------------------------


def _runs(remote: Object) -> bool:
    return (remote.get("status") or {}).get("phase") == "Running"


def _endpoint(
    service: Object, home: Object, remote: Object, ports: Iterable[Object]
) -> HeadlessEndpoint:
    spec = home.get("spec") or {}
    named = spec.get("hostname") and spec.get("subdomain") == name_of(service)
    backends = {}
    for port in ports:
        number = forward.resolve_target_port(port, home)
        if number is not None:
            uid = RemoteUid(uid_of(remote))
            backend = Backend(namespace_of(remote), name_of(remote), uid, number)
            backends[str(port.get("name") or "")] = backend
    return HeadlessEndpoint(
        PodName(namespace_of(home), name_of(home)),
        uid_of(home),
        str(spec["hostname"]) if named else "",
        serving=is_ready(home) and is_ready(remote),
        terminating=is_deleting(home) or is_deleting(remote),
        backends=backends,
    )
