"""Validates the range of `--relay-cidr`: usable on this machine, and unused at home.

Only what the credential may list anyway is compared (`bridge.clusters.home_ranges`).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable

from bridge.clusters.home_ranges import list_nodes, list_service_cidrs
from bridge.clusters.pod_network_probe import find_pods_at
from bridge.rbac import permissions
from bridge.relay.forward import relay_cidr_route
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of, namespace_of
from translators.relay.ipam import IpNetwork

#: How many of home's pods are compared.
PAGE_LIMIT = "200"


async def check_relay_cidr(cidr: str, *, home: KubeClient, address: str) -> str:
    """Why the range cannot be used and what to do, in one sentence; "" if it can. ``address`` is
    the one at which home's nodes reach this bridge. Raises KubeError."""
    requested = ipaddress.ip_network(cidr)
    if ipaddress.ip_address(address) in requested:
        return (
            f"--relay-cidr {cidr} contains the bridge's own address, {address}; choose an unused "
            "range"
        )
    for pod in await find_pods_at(home, address) if home.config.in_cluster else ():
        if not (pod.get("spec") or {}).get("hostNetwork"):
            return (
                "--relay-cidr needs the network of a node, but this bridge runs in pod "
                f"{namespace_of(pod)}/{name_of(pod)} with its own network namespace, to which "
                "home's nodes cannot route a range; set hostNetwork: true on the pod, or run the "
                "bridge on a machine"
            )
    try:
        await asyncio.to_thread(relay_cidr_route.check_available, cidr)
    except relay_cidr_route.LocalRouteError as error:
        return str(error)
    pods = await home.request(
        "GET", PODS.path(), query={"limit": PAGE_LIMIT}, timeout=permissions.REQUEST_SECONDS
    )
    pod_ranges = _pod_ranges(pods.get("items") or ())
    nodes, services = await list_nodes(home), await list_service_cidrs(home)
    for taken, owner in (*pod_ranges, *_node_ranges(nodes), *_service_ranges(services)):
        if taken.version == requested.version and taken.overlaps(requested):
            return f"--relay-cidr {cidr} overlaps with {taken} of {owner}; choose an unused range"
    return ""


def _pod_ranges(pods: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    for pod in pods:
        status = pod.get("status") or {}
        for entry in status.get("podIPs") or ():
            if entry.get("ip"):
                yield ipaddress.ip_network(entry["ip"]), f"pod {namespace_of(pod)}/{name_of(pod)}"


def _service_ranges(service_cidrs: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    for known in service_cidrs:
        for text in (known.get("spec") or {}).get("cidrs") or ():
            yield ipaddress.ip_network(text), "home's Services"


def _node_ranges(nodes: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    """Addresses and pod CIDRs of the nodes."""
    for node in nodes:
        addresses = (node.get("status") or {}).get("addresses") or ()
        own = [str(it["address"]) for it in addresses if it.get("type") == "InternalIP"]
        for text in (*own, *((node.get("spec") or {}).get("podCIDRs") or ())):
            yield ipaddress.ip_network(text), f"node {name_of(node)}"
