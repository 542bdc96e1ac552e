"""Finds the address at which pods in the remote reach home's API server.

Client libraries in pods dial a host and a port (``KUBERNETES_SERVICE_HOST``,
``KUBERNETES_SERVICE_PORT``) over TLS, and verify the certificate for that host with home's cluster
CA. The server in home's kubeconfig is such an address only where the bridge dials it in the same
way. Otherwise the endpoints of the Service ``kubernetes`` are, which API servers write.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from bridge.base.command_error import PreflightError
from bridge.rbac import permissions
from sync.kube.api_errors import NotFound
from sync.kube.api_resources import ENDPOINT_SLICES
from sync.kube.client import KubeClient
from sync.kube.endpoint import Endpoint, proxy_of_environment
from translators.object_accessors import Object
from translators.translation_options import HostPort


@dataclass(frozen=True, slots=True)
class HomeApiAddress:
    """An address for pods, and where it comes from."""

    address: HostPort
    note: str = ""
    """Why it is not the kubeconfig's, where that may surprise; else empty."""

    def __str__(self) -> str:
        return f"{self.address} ({self.note})" if self.note else str(self.address)


async def find_home_api_address(home: KubeClient) -> HomeApiAddress:
    """The kubeconfig's host and port where pods can use them, else an endpoint of the Service
    ``kubernetes``. Raises PreflightError where neither exists, and KubeError."""
    endpoint, in_cluster = home.endpoint, home.credentials.in_cluster
    why = _unusable(endpoint)
    if in_cluster:
        why = "it is a Service's, which only pods of the home cluster reach"
    if not why:
        return HomeApiAddress(HostPort(endpoint.host, endpoint.port))
    at = await kubernetes_endpoint(home)
    if at is None:
        raise PreflightError(
            f"home: pods cannot use the API server's address {endpoint.server}: {why}; and the "
            "Service kubernetes has no endpoints; name an address that pods can reach with "
            "--home-api-address HOST:PORT, or join with --service-accounts none"
        )
    if in_cluster or is_loopback(endpoint.host):
        return HomeApiAddress(at)
    return HomeApiAddress(at, f"an endpoint of the Service kubernetes: {why}")


def _unusable(endpoint: Endpoint) -> str:
    """Why pods cannot use the kubeconfig's server; "" if they can."""
    server = urlsplit(endpoint.server)
    if is_loopback(endpoint.host):
        return "it is on loopback"
    if server.scheme != "https":
        return "home's kubeconfig has a plain http server, and pods need TLS"
    if server.path.strip("/"):
        return f"home's kubeconfig has a server with the path {server.path}, which pods cannot use"
    # A proxy from the environment is for this machine, and irrelevant on the remote's nodes.
    if endpoint.proxy and endpoint.proxy != proxy_of_environment(endpoint.server):
        return "home's kubeconfig has a proxy-url, which pods cannot use"
    if endpoint.tls_server_name and endpoint.tls_server_name != endpoint.host:
        return "home's kubeconfig verifies the server by tls-server-name, but pods by its address"
    return ""


async def kubernetes_endpoint(home: KubeClient) -> HostPort | None:
    """The first endpoint of the Service ``kubernetes``; None without one."""
    path = ENDPOINT_SLICES.path("kubernetes", namespace="default")
    try:
        found: Object = await home.request("GET", path, timeout=permissions.REQUEST_SECONDS)
    except NotFound:
        return None
    addresses = [it for end in found.get("endpoints") or () for it in end.get("addresses") or ()]
    ports = [it["port"] for it in found.get("ports") or () if it.get("port")]
    return HostPort(str(addresses[0]), int(ports[0])) if addresses and ports else None


def is_loopback(host: str) -> bool:
    """Whether the host name or address is on loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
