"""The checks of a join. Nothing here writes; access reviews are questions.

`check` runs them in an order in which each relies on those before it, and all of them end within
`LIMIT` seconds, whatever the network does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.base.settings import JoinSettings, MetricsChoice, MetricsSource
from bridge.certificates import client_ca as clientca
from bridge.preflight import relay_cidr as relaycidr
from bridge.preflight.home_api import HomeApi, home_api_of
from bridge.preflight.pod_network import network_of
from bridge.rbac import permissions
from sync.kube.client import KubeClient
from sync.kube.credentials import KubeconfigRef, load
from sync.kube.errors import (
    ApiError,
    ApiServerCertificateError,
    Forbidden,
    KubeError,
    NotFound,
    Side,
    Unauthorized,
    Unreachable,
)
from sync.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, POD_METRICS
from translators.identity import (
    Identity,
    NamespaceTemplateError,
    home_id_from_uid,
    validate_namespace_template,
)
from translators.names import dns_label
from translators.objects import Object, uid_of
from translators.relay import forward
from translators.translation_policy import HostPort, Network

#: Seconds for everything, kubeconfig plugins included: a person waits for this.
LIMIT = 14.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the checks found out."""

    identity: Identity
    remote_id: str
    address: str
    client_ca: str
    """PEM of the authorities by which home's API server proves who it is; "" where home keeps
    that to itself."""
    home_api: HostPort | None
    """Where pods reach home's API server; None where they have no identity there."""
    metrics: MetricsSource
    """Where the bridge learns what pods use."""
    network: Network
    """How pods of the two clusters reach each other."""
    relay_address: str
    """Where the bridge listens for connections that it carries; "" where it carries none."""
    relay_cidr: str = ""
    """Where it does so for pods behind headless Services; "" where it does not."""


Told = Callable[[str], None]

_METRICS_TOLD: Mapping[MetricsSource, str] = {
    "kubelets": "remote: its kubelets tell what pods use",
    "api": "remote: its metrics API tells what pods use; kubelets would do so exactly, with the "
    "right to get nodes/proxy",
    "none": "remote: nothing tells what pods use, so kubectl top and autoscalers do not know "
    "these; grant get nodes/proxy or list pods.metrics.k8s.io for that",
}


_BY_NAMESPACE = (
    "home: pods of a namespace run when the bridge may read it; bridge rbac namespace NAME prints "
    "what lets it"
)


@asynccontextmanager
async def connected(ref: KubeconfigRef, *, side: Side, told: Told) -> AsyncIterator[KubeClient]:
    """A client whose API server has answered. Raises PreflightError."""
    with explained(side):
        async with asyncio.timeout(LIMIT):
            access = await load(ref, side=side)
            async with KubeClient(access) as probe:
                version = await probe.request("GET", "/version", timeout=permissions.QUESTION)
    told(f"{side}: {access.server} (context {access.context}), {version.get('gitVersion', '?')}")
    async with KubeClient(access) as client:
        yield client


async def check(
    settings: JoinSettings, *, home: KubeClient, remote: KubeClient, told: Told
) -> Found:
    """All checks between two clusters that answer. Raises PreflightError."""
    with explained():
        async with asyncio.timeout(LIMIT):
            node = settings.name or dns_label(remote.config.context)
            lacking = await permissions.lacking(
                home=home, remote=remote, settings=settings, node=node
            )
            if lacking:
                raise PreflightError(lacking)
            told("both: the credentials may do what the bridge does")
            everywhere = permissions.in_namespaces(
                network=settings.network, service_accounts=settings.service_accounts
            )
            if not await permissions.may_all(home, everywhere):
                told(_BY_NAMESPACE)
            home_uid, remote_uid = await asyncio.gather(cluster_uid(home), cluster_uid(remote))
            # Files that change while the bridge runs must not lead it to other clusters.
            home.config.cluster_uid, remote.config.cluster_uid = home_uid, remote_uid
            if home_uid == remote_uid:
                raise PreflightError(
                    f"{remote.config.server} is the home cluster itself (same kube-system "
                    "namespace); name another cluster with --kubeconfig or --context"
                )
            identity = identity_of(settings, node=node, home_uid=home_uid)
            address = settings.address or await own_address(home)
            client_ca = await _client_ca(home)
            home_api = None
            if settings.service_accounts == "home":
                given = settings.home_api
                home_api = HomeApi(given) if given else await home_api_of(home)
            metrics = await metrics_source(remote, settings.metrics)
            network = await network_of(settings.network, home=home, remote=remote, told=told)
            at = relay_address(settings, address) if network == "relay" else ""
            cidr = settings.relay.cidr or "" if at else ""
            if cidr and (why := await relaycidr.unusable(cidr, home=home, address=at)):
                raise PreflightError(why)
    # No more than what the Node will say: home's API server dials it when there is a Node.
    told(f"home: its API server will dial this bridge at {address}; bridge check NODE tests that")
    if home_api is not None:
        told(f"remote: pods find home's API server at {home_api}")
    told(_METRICS_TOLD[metrics])
    if at:
        told(f"home: Services lead to pods in the remote through this bridge at {at}")
    if cidr:
        told(f"home: pods behind headless Services are at {cidr}; route that to {at}")
    return Found(
        identity,
        home_id_from_uid(remote_uid),
        address,
        client_ca,
        home_api.at if home_api else None,
        metrics,
        network,
        relay_address=at,
        relay_cidr=cidr,
    )


class explained:  # noqa: N801  # reads as a statement
    """Turns what the client raises into one sentence with the next step.

    ``side`` is for an end of time, which does not tell where it was spent.
    """

    def __init__(self, side: Side | None = None) -> None:
        self._where = f"{side}: " if side else ""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, KubeError):
            raise PreflightError(words(error)) from error
        if isinstance(error, TimeoutError):
            raise PreflightError(
                f"{self._where}no answer in {LIMIT:.0f} s, from an API server or from the "
                "kubeconfig's credential plugin; try `kubectl version` with the same kubeconfig"
            ) from error


def words(error: KubeError) -> str:
    said = str(error)
    if isinstance(error, ApiServerCertificateError):
        return said
    if isinstance(error, Unauthorized):
        return (
            f"{error.side}: the API server does not accept the kubeconfig's credential (expired, "
            "revoked, or of another cluster); get a new one and join again"
        )
    if isinstance(error, Forbidden):
        return f"{said}; ask the cluster's administrator for that right"
    if isinstance(error, Unreachable):
        return f"{said}; check that the server in the kubeconfig is up and can be reached from here"
    if isinstance(error, ApiError):
        return f"{said}; `kubectl get --raw /readyz` with the same kubeconfig says how it is"
    return said


async def cluster_uid(client: KubeClient) -> str:
    """The UID of kube-system: what a cluster is known by."""
    path = NAMESPACES.path("kube-system")
    namespace: Object = await client.request("GET", path, timeout=permissions.QUESTION)
    return uid_of(namespace)


def identity_of(settings: JoinSettings, *, node: str, home_uid: str) -> Identity:
    home = home_id_from_uid(home_uid)
    identity = Identity(
        home_id=home,
        home_name=settings.home_name or home[:8],
        node=node,
        namespace_template=settings.template,
        accepted_namespaces=settings.accept_namespaces,
    )
    try:
        validate_namespace_template(identity.namespace_template, home_name=identity.home_name)
    except NamespaceTemplateError as error:
        raise PreflightError(f"--namespace-template {error}") from error
    return identity


async def own_address(home: KubeClient) -> str:
    """The address of this machine that home's API server can reach.

    That is the one from which we reach it. Where it is on loopback (kind publishes it so), the
    API server is in a network of home's nodes, and the way to one of them tells.
    """
    address = await asyncio.to_thread(_local_address, home.config.host)
    if address is not None:
        return address
    try:
        nodes = await home.request(
            "GET", NODES.path(), query={"limit": "20"}, timeout=permissions.QUESTION
        )
    except Forbidden:
        nodes = {}  # It may look at its own node alone.
    for candidate in _internal_addresses(nodes.get("items") or ()):
        address = await asyncio.to_thread(_local_address, candidate)
        if address is not None:
            return address
    raise PreflightError(
        f"home's API server is at {home.config.host}, which does not tell where it can reach "
        "this machine; say so with --address IP"
    )


def _local_address(host: str) -> str | None:
    """The local address of a route to ``host``; None for loopback, or no route. Sends nothing."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(target)
            address = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if address.startswith("127.") or address == "::1" else address


def _internal_addresses(nodes: Iterable[Object]) -> Iterable[str]:
    for node in nodes:
        for address in (node.get("status") or {}).get("addresses") or ():
            if address.get("type") == "InternalIP":
                yield str(address["address"])


async def _client_ca(home: KubeClient) -> str:
    path = CONFIG_MAPS.path(clientca.NAME, namespace=clientca.NAMESPACE)
    try:
        found = await home.request("GET", path, timeout=permissions.QUESTION)
    except (NotFound, Forbidden):
        return ""
    return clientca.client_ca_bundle(found)


def relay_address(settings: JoinSettings, address: str) -> str:
    """Where the bridge listens for connections that it carries. Raises PreflightError."""
    found = settings.relay.address or address
    if what := forward.invalid_endpoint_address(found):
        raise PreflightError(
            f"home: EndpointSlices take no address that is {what}, such as {found}; give "
            "--relay-address the one at which home's machines and pods reach this machine"
        )
    return found


async def metrics_source(remote: KubeClient, choice: MetricsChoice) -> MetricsSource:
    """Where the bridge learns what pods use. Raises PreflightError where it may not as asked."""
    if choice in ("auto", "kubelets"):
        if await permissions.may_all(remote, permissions.REMOTE_METRICS["kubelets"]):
            return "kubelets"
        if choice == "kubelets":
            raise PreflightError(
                "remote: --metrics kubelets needs the right to get nodes/proxy; grant it "
                "(`bridge rbac remote --metrics kubelets` prints what to apply there), or take "
                "--metrics auto"
            )
    if choice in ("auto", "api"):
        allowed = await permissions.may_all(remote, permissions.REMOTE_METRICS["api"])
        if allowed and await _serves_metrics(remote):
            return "api"
        if choice == "api":
            raise PreflightError(
                "remote: --metrics api needs a metrics API (a metrics-server, say) and the right "
                "to list pods.metrics.k8s.io (`bridge rbac remote --metrics api`); see to both, or "
                "take --metrics auto"
            )
    return "none"


async def _serves_metrics(remote: KubeClient) -> bool:
    """Whether the remote has a metrics API; everybody may ask for what it serves."""
    path = f"/apis/{POD_METRICS.api_version}"
    try:
        await remote.request("GET", path, timeout=permissions.QUESTION)
    except ApiError:
        return False
    return True
