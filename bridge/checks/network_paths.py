"""Checks of the network: home to the bridge, between pods, and from pods to home's API server."""

from __future__ import annotations

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, not_checked, ok, warning
from bridge.clusters.advertised_address import relay_address
from bridge.clusters.pod_network_probe import describe_pod, dial_pods
from bridge.clusters.relay_cidr_validation import check_relay_cidr
from translators.translation_options import HostPort


async def check_kubelet_api_address(context: CheckContext) -> list[Finding]:
    """BRG401 before a join: nothing listens yet, so that only the address is known."""
    address = await context.bridge_address()
    return [info("BRG401", "home", f"its API server will dial this bridge at {address}")]


async def check_kubelet_api_port(context: CheckContext) -> list[Finding]:
    """BRG406."""
    from bridge.kubelet.server import ListenError, kubelet_api_socket

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


IMPLEMENTATIONS = (
    Implementation("BRG401", check_kubelet_api_address, ("home",), only_before_join=True),
    Implementation("BRG405", check_pod_network, ("remote",)),
    Implementation("BRG406", check_kubelet_api_port, ("home",), only_before_join=True),
    Implementation("BRG407", check_home_api_address, ("home",)),
    Implementation("BRG408", check_relay_range, ("home",), only_before_join=True),
    Implementation("BRG409", check_pod_ip_limit, ("home", "remote")),
)
