"""Finds the addresses of this machine at which home reaches the bridge."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.clusters.home_api_address import kubernetes_endpoint
from bridge.rbac import permissions
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from translators.object_accessors import Object
from translators.relay import forward_plan


async def find_bridge_address(home: KubeClient) -> str:
    """The address of this machine at which home's API server can dial the bridge.

    This is the local address of the route to home's API server. Where that server is on loopback
    (as in kind), it shares a network with home's nodes: then the route to a node decides, or where
    the credential may not list nodes, to an endpoint of the API server. Raises PreflightError and
    KubeError.
    """
    address = await asyncio.to_thread(local_address, home.endpoint.host)
    if address is not None:
        return address
    for candidate in await _addresses_at_home(home):
        address = await asyncio.to_thread(local_address, candidate)
        if address is not None:
            return address
    raise PreflightError(
        f"home: cannot determine at which address the API server at {home.endpoint.host} reaches "
        "this machine; name it with --address IP"
    )


async def _addresses_at_home(home: KubeClient) -> list[str]:
    try:
        nodes = await home.request(
            "GET", NODES.path(), query={"limit": "20"}, timeout=permissions.REQUEST_SECONDS
        )
        return list(_internal_addresses(nodes.get("items") or ()))
    except Forbidden:  # The credential may read only the bridge's own node.
        pass
    try:
        endpoint = await kubernetes_endpoint(home)
    except Forbidden:  # Granted with tokens of home's service accounts.
        return []
    return [endpoint.host] if endpoint is not None else []


def relay_address(settings: JoinSettings, address: str) -> str:
    """The address at which the bridge accepts forwarded connections; ``address`` is the kubelet
    API's. Raises PreflightError if an EndpointSlice cannot hold it."""
    found = settings.relay.address or address
    if kind := forward_plan.invalid_endpoint_address(found):
        raise PreflightError(
            f"home: EndpointSlices take no address that is {kind}, such as {found}; set "
            "--relay-address to one at which home's nodes and pods reach this machine"
        )
    return found


def local_address(host: str) -> str | None:
    """The local address of a route to ``host``; None for loopback, or no route. Sends nothing."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(target)
            address = str(sock.getsockname()[0])
    except (OSError, UnicodeError):  # the latter for an empty label, or one that is too long
        return None
    return None if address.startswith("127.") or address == "::1" else address


def _internal_addresses(nodes: Iterable[Object]) -> Iterable[str]:
    for node in nodes:
        for address in (node.get("status") or {}).get("addresses") or ():
            if address.get("type") == "InternalIP":
                yield str(address["address"])
