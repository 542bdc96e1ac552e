"""The input of a check: the two clusters as far as they respond, one virtual node, and facts.

Facts that several checks need are read once per run, so that no two checks see different ones.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import (
    HomeIdentity,
    JoinSettings,
    MetricsSource,
    SelectedNetwork,
)
from bridge.checks.findings import Finding
from bridge.clusters.advertised_address import find_bridge_address
from bridge.clusters.cluster_reads_selection import select_cluster_reads
from bridge.clusters.connection import cluster_uid, git_version
from bridge.clusters.home_api_address import HomeApiAddress, find_home_api_address
from bridge.clusters.kubelet_api_probe import kubelet_api_error
from bridge.clusters.metrics_source_detection import select_metrics_source
from bridge.clusters.network_selection import select_network
from bridge.clusters.remote_identity import (
    RemoteIdentity,
    id_of_volumes,
    read_remote_identity,
)
from bridge.clusters.storage_selection import SelectedStorage, select_storage
from bridge.election.serving_bridge_lookup import find_serving_bridge
from bridge.home_identity import node_restriction
from bridge.home_identity.identity_selection import HomeClients
from bridge.node import join_record
from bridge.node.join_record import recorded_network
from bridge.node.node_object import remote_id_of
from bridge.rbac import permissions
from bridge.remote_claim.claim_place import ClaimPlaces, select_claim_places
from sync.kube.api_errors import ApiError, Side
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials
from translators.object_accessors import Object
from translators.translation_options import ClusterReads
from translators.virtual_node_identity import (
    Identity,
    NamespaceTemplateError,
    home_id_from_uid,
    validate_namespace_template,
)

T = TypeVar("T")
Requirement = Literal["home", "remote", "node"]


@dataclass(slots=True)
class ClusterConnectivity:
    """One cluster, as far as it responded."""

    side: Side
    client: KubeClient | None = None
    credentials: Credentials | None = None
    """Those of the kubeconfig, if it could be loaded."""
    version: str = ""
    """The server's, such as v1.34.4; "" if unknown."""
    clock_ahead: float | None = None
    """Seconds that its clock is ahead of this machine's; None if unknown."""
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The input of all checks, before a join (``node`` is None) or of an existing node."""

    settings: JoinSettings
    """The options of the join; those of an existing node come from its join record."""
    name: str
    """The virtual node's name."""
    home: ClusterConnectivity
    remote: ClusterConnectivity
    node: Object | None = None
    clients: HomeClients | None = None
    """Home's clients of a join."""
    _facts: dict[str, Any] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )

    @property
    def home_client(self) -> KubeClient:
        """Home's client. Only for a check that requires home."""
        return _required(self.home.client)

    @property
    def node_client(self) -> KubeClient:
        """A client of home that may read the pods of the node."""
        return self.home_client if self.clients is None else self.clients.home

    @property
    def home_identity(self) -> HomeIdentity:
        """Identity of the bridge at home; before a join, that which needs the least permissions."""
        if self.clients is not None:
            return self.clients.identity
        choice = self.settings.home_identity
        return "service-account" if choice == "service-account" else "node"

    @property
    def remote_client(self) -> KubeClient:
        """The remote's client. Only for a check that requires the remote."""
        return _required(self.remote.client)

    @property
    def existing_node(self) -> Object:
        """The Node. Only for a check that requires it."""
        return _required(self.node)

    def unavailable(self, requirement: Requirement) -> str:
        """Why the requirement is not met; "" if it is."""
        if requirement == "node":
            return "" if self.node is not None else "there is no node yet"
        cluster = self.home if requirement == "home" else self.remote
        return "" if cluster.client is not None else f"{cluster.side} was not reached"

    # -- facts, each read once; all raise KubeError --------------------------------------------

    async def home_uid(self) -> str:
        """The UID that identifies home."""
        return await self._read_once("home UID", lambda: cluster_uid(self.home_client))

    async def remote_identity(self) -> RemoteIdentity:
        """The UIDs that identify the remote."""
        prepared = self.settings.remote_namespaces
        return await self._read_once(
            "remote identity", lambda: read_remote_identity(self.remote_client, prepared)
        )

    async def home_id(self) -> str:
        """Home's identity, as on labels."""
        return home_id_from_uid(await self.home_uid())

    async def remote_id(self) -> str:
        """The remote's identity, as on the Node's label: the Node's own, if it represents the
        remote, else the one that the home cluster's volumes in the remote name, else the first."""
        identity, node = await self.remote_identity(), self.node
        if self.home.client is not None:
            node = await self.registered_node()
        if node is not None and identity.is_remote_of(node):
            return remote_id_of(node)
        if self.home.client is None or self.settings.storage == "none":
            return identity.ids[0]
        home, prepared = self.home.client, self.settings.remote_namespaces
        return await self._read_once(
            "ID of volumes", lambda: id_of_volumes(home, self.remote_client, identity, prepared)
        )

    async def cluster_reads(self) -> ClusterReads:
        """The reads of the whole remote that the existing node records, or that a join with this
        credential would use."""
        if self.node is not None:
            return join_record.cluster_reads(self.node)
        prepared = self.settings.remote_namespaces
        return await self._read_once(
            "cluster reads", lambda: select_cluster_reads(self.remote_client, prepared)
        )

    async def own_cluster_reads(self) -> ClusterReads:
        """The reads of the whole remote that are granted to this command's own credential."""
        prepared = self.settings.remote_namespaces
        return await self._read_once(
            "own cluster reads", lambda: select_cluster_reads(self.remote_client, prepared)
        )

    async def claim_places(self) -> ClaimPlaces:
        """Where the claim in the remote is looked for."""
        prepared = self.settings.remote_namespaces
        return await self._read_once(
            "claim places", lambda: select_claim_places(self.remote_client, prepared)
        )

    async def remote_version(self) -> str:
        """The version of the remote's API server."""
        return await self._read_once("remote version", self._read_remote_version)

    async def _read_remote_version(self) -> str:
        return git_version(
            await self.remote_client.request("GET", "/version", timeout=permissions.REQUEST_SECONDS)
        )

    async def identity(self) -> Identity:
        """The identity that a join would have. Raises PreflightError for a bad template."""
        home_id = await self.home_id()
        identity = Identity(
            home_id=home_id,
            home_name=self.settings.home_name or home_id[:8],
            node=self.name,
            namespace_template=self.settings.template,
            accepted_namespaces=self._accepted_namespaces(),
        )
        try:
            validate_namespace_template(identity.namespace_template, home_name=identity.home_name)
        except NamespaceTemplateError as error:
            raise PreflightError(f"--namespace-template {error}") from error
        return identity

    def _accepted_namespaces(self) -> tuple[str, ...]:
        # The record of an existing node has the prepared namespaces in both lists.
        settings = self.settings
        return tuple(dict.fromkeys((*settings.accept_namespaces, *settings.remote_namespaces)))

    async def bridge_address(self) -> str:
        """The address at which home reaches the bridge. Raises PreflightError."""
        if self.settings.address:
            return self.settings.address
        return await self._read_once("address", lambda: find_bridge_address(self.home_client))

    async def home_api_address(self) -> HomeApiAddress:
        """The address at which pods reach home's API server. Raises PreflightError."""
        if self.settings.home_api:
            return HomeApiAddress(self.settings.home_api)
        return await self._read_once("home API", lambda: find_home_api_address(self.home_client))

    async def metrics_source(self) -> MetricsSource:
        """Where the bridge reads the resource usage of pods. Raises PreflightError."""
        choice, prepared = self.settings.metrics, self.settings.remote_namespaces
        return await self._read_once(
            "metrics", lambda: select_metrics_source(self.remote_client, choice, prepared)
        )

    async def node_restriction(self) -> bool | None:
        """Whether NodeRestriction confines the node's certificate: what the Node records, or what a
        join finds; None if unknown, or for a bridge that is not the node."""
        if self.node is not None:
            return join_record.node_restriction(self.node)
        if self.clients is None or self.clients.identity != "node":
            return None
        node = self.clients.home
        return await self._read_once(
            "NodeRestriction", lambda: node_restriction.is_restricted(node, self.name)
        )

    async def registered_node(self) -> Object | None:
        """The Node of this name in home, of whatever kind; None if there is none."""
        return self.node or await self._read_once(
            "node", lambda: self.home_client.find(NODES, self.name)
        )

    async def network(self) -> SelectedNetwork:
        """The network mode that the existing node records, or that a join would select."""
        recorded = recorded_network(self.node) if self.node is not None else None
        if recorded is not None:
            return recorded
        if self.settings.network != "auto":
            return SelectedNetwork(self.settings.network, "configured")
        return await self._read_once("network", self._select_network)

    async def _select_network(self) -> SelectedNetwork:
        reads = await self.own_cluster_reads()
        return await select_network(
            self.settings,
            node=await self.registered_node(),
            address=await self.bridge_address(),
            home=self.node_client,
            account=self.home_client,
            remote=self.remote_client,
            namespaces=() if reads.pods else self.settings.remote_namespaces,
        )

    async def storage(self) -> SelectedStorage:
        """Whether a join would provision volumes. Raises PreflightError."""
        return await self._read_once("storage", self._select_storage)

    async def _select_storage(self) -> SelectedStorage:
        return await select_storage(
            self.settings,
            registered_node=self.registered_node,
            home=self.home_client,
            remote=self.remote_client,
        )

    async def serving_bridge(self) -> str | None:
        """The bridge that serves the node, see `find_serving_bridge`."""
        return await self._read_once(
            "serving bridge", lambda: find_serving_bridge(self.home_client, self.name)
        )

    async def kubelet_api_error(self) -> ApiError | None:
        """The response of home's API server to a request for the kubelet API; None for success."""
        return await self._read_once(
            "kubelet API", lambda: kubelet_api_error(self.home_client, self.name)
        )

    async def _read_once(self, fact: str, read: Callable[[], Awaitable[T]]) -> T:
        async with self._locks[fact]:
            if fact not in self._facts:
                self._facts[fact] = await read()
            result: T = self._facts[fact]
            return result


@dataclass(frozen=True, slots=True)
class Implementation:
    """A function that performs a check, or several. ``check_id`` is that of "not checked"."""

    check_id: str
    run: Callable[[CheckContext], Awaitable[Sequence[Finding]]]
    needs: tuple[Requirement, ...]
    only_before_join: bool = False


def _required(found: T | None) -> T:
    if found is None:
        raise RuntimeError("a check uses what it did not declare in `Implementation.needs`")
    return found
