"""Whether the range of `--relay-cidr` can be had: on this machine, and beside home's own.

What home's API server tells the credential is looked at; nothing more is asked for. Home's Services
are not known as a range, so an overlap with those shows on a machine that has routes for them only.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable

from bridge.preflight import permissions
from bridge.preflight.permissions import Right
from bridge.relay import cidr as here
from sync.kube.client import KubeClient
from sync.kube.resources import NODES, PODS
from translators.relayrange import Network
from translators.types import Object, name_of, namespace_of

#: How many of home's pods and nodes are looked at.
LOOKED_AT = "200"


async def unusable(cidr: str, *, home: KubeClient, address: str) -> str:
    """Why not, in a sentence with the next step; "" where it can be had. ``address`` is the one at
    which home's machines reach this bridge."""
    wanted = ipaddress.ip_network(cidr)
    if ipaddress.ip_address(address) in wanted:
        return (
            f"--relay-cidr {cidr} has the bridge's own address, {address}; take a range that "
            "nobody has"
        )
    if home.access.in_cluster and (pod := await _pod_at(home, address)):
        return (
            f"home: --relay-cidr takes a machine's network, and this bridge runs in pod {pod} with "
            "a network of its own, to which home's machines cannot route a range; give the pod "
            "hostNetwork: true, or run the bridge on a machine"
        )
    try:
        await asyncio.to_thread(here.check, cidr)
    except here.RangeError as error:
        return str(error)
    pods = await home.request(
        "GET", PODS.path(), query={"limit": LOOKED_AT}, timeout=permissions.QUESTION
    )
    for taken, whose in (*_of_pods(pods.get("items") or ()), *await _of_nodes(home)):
        if taken.version == wanted.version and taken.overlaps(wanted):
            return (
                f"home: --relay-cidr {cidr} overlaps with {taken} of {whose}; take a range that "
                "nobody has"
            )
    return ""


async def _pod_at(home: KubeClient, address: str) -> str:
    """The pod with an address and a network of its own; "" where there is none."""
    query = {"limit": "1", "fieldSelector": f"status.podIP={address}"}
    found = await home.request("GET", PODS.path(), query=query, timeout=permissions.QUESTION)
    for pod in found.get("items") or ():
        if not (pod.get("spec") or {}).get("hostNetwork"):
            return f"{namespace_of(pod)}/{name_of(pod)}"
    return ""


def _of_pods(pods: Iterable[Object]) -> Iterable[tuple[Network, str]]:
    for pod in pods:
        status = pod.get("status") or {}
        for entry in status.get("podIPs") or ():
            if entry.get("ip"):
                whose = f"pod {namespace_of(pod)}/{name_of(pod)}"
                yield ipaddress.ip_network(str(entry["ip"])), whose


async def _of_nodes(home: KubeClient) -> list[tuple[Network, str]]:
    """What nodes and their pods have; nothing where the credential may see its own node alone."""
    if not await permissions.may_all(home, [Right(NODES, ("list",))]):
        return []
    nodes = await home.request(
        "GET", NODES.path(), query={"limit": LOOKED_AT}, timeout=permissions.QUESTION
    )
    return [found for node in nodes.get("items") or () for found in _of_node(node)]


def _of_node(node: Object) -> Iterable[tuple[Network, str]]:
    addresses = (node.get("status") or {}).get("addresses") or ()
    own = [str(it["address"]) for it in addresses if it.get("type") == "InternalIP"]
    for text in (*own, *((node.get("spec") or {}).get("podCIDRs") or ())):
        yield ipaddress.ip_network(text), f"node {name_of(node)}"
