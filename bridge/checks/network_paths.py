"""Checks of the network: home to the bridge, between pods, and from pods to home's API server."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, not_checked, ok, warning
from bridge.clusters.advertised_address import relay_address
from bridge.clusters.home_ranges import list_nodes, list_service_cidrs
from bridge.clusters.pod_network_probe import describe_pod, dial_pods, find_pods_at
from bridge.kubelet.server import ListenError, kubelet_api_socket
from bridge.rbac import permissions
from bridge.relay.forward import relay_cidr_route
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of, namespace_of
from translators.relay.ipam import IpNetwork
from translators.translation_options import HostPort


async def check_kubelet_api_address(context: CheckContext) -> list[Finding]:
    """BRG401 before a join: nothing listens yet, so that only the address is known."""
    address = await context.bridge_address()
    return [info("BRG401", "home", f"its API server will dial this bridge at {address}")]


async def check_kubelet_api_port(context: CheckContext) -> list[Finding]:
    """BRG406."""
    address, port = await context.bridge_address(), context.settings.port
    try:
        kubelet_api_socket(address, port).close()
    except ListenError as failure:
        return [error("BRG406", "home", str(failure))]
    free = f"{HostPort(address, port)} is free" if port else f"{address} has free ports"
    return [ok("BRG406", "home", free)]


async def check_relay_range(context: CheckContext) -> list[Finding]:
    """BRG408, where a range is configured and the bridge forwards connections."""
    cidr = context.settings.relay.cidr
    if cidr is None or (await context.network()).mode != "relay":
        return []
    address = relay_address(context.settings, await context.bridge_address())
    if problem := await check_relay_cidr(cidr, home=context.home_client, address=address):
        return [error("BRG408", "home", problem)]
    text = f"pods behind headless Services have addresses in {cidr}: route that range to {address}"
    return [info("BRG408", "home", text)]


async def check_pod_network(context: CheckContext) -> list[Finding]:
    """BRG405, by connections from this machine."""
    needs_home = context.node is None and context.settings.network == "auto"
    if needs_home and (missing := context.unavailable("home")):
        return [not_checked("BRG405", "both", missing)]
    network = await context.network()
    if network.mode != "flat" or needs_home:
        return [info("BRG405", "both", str(network))]
    reads = await context.own_cluster_reads()
    namespaces = () if reads.pods else context.settings.remote_namespaces
    dialed = await dial_pods(context.remote_client, namespaces)
    if not dialed.count:
        return [not_checked("BRG405", "both", f"{network}; no pod of the remote is ready")]
    if dialed.timed_out:
        pods = summarize_names(map(describe_pod, dialed.timed_out))
        text = f"no response from {len(dialed.timed_out)} of {dialed.count} dialed pods: {pods}"
        return [warning("BRG405", "both", f"{network}; {text}")]
    if not dialed.accepted:
        text = f"all {dialed.count} dialed pods refuse a connection, as a firewall may do too"
        return [info("BRG405", "both", f"{network}; {text}")]
    text = f"{len(dialed.accepted)} of {dialed.count} dialed pods accept a connection"
    return [ok("BRG405", "both", f"{network}; {text}")]


async def check_pod_ip_limit(context: CheckContext) -> list[Finding]:
    """BRG409, where pod IPs are copied."""
    if (await context.network()).mode != "flat":
        return []
    if cidrs := ", ".join(context.settings.remote_pod_cidrs):
        return [ok("BRG409", "home", f"no pod IP outside of {cidrs} is copied from the remote")]
    text = (
        "any pod IP that the remote reports is copied, except home's own addresses; "
        "--remote-pod-cidr limits them to the remote's pod networks"
    )
    return [info("BRG409", "home", text)]


async def check_home_api_address(context: CheckContext) -> list[Finding]:
    """BRG407."""
    if context.settings.service_accounts != "home":
        text = "--service-accounts none: pods do not use home's API server"
        return [info("BRG407", "remote", text)]
    address = await context.home_api_address()
    return [info("BRG407", "remote", f"pods find home's API server at {address}")]


#: How many pods of the home cluster are compared.
PAGE_LIMIT = "200"


async def check_relay_cidr(cidr: str, *, home: KubeClient, address: str) -> str:
    """Why the range cannot be used on this machine and in the home cluster, and what to do, in one
    sentence; "" if it can. ``address`` is the one at which the home cluster's nodes reach this
    bridge. Only what the credential may list anyway is compared. Raises KubeError."""
    requested = ipaddress.ip_network(cidr)
    if ipaddress.ip_address(address) in requested:
        return (
            f"--relay-cidr {cidr} contains the bridge's own address, {address}; choose an unused "
            "range"
        )
    for pod in await find_pods_at(home, address) if home.credentials.in_cluster else ():
        if not (pod.get("spec") or {}).get("hostNetwork"):
            return (
                "--relay-cidr needs the network of a node, but this bridge runs in pod "
                f"{namespace_of(pod)}/{name_of(pod)} with its own network namespace, to which "
                "home's nodes cannot route a range; set hostNetwork: true on the pod, or run the "
                "bridge on a machine"
            )
    try:
        await asyncio.to_thread(relay_cidr_route.check_available, cidr)
    except relay_cidr_route.LocalRouteError as failure:
        return str(failure)
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
        ips = [str(entry.get("ip")) for entry in status.get("podIPs") or ()]
        yield from _valid(ips, f"pod {namespace_of(pod)}/{name_of(pod)}")


def _service_ranges(service_cidrs: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    for known in service_cidrs:
        yield from _valid((known.get("spec") or {}).get("cidrs") or (), "home's Services")


def _node_ranges(nodes: Iterable[Object]) -> Iterable[tuple[IpNetwork, str]]:
    """Addresses and pod CIDRs of the nodes."""
    for node in nodes:
        addresses = (node.get("status") or {}).get("addresses") or ()
        own = [str(entry["address"]) for entry in addresses if entry.get("type") == "InternalIP"]
        ranges = (node.get("spec") or {}).get("podCIDRs") or ()
        yield from _valid((*own, *ranges), f"node {name_of(node)}")


def _valid(ranges: Iterable[str], owner: str) -> Iterator[tuple[IpNetwork, str]]:
    """The valid ranges and addresses; a Node may have any text as its address."""
    for text in ranges:
        try:
            yield ipaddress.ip_network(text), owner
        except ValueError:
            continue


IMPLEMENTATIONS = (
    Implementation("BRG401", check_kubelet_api_address, ("home",), only_before_join=True),
    Implementation("BRG405", check_pod_network, ("remote",)),
    Implementation("BRG406", check_kubelet_api_port, ("home",), only_before_join=True),
    Implementation("BRG407", check_home_api_address, ("home",)),
    Implementation("BRG408", check_relay_range, ("home",), only_before_join=True),
    Implementation("BRG409", check_pod_ip_limit, ("home", "remote")),
)
