"""The checks that `bridge join` requires (`Check.join` in the catalog), and the facts they find.

They run before anything is created, read only (an access review creates nothing), and end within
`connection.CONNECT_SECONDS`. A check that finds an error ends the join with that error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.base.join_settings import JoinSettings, MetricsSource, SelectedNetwork
from bridge.base.progress_lines import Caveat
from bridge.certificates import home_client_ca
from bridge.checks import (
    cluster_compatibility,
    network_paths,
    permission_checks,
    remote_namespaces,
    storage,
    workloads,
)
from bridge.checks.catalog import CHECKS
from bridge.checks.check_context import CheckContext, ClusterConnectivity, Implementation
from bridge.checks.findings import Severity
from bridge.clusters import connection
from bridge.clusters.advertised_address import relay_address
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.clusters.wait_for_clusters import retry_while_unreachable
from bridge.home_identity.identity_selection import HomeClients, home_clients
from bridge.node.join_record import recorded_network
from bridge.rbac import permissions
from bridge.remote_claim.claim_place import ClaimPlaces
from sync.kube.api_errors import Forbidden, NotFound
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from translators.derived_names import dns_label
from translators.translation_options import ClusterReads, HostPort, Network, Storage
from translators.virtual_node_identity import Identity


@dataclass(frozen=True, slots=True)
class JoinFacts:
    """The results of the checks of a join."""

    identity: Identity
    remote_id: str
    address: str
    client_ca: str
    """PEM bundle that verifies client certificates of home's API server; "" if home does not
    publish it."""
    home_api: HostPort | None
    """Where pods reach home's API server; None if they have no identity there."""
    metrics: MetricsSource
    selected_network: SelectedNetwork
    recorded_network: SelectedNetwork | None
    """The record of the Node when ``auto`` selected the mode; None if there was no record."""
    relay_address: str
    """Where the bridge accepts forwarded connections; "" if it forwards none."""
    relay_cidr: str = ""
    """The range of addresses for pods behind headless Services; "" for none."""
    node_restriction: bool | None = None
    """Whether NodeRestriction confines the node's certificate; None if unknown, or for a bridge
    that is not the node."""
    cluster_reads: ClusterReads = field(default_factory=ClusterReads)
    """The reads of the whole remote that are granted."""
    claim_places: ClaimPlaces = field(default_factory=ClaimPlaces)
    """Where the claim in the remote is looked for."""
    remote_ids: tuple[str, ...] = ()
    """All identities of the remote that the join knows, if prepared namespaces identify it
    (`bridge.clusters.remote_identity`)."""
    remote_version: str = ""
    """The version of the remote's API server, if its nodes are unknown."""
    storage: Storage = "none"
    """Whether the bridge provisions volumes."""
    snapshots: bool = False
    """Whether these have snapshots."""

    @property
    def network(self) -> Network:
        """How pods of the two clusters reach each other."""
        return self.selected_network.mode

    def with_network(self, recorded: SelectedNetwork, settings: JoinSettings) -> JoinFacts:
        """The facts with the network mode that another replica recorded. Raises PreflightError."""
        address, cidr = _relay_addresses(recorded.mode, settings, self.address)
        return replace(
            self,
            selected_network=recorded,
            recorded_network=recorded,
            relay_address=address,
            relay_cidr=cidr,
        )


@dataclass(frozen=True, slots=True)
class JoinClusters:
    """Clients of the two clusters of a join, and the facts about them."""

    home: HomeClients
    remote: KubeClient
    facts: JoinFacts


def required_by_join(implementations: Iterable[Implementation]) -> tuple[Implementation, ...]:
    """Those whose check a join requires."""
    return tuple(
        it for it in implementations if CHECKS[it.check_id].join and "node" not in it.needs
    )


#: In stages: each relies on those before it, and runs its checks concurrently.
STAGES = (
    required_by_join(permission_checks.IMPLEMENTATIONS),
    required_by_join(cluster_compatibility.IMPLEMENTATIONS),
    required_by_join(
        (
            *network_paths.IMPLEMENTATIONS,
            *storage.IMPLEMENTATIONS,
            *workloads.IMPLEMENTATIONS,
            *remote_namespaces.IMPLEMENTATIONS,
        )
    ),
)


def checked_clusters(
    settings: JoinSettings,
    *,
    consent: Consent,
    notify: Notify,
    on_wait: Callable[[str], None] | None,
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

    return retry_while_unreachable(lambda: _attempt(settings, consent, once), on_wait=on_wait)


@asynccontextmanager
async def _attempt(
    settings: JoinSettings, consent: Consent, notify: Notify
) -> AsyncIterator[JoinClusters]:
    async with (
        connect(settings.remote, side="remote", notify=notify) as remote,
        connect(settings.home, side="home", notify=notify) as account,
        home_clients(
            settings, account, _node_name(settings, remote), consent=consent, notify=notify
        ) as home,
    ):
        facts = await check_join(settings, home=home, remote=remote, notify=notify)
        yield JoinClusters(home, remote, facts)


def _node_name(settings: JoinSettings, remote: KubeClient) -> str:
    return settings.name or dns_label(remote.credentials.context)


async def check_join(
    settings: JoinSettings, *, home: HomeClients, remote: KubeClient, notify: Notify
) -> JoinFacts:
    """Runs the required checks of two clusters that respond. Raises PreflightError."""
    context = CheckContext(
        settings,
        _node_name(settings, remote),
        ClusterConnectivity("home", home.account),
        ClusterConnectivity("remote", remote),
        clients=home,
    )
    with as_preflight_errors():
        async with asyncio.timeout(connection.CONNECT_SECONDS):
            return await _check(context, notify)


async def _check(context: CheckContext, notify: Notify) -> JoinFacts:
    settings, (permissions_stage, cluster_stage, last_stage) = context.settings, STAGES
    await _require(permissions_stage, context, notify)
    await _require(cluster_stage, context, notify)
    # A kubeconfig that changes while the bridge runs must not lead it to another cluster.
    remote_identity, remote = await context.remote_identity(), context.remote_client
    remote.expect_cluster(remote_identity.uid, namespace=remote_identity.namespace)
    context.home_client.expect_cluster(await context.home_uid(), namespace="kube-system")
    identity, address = await context.identity(), await context.bridge_address()
    client_cas = await _client_ca(context.home_client)
    await _require(last_stage, context, notify)
    selected, node = await context.network(), None
    if settings.network == "auto":
        node = await context.registered_node()
        notify(f"both: {selected}")
    relay_ip, cidr = _relay_addresses(selected.mode, settings, address)
    if relay_ip:
        notify(f"home: Services forward to pods in the remote through this bridge at {relay_ip}")
    reads = await context.cluster_reads()
    remote_id = await context.remote_id()
    is_by_prepared = bool(settings.remote_namespaces) or remote_id != remote_identity.ids[0]
    has_identity, storage = settings.service_accounts == "home", await context.storage()
    return JoinFacts(
        identity,
        remote_id,
        address,
        client_cas,
        (await context.home_api_address()).address if has_identity else None,
        await context.metrics_source(),
        selected,
        recorded_network(node) if node is not None else None,
        relay_address=relay_ip,
        relay_cidr=cidr,
        node_restriction=await context.node_restriction(),
        cluster_reads=reads,
        claim_places=await context.claim_places(),
        remote_ids=remote_identity.ids if is_by_prepared else (),
        remote_version="" if reads.nodes else await context.remote_version(),
        storage=storage.mode,
        snapshots=storage.snapshots,
    )


def _relay_addresses(mode: Network, settings: JoinSettings, address: str) -> tuple[str, str]:
    """`JoinFacts.relay_address` and `JoinFacts.relay_cidr`. Raises PreflightError."""
    if mode != "relay":
        return "", ""
    return relay_address(settings, address), settings.relay.cidr or ""


async def _require(
    implementations: Iterable[Implementation], context: CheckContext, notify: Notify
) -> None:
    """Runs the checks of a stage. Raises PreflightError with all errors that they found."""
    results = await asyncio.gather(*(it.run(context) for it in implementations))
    findings = [finding for result in results for finding in result]
    failed = [it for it in findings if it.severity is Severity.ERROR]
    if failed:
        raise PreflightError("; ".join(f"{it.side}: {it.found}; {it.advice}" for it in failed))
    for finding in findings:
        line = f"{finding.side}: {finding.found}"
        is_warning = finding.severity is Severity.WARNING
        notify(Caveat(f"{line}; {finding.advice}") if is_warning else line)


async def _client_ca(home: KubeClient) -> str:
    path = CONFIG_MAPS.path(home_client_ca.NAME, namespace=home_client_ca.NAMESPACE)
    try:
        found = await home.request("GET", path, timeout=permissions.REQUEST_SECONDS)
    except (NotFound, Forbidden):
        return ""
    return home_client_ca.client_ca_bundle(found)
