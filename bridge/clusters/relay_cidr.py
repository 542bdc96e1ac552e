"""Whether the range of `--relay-cidr` can be had: on this machine, and beside home's own.

What home's API server tells the credential is looked at; nothing more is asked for. The range of
home's Services is known where it has ServiceCIDRs (from 1.33 on) and shows them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable

from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from bridge.relay.forward import local_route as here
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import PODS
from translators.objects import Object, name_of, namespace_of
from translators.relay.ipam import IpNetwork

#: How many of home's pods and nodes are looked at.
LOOKED_AT = "200"
_NODES, _SERVICE_CIDRS = permissions.HOME_RANGES


async def check_relay_cidr(cidr: str, *, home: KubeClient, address: str) -> str:
    """Why not, in a sentence with the next step; "" where it can be had. ``address`` is the one at
    which home's machines reach this bridge."""
    wanted = ipaddress.ip_network(cidr)
    if ipaddress.ip_address(address) in wanted:
        return (
            f"--relay-cidr {cidr} has the bridge's own address, {address}; take a range that "
            "nobody has"
        )
    if home.config.in_cluster and (pod := await _pod_at(home, address)):
        return (
            f"home: --relay-cidr takes a machine's network, and this bridge runs in pod {pod} with "
            "a network of its own, to which home's machines cannot route a range; give the pod "
            "hostNetwork: true, or run the bridge on a machine"
        )
    try:
        await asyncio.to_thread(here.check_available, cidr)
    except here.LocalRouteError as error:
        return str(error)
    pods = await home.request(
        "GET", PODS.path(), query={"limit": LOOKED_AT}, timeout=permissions.REQUEST_SECONDS
    )
    of_pods = _of_pods(pods.get("items") or ())
    for taken, whose in (*of_pods, *await _of_nodes(home), *await _of_services(home)):
        if taken.version == wanted.version and taken.overlaps(wanted):
            return (
                f"home: --relay-cidr {cidr} overlaps with {taken} of {whose}; take a range that "
                "nobody has"
            )
    return ""


async def _pod_at(home: KubeClient, address: str) -> str:
    """The pod with an address and a network of its own; "" where there is none."""
    query = {"limit": "1", "fieldSelector": f"status.podIP={address}"}
    found = await home.request("GET", PODS.path(), query=query, timeout=permissions.REQUEST_SECONDS)
    for pod in found.get("items") or ():
        if not (pod.get("spec") or {}).get("hostNetwork"):
            return f"{namespace_of(pod)}/{name_of(pod)}"
    return ""


def _of_pods(pods: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    for pod in pods:
        status = pod.get("status") or {}
        for entry in status.get("podIPs") or ():
            if entry.get("ip"):
                whose = f"pod {namespace_of(pod)}/{name_of(pod)}"
                yield ipaddress.ip_network(str(entry["ip"])), whose


async def _of_nodes(home: KubeClient) -> list[tuple[IpNetwork, str]]:
    """What nodes and their pods have; nothing where the credential may see its own node alone."""
    return [found for node in await _shown(home, _NODES) for found in _of_node(node)]


async def _of_services(home: KubeClient) -> list[tuple[IpNetwork, str]]:
    return [
        (ipaddress.ip_network(text), "home's Services")
        for known in await _shown(home, _SERVICE_CIDRS)
        for text in (known.get("spec") or {}).get("cidrs") or ()
    ]


async def _shown(home: KubeClient, right: Permission) -> list[Object]:
    """Objects of a kind that the credential need not see; none where it may not, or where home does
    not know the kind."""
    if not await permissions.are_granted(home, [right]):
        return []
    path, query = right.resource.path(), {"limit": LOOKED_AT}
    try:
        found = await home.request("GET", path, query=query, timeout=permissions.REQUEST_SECONDS)
    except NotFound:
        return []
    return list(found.get("items") or ())


def _of_node(node: Object) -> Iterable[tuple[IpNetwork, str]]:
    addresses = (node.get("status") or {}).get("addresses") or ()
    own = [str(it["address"]) for it in addresses if it.get("type") == "InternalIP"]
    for text in (*own, *((node.get("spec") or {}).get("podCIDRs") or ())):
        yield ipaddress.ip_network(text), f"node {name_of(node)}"
