"""Selects the network mode of a virtual node: ``--network``, or for ``auto`` the result of a probe.

``auto`` decides once. A mode that a probe found is recorded on the Node (`bridge.node.join_record`)
and kept by every later start and every replica, because another mode would change the endpoints of
running pods. An explicit mode replaces the record; `bridge leave` deletes it with the Node.

A probe without a clear result (no pod to dial, only refused connections) selects the safe mode:
``relay``, or ``none`` where this bridge cannot relay. That mode, like one that an earlier join
configured, is kept while pods run on the node; a start without such pods probes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings, SelectedNetwork
from bridge.clusters.advertised_address import relay_address
from bridge.clusters.pod_network_probe import describe_pod, dial_pods, find_pods_at, pod_ip
from bridge.node import join_record
from bridge.rbac import permissions
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, is_daemonset_pod, name_of

#: Pods of the node that are read to find one that is not a DaemonSet's.
PAGE_LIMIT = "500"


async def select_network(
    settings: JoinSettings,
    *,
    node: Object | None,
    address: str,
    home: KubeClient,
    account: KubeClient,
    remote: KubeClient,
    namespaces: Collection[str] = (),
) -> SelectedNetwork:
    """The network mode of the virtual node.

    ``node`` is the Node if it exists, ``address`` the bridge's; ``home`` reads the node's pods,
    ``account``, if it may, those of home's other nodes. ``namespaces``: those of the remote in
    which pods may be listed; () for all. Needs no permission beyond those of a join
    with any mode. Raises KubeError.
    """
    if settings.network != "auto":
        return SelectedNetwork(settings.network, "configured")
    recorded = join_record.recorded_network(node) if node is not None else None
    if node is not None and recorded is not None:
        if recorded.source == "probed":
            return replace(recorded, reason="recorded on the Node")
        if await _runs_pods(home, name_of(node)):
            return replace(recorded, reason="recorded on the Node, and kept while pods run on it")
    probed = await _probe(account, remote, namespaces)
    return (
        probed if probed.mode == "flat" else await _relay_or_none(settings, probed, address, home)
    )


async def _probe(
    account: KubeClient, remote: KubeClient, namespaces: Collection[str]
) -> SelectedNetwork:
    """``flat`` where dialed pods accept a connection and no pod of home has one of their addresses,
    else ``relay``; ``relay`` too where the account may not look for such pods."""
    dialed = await dial_pods(remote, namespaces)
    if dialed.timed_out:
        return SelectedNetwork("relay", "probed", f"no response from {_describe(dialed.timed_out)}")
    if dialed.refused and not dialed.accepted:
        reason = f"{_describe(dialed.refused)} refused a connection, which is inconclusive"
        return SelectedNetwork("relay", "assumed", reason)
    if not dialed.accepted:
        return SelectedNetwork("relay", "assumed", "no pod of the remote is ready to be dialed")
    try:
        at_home = [pod for pod in dialed.accepted if await find_pods_at(account, pod_ip(pod))]
    except Forbidden:
        reason = (
            "the account may not list home's pods, which could have the addresses of remote pods"
        )
        return SelectedNetwork("relay", "assumed", reason)
    if at_home:
        reason = f"home has pods with the addresses of {_describe(at_home)}"
        return SelectedNetwork("relay", "probed", reason)
    accepted = f"{len(dialed.accepted)} pod(s) of the remote accept a connection"
    return SelectedNetwork("flat", "probed", accepted)


async def _relay_or_none(
    settings: JoinSettings, probed: SelectedNetwork, address: str, home: KubeClient
) -> SelectedNetwork:
    """``none``, assumed, where the bridge may not relay, or has no address to relay at."""
    obstacle = ""
    try:
        relay_address(settings, address)
    except PreflightError as error:
        obstacle = str(error).removeprefix("home: ")
    if not obstacle and not await permissions.are_granted(home, permissions.HOME_RELAY):
        command = permissions.rbac_command("home", replace(settings, network="relay"))
        obstacle = f"relay needs permissions: {command} | kubectl apply -f -"
    if not obstacle:
        return probed
    return SelectedNetwork("none", "assumed", f"{probed.reason}, and {obstacle}")


async def _runs_pods(home: KubeClient, node: str) -> bool:
    """Whether pods run on the node beside those of DaemonSets, which are on every node."""
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    page, _ = await home.list_page(PODS, query={"limit": PAGE_LIMIT, "fieldSelector": fields})
    return any(not is_daemonset_pod(pod) for pod in page.items)


def _describe(pods: Iterable[Object]) -> str:
    return ", ".join(map(describe_pod, pods))
