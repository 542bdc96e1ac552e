"""Checks of the ways between the two clusters: the kubelet API's address, and pods."""

from __future__ import annotations

from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, error, info, ok, warning
from bridge.clusters import pod_network as podnetwork
from bridge.clusters import relay_cidr as relaycidr
from bridge.clusters.bridge_address import find_bridge_address
from bridge.clusters.home_api_address import HomeApiAddress, find_home_api_address
from translators.objects import name_of, namespace_of
from translators.translation_policy import HostPort

# -- home → bridge -------------------------------------------------------------------------


async def address(subject: CheckContext) -> list[Finding]:
    """BRG401 and BRG406 before a join: where it would listen."""
    from bridge.kubelet.server import ListenError, kubelet_api_socket

    here = subject.settings.address or await find_bridge_address(subject.home_client)
    port = subject.settings.port
    at = HostPort(here, port)
    found = [info("BRG401", "home", f"home's API server would dial {at}; tried when it is joined")]
    try:
        kubelet_api_socket(here, port).close()
    except ListenError as taken:
        return [*found, error("BRG406", "home", str(taken))]
    return [*found, ok("BRG406", "home", f"{at} is free" if port else f"{here} has free ports")]


# -- pods ----------------------------------------------------------------------------------


async def pod_network(subject: CheckContext) -> list[Finding]:
    """BRG405, by a real connection from this machine."""
    network = subject.settings.network
    if network == "none":
        return [info("BRG405", "both", "--network none: pods do not need to reach each other")]
    if network == "relay":
        said = "--network relay: the bridge carries connections, and pods need not reach each other"
        return [info("BRG405", "both", said)]
    answers = await podnetwork.dial_pods(subject.remote_client)
    count = answers.count
    if not count:
        return [info("BRG405", "both", "not checked: no pod of the remote is ready to be tried")]
    if silent := answers.timed_out:
        names = ", ".join(
            f"{namespace_of(it)}/{name_of(it)} at {podnetwork.pod_ip(it)}" for it in silent
        )
        said = f"from this machine no way to {len(silent)} of {count} pods tried: {names}"
        if network == "auto":
            return [info("BRG405", "both", f"{said}; --network auto would take relay")]
        return [warning("BRG405", "both", said)]
    if not answers.accepted:
        said = f"from this machine {count} pod(s) refuse a connection; so can a firewall"
        return [info("BRG405", "both", said)]
    return [ok("BRG405", "both", f"from this machine {count} pod(s) of the remote answer")]


# -- remote pods → home --------------------------------------------------------------------


async def home_api(subject: CheckContext) -> list[Finding]:
    """BRG407."""
    if subject.settings.service_accounts != "home":
        return [
            info("BRG407", "remote", "pods have no identity at home, so they need no way there")
        ]
    given = subject.settings.home_api
    at = HomeApiAddress(given) if given else await find_home_api_address(subject.home_client)
    return [ok("BRG407", "remote", f"pods find home's API server at {at}")]


async def relay_cidr(subject: CheckContext) -> list[Finding]:
    """BRG408, where a range is asked for."""
    relay = subject.settings.relay
    if relay.cidr is None:
        return []
    at = relay.address or subject.settings.address or await find_bridge_address(subject.home_client)
    if why := await relaycidr.check_relay_cidr(relay.cidr, home=subject.home_client, address=at):
        return [error("BRG408", "home", why)]
    said = f"this machine may have {relay.cidr}; home's machines have to route it to {at}"
    return [ok("BRG408", "home", said)]


IMPLEMENTATIONS = (
    Implementation("BRG401", address, ("home",), only_before_join=True),
    Implementation("BRG405", pod_network, ("remote",)),
    Implementation("BRG407", home_api, ("home",)),
    Implementation("BRG408", relay_cidr, ("home",), only_before_join=True),
)
