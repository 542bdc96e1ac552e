"""The checks that `bridge join` makes before it creates anything, and the facts that they find.

They run in an order in which each relies on those before it, read only (an access review creates
nothing), and end within `connection.CONNECT_SECONDS`. The first that fails ends the join.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.base.settings import JoinSettings, MetricsSource
from bridge.certificates import client_ca
from bridge.clusters import connection
from bridge.clusters.bridge_address import find_bridge_address, relay_address
from bridge.clusters.connection import (
    Notify,
    as_preflight_errors,
    cluster_uid,
    connect,
)
from bridge.clusters.home_api_address import HomeApiAddress, find_home_api_address
from bridge.clusters.metrics_source import select_metrics_source
from bridge.clusters.pod_network import select_network
from bridge.clusters.relay_cidr import check_relay_cidr
from bridge.clusters.retry import retry_while_unreachable
from bridge.rbac import permissions
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden, NotFound
from sync.kube.resources import CONFIG_MAPS
from translators.identity import (
    Identity,
    NamespaceTemplateError,
    home_id_from_uid,
    validate_namespace_template,
)
from translators.names import dns_label
from translators.translation_policy import HostPort, Network


@dataclass(frozen=True, slots=True)
class JoinFacts:
    """What the checks of a join found out."""

    identity: Identity
    remote_id: str
    address: str
    client_ca: str
    """PEM bundle that verifies client certificates of home's API server; "" where home does not
    publish it."""
    home_api: HostPort | None
    """Where pods reach home's API server; None where they have no identity there."""
    metrics: MetricsSource
    network: Network
    relay_address: str
    """Where the bridge accepts forwarded connections; "" where it forwards none."""
    relay_cidr: str = ""
    """The range of addresses for pods behind headless Services; "" for none."""


@dataclass(frozen=True, slots=True)
class JoinClusters:
    """Clients of the two clusters of a join, and the facts about them."""

    home: KubeClient
    remote: KubeClient
    facts: JoinFacts


_METRICS: Mapping[MetricsSource, str] = {
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


def checked_clusters(
    settings: JoinSettings, *, notify: Notify, on_wait: Callable[[str], None] | None
) -> AbstractAsyncContextManager[JoinClusters]:
    """Both clusters once all checks pass. Raises PreflightError.

    ``on_wait`` gets the reason of each wait for an unreachable cluster; with None that is an error.
    A line is passed to ``notify`` once, however many attempts there are.
    """
    notified = set[str]()

    def once(line: str) -> None:
        if line not in notified:
            notified.add(line)
            notify(line)

    return retry_while_unreachable(lambda: _attempt(settings, once), on_wait=on_wait)


@asynccontextmanager
async def _attempt(settings: JoinSettings, notify: Notify) -> AsyncIterator[JoinClusters]:
    async with (
        connect(settings.remote, side="remote", notify=notify) as remote,
        connect(settings.home, side="home", notify=notify) as home,
    ):
        facts = await check(settings, home=home, remote=remote, notify=notify)
        yield JoinClusters(home, remote, facts)


async def check(
    settings: JoinSettings, *, home: KubeClient, remote: KubeClient, notify: Notify
) -> JoinFacts:
    """All checks between two clusters that answer. Raises PreflightError."""
    with as_preflight_errors():
        async with asyncio.timeout(connection.CONNECT_SECONDS):
            node = settings.name or dns_label(remote.config.context)
            lacking = await permissions.describe_missing(
                home=home, remote=remote, settings=settings, node=node
            )
            if lacking:
                raise PreflightError(lacking)
            notify("both: the credentials may do what the bridge does")
            everywhere = permissions.for_home_namespaces(
                network=settings.network, service_accounts=settings.service_accounts
            )
            if not await permissions.are_granted(home, everywhere):
                notify(_BY_NAMESPACE)
            home_uid, remote_uid = await asyncio.gather(cluster_uid(home), cluster_uid(remote))
            # Files that change while the bridge runs must not lead it to other clusters.
            home.config.cluster_uid, remote.config.cluster_uid = home_uid, remote_uid
            if home_uid == remote_uid:
                raise PreflightError(
                    f"{remote.config.server} is the home cluster itself (same kube-system "
                    "namespace); name another cluster with --kubeconfig or --context"
                )
            identity = build_identity(settings, node=node, home_uid=home_uid)
            address = settings.address or await find_bridge_address(home)
            client_cas = await _client_ca(home)
            home_api = None
            if settings.service_accounts == "home":
                given = settings.home_api
                home_api = HomeApiAddress(given) if given else await find_home_api_address(home)
            metrics = await select_metrics_source(remote, settings.metrics)
            network = await select_network(
                settings.network, home=home, remote=remote, notify=notify
            )
            at = relay_address(settings, address) if network == "relay" else ""
            cidr = settings.relay.cidr or "" if at else ""
            if cidr and (why := await check_relay_cidr(cidr, home=home, address=at)):
                raise PreflightError(why)
    # No more than what the Node will say: home's API server dials it when there is a Node.
    notify(f"home: its API server will dial this bridge at {address}; bridge check NODE tests that")
    if home_api is not None:
        notify(f"remote: pods find home's API server at {home_api}")
    notify(_METRICS[metrics])
    if at:
        notify(f"home: Services lead to pods in the remote through this bridge at {at}")
    if cidr:
        notify(f"home: pods behind headless Services are at {cidr}; route that to {at}")
    return JoinFacts(
        identity,
        home_id_from_uid(remote_uid),
        address,
        client_cas,
        home_api.address if home_api else None,
        metrics,
        network,
        relay_address=at,
        relay_cidr=cidr,
    )


def build_identity(settings: JoinSettings, *, node: str, home_uid: str) -> Identity:
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


async def _client_ca(home: KubeClient) -> str:
    path = CONFIG_MAPS.path(client_ca.NAME, namespace=client_ca.NAMESPACE)
    try:
        found = await home.request("GET", path, timeout=permissions.REQUEST_SECONDS)
    except (NotFound, Forbidden):
        return ""
    return client_ca.client_ca_bundle(found)
