"""Reads home once, for answers about placement without a placer. Writes nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from sync.base.resource_version import version_of
from sync.engine.engine import utc_now
from sync.kube import discovery
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PLACEMENT_POLICIES,
    PODS,
)
from sync.kube.client import KubeClient
from sync.kube.list_pages import Page
from sync.placement import placer_lease
from sync.placement.home_state import HomeState, slim_pod
from sync.placement.refusals import Refusals
from translators.fit import published_room
from translators.object_accessors import (
    Object,
    condition_of,
    metadata,
    name_of,
    namespace_of,
)
from translators.placement.decision import Decision, decide
from translators.placement.offload_limits import excluded_by_offload
from translators.placement.placement_policy import PlacementPolicy, policy_for
from translators.timestamps import parse_time


@dataclass(slots=True)
class Snapshot:
    """The state of home at one time."""

    state: HomeState
    namespaces: dict[str, Object]
    """By name."""
    policies_defined: bool
    placer: str = ""
    """The identity that holds the placer's Lease; "" for none."""
    refusals: Refusals = field(default_factory=Refusals)
    not_checked: list[str] = field(default_factory=list)
    """Messages about what could not be read."""

    def policy_for(self, pod: Object) -> PlacementPolicy | None:
        """The policy that applies to a pod; None if none does."""
        labels = metadata(self.namespaces.get(namespace_of(pod), {})).get("labels") or {}
        return policy_for(pod, self.state.policies.values(), labels)

    def decide(self, pod: Object, policy: PlacementPolicy) -> Decision:
        """The decision that the placer would make now, without the pod's volumes."""
        virtual = self.state.virtual_nodes()
        blocked, _ = self.refusals.for_pod(pod, [name_of(it) for it in virtual])
        blocked |= excluded_by_offload(self.namespaces.get(namespace_of(pod), {}), virtual)
        counts = self.state.counts(policy.name)
        return decide(pod, policy, self.state.room(), counts=counts, blocked=blocked)


async def read_snapshot(home: KubeClient, policies: Sequence[Object] | None = None) -> Snapshot:
    """Reads home. ``policies``: use these instead of home's. Raises KubeError if nodes or pods
    cannot be read."""
    refusals, not_checked = Refusals(), list[str]()
    defined = await discovery.serves_resource(home, PLACEMENT_POLICIES)

    nodes, pods, namespaces, rooms, found = await asyncio.gather(
        _items(home.list(NODES)),
        _items(home.list(PODS, slim=slim_pod)),
        _optional(home.list(NAMESPACES), "namespaces", not_checked),
        _optional(
            home.list(
                CONFIG_MAPS,
                namespace=published_room.NAMESPACE,
                labels=published_room.LABEL_ROOM,
            ),
            f"the ConfigMaps of namespace {published_room.NAMESPACE}",
            not_checked,
        ),
        _policies(home, policies, defined=defined, not_checked=not_checked),
    )
    now = utc_now()
    # Where home serves no PlacementPolicies, no bridge is about to publish.
    state = HomeState(ready_for=lambda it: _ready_for(it, found, now) if defined else math.inf)
    for node in nodes:
        state.node_changed(None, node)
    for policy in found:
        state.policy_changed(None, policy)
    for room in rooms:
        state.room_changed(None, room)
    for pod in sorted(pods, key=version_of):
        state.pod_changed(None, pod)
        refusals.pod_changed(None, pod)
    return Snapshot(
        state=state,
        namespaces={name_of(it): it for it in namespaces},
        policies_defined=defined,
        placer=await _placer(home),
        refusals=refusals,
        not_checked=not_checked,
    )


def _ready_for(node: Object, policies: Sequence[Object], now: str) -> float:
    """Seconds for which the node has been Ready and home has had policies: since then its bridge
    has had a reason to publish the remote's room."""
    created = [metadata(it).get("creationTimestamp") for it in policies]
    first_policy = min((parse_time(it) for it in created if it), default=None)
    ready = condition_of(node, "Ready").get("lastTransitionTime")
    since = [it for it in (first_policy, parse_time(ready) if ready else None) if it is not None]
    return max(0.0, (parse_time(now) - max(since)).total_seconds()) if since else math.inf


async def _items(listing: Awaitable[Page]) -> list[Object]:
    return list((await listing).items)


async def _optional(listing: Awaitable[Page], what: str, not_checked: list[str]) -> list[Object]:
    try:
        return await _items(listing)
    except Forbidden:
        not_checked.append(f"home: the credential may not list {what}")
        return []


async def _policies(
    home: KubeClient,
    given: Sequence[Object] | None,
    *,
    defined: bool,
    not_checked: list[str],
) -> list[Object]:
    if given is not None:
        return list(given)
    if not defined:
        return []
    return await _optional(home.list(PLACEMENT_POLICIES), str(PLACEMENT_POLICIES), not_checked)


async def _placer(home: KubeClient) -> str:
    try:
        lease = await home.find(LEASES, placer_lease.NAME, namespace=placer_lease.NAMESPACE)
    except Forbidden:
        return ""
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
