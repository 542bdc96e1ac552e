"""Publishes the remote's free room at home, in a ConfigMap (`translators.fit.published_room`).

The placer has no access to remotes: from the ConfigMap it knows whether one node there can take a
pod. The ConfigMap is written only after a change of the room, or for a pod that does not run yet,
at most once in `SPACING` seconds. With ``auto`` it is written only where home serves
PlacementPolicies or Kueue's AdmissionChecks: the bridge watches their definitions
(`sync.placement.definition_watch`), and publishes as soon as one of them is served. Without the
permission to read these the bridge asks again after `ASK_SPACING` seconds, and then at the next
change or after `ASK_AGAIN` more. A write that fails is repeated with the next change, or after
`RETRY` seconds.
"""

from __future__ import annotations

import asyncio
import logging

from sync.base.resource_version import version_of
from sync.capacity.remote_capacity import CapacityAggregator
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube import discovery
from sync.kube.api_errors import AlreadyExists, Forbidden, KubeError, NotFound
from sync.kube.api_resources import CONFIG_MAPS, KUEUE_ADMISSION_CHECKS, NODES, PLACEMENT_POLICIES
from sync.placement.definition_watch import wait_until_served
from sync.runtime.log_fields import name_fields
from translators.fit import published_room
from translators.fit.fit import in_remote, reserve
from translators.fit.node_groups import NodeGroup, merge_equal, node_group
from translators.fit.published_room import PublishRoom
from translators.object_accessors import Object, is_deleting, name_of
from translators.ownership_labels import is_owned_by_node, origin_of
from translators.pods import pod_status
from translators.pods.scheduling_fields import PLATFORM_LABELS

log = logging.getLogger(__name__)

#: Least seconds between two writes.
SPACING = 5.0
#: Seconds until a failed write is repeated without a change.
RETRY = 60.0
#: Least seconds between two questions whether home serves what needs the room, without the
#: permission to watch that.
ASK_SPACING = 60.0
#: Seconds for which the bridge then waits for a change.
ASK_AGAIN = published_room.NOTICED_MINUTES * 60.0 - ASK_SPACING
#: The resources of home whose controllers decide by the room.
READ_BY = (PLACEMENT_POLICIES, KUEUE_ADMISSION_CHECKS)


class RoomPublisher:
    """The task that publishes the room of one virtual node's remote."""

    def __init__(
        self, context: ControllerContext, capacity: CapacityAggregator, mode: PublishRoom
    ) -> None:
        self._account = context.account
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._remote_nodes = context.remote_nodes
        self._capacity = capacity
        self._mode = mode
        self._changed = asyncio.Event()
        self._is_served = False
        self._published: tuple[NodeGroup, ...] | None = None
        # The newest versions of the node's pods at home: of all, of those that the placer may count
        # as in transit, and the one that the published room accounts for.
        self._newest = self._newest_in_transit = self._published_version = 0
        capacity.on_change(self._changed.set)

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        return Declaration(
            "room",
            watches=[
                Watch(self._remote_nodes, self._node_changed, replay=False),
                Watch(self._home_pods, self._home_pod_changed),
                Watch(self._remote_pods),
            ],
            run=self._run,
        )

    @property
    def is_active(self) -> bool:
        """Whether the room is published: home serves PlacementPolicies, or the option is ``on``."""
        return self._mode == "on" or self._is_served

    def room(self) -> tuple[NodeGroup, ...]:
        """The remote's room now, without what pods need that wait for a node there."""
        left = self._capacity.left_on_nodes()
        if "" in left:  # The remote's nodes are unknown: what it declares, as one node.
            groups = [NodeGroup().with_amounts(left[""], 1)]
            return reserve(groups, [in_remote(it) for it in self._waiting_pods()])
        nodes = {name_of(it): it for it in self._remote_nodes.store}
        groups = [
            node_group(nodes[name], amounts, label_keys=PLATFORM_LABELS)
            for name, amounts in left.items()
            if name in nodes
        ]
        groups += self._elastic_nodes(groups)
        return reserve(merge_equal(groups), [in_remote(it) for it in self._waiting_pods()])

    def _elastic_nodes(self, present: list[NodeGroup]) -> list[NodeGroup]:
        """The nodes that the remote may still add; they have the labels that all present ones
        share."""
        size, count = self._capacity.left_for_elastic_nodes()
        if not count:
            return []
        shared = set.intersection(*(set(it.labels.items()) for it in present)) if present else ()
        return [NodeGroup(labels=dict(shared), elastic=True).with_amounts(size, count)]

    def _waiting_pods(self) -> list[Object]:
        """The node's pods at home that have no node in the remote yet."""
        placed = {
            origin.uid
            for pod in self._remote_pods.store
            if (pod.get("spec") or {}).get("nodeName")
            and is_owned_by_node(pod, self._identity)
            and (origin := origin_of(pod)) is not None
        }
        return [
            pod
            for pod in self._home_pods.store
            if pod["metadata"].get("uid") not in placed
            and not pod_status.is_terminal(pod)
            and not is_deleting(pod)
        ]

    # -- handlers ----------------------------------------------------------------------

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        # The sums notify of all that concerns them; labels do not.
        if old is None or new is None or _labels(old) != _labels(new):
            self._changed.set()

    def _home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        version = version_of(new or {})
        if version.isdecimal():
            self._newest = max(self._newest, int(version))
            # A placer that starts later sees a pod that does not run yet in its present version.
            if old is None or pod_status.phase(new or {}) == "Pending":
                self._newest_in_transit = max(self._newest_in_transit, int(version))
        self._changed.set()

    # -- work --------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_active:
            await self._until_read()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._publish()
            except KubeError as error:
                self._warn("cannot publish the remote's room, which PlacementPolicies need", error)
                await self._wait_for_change(RETRY)
            await asyncio.sleep(SPACING)

    async def _until_read(self) -> None:
        """Waits until home serves one of `READ_BY`; without the permission to watch
        that, asks once, and waits until the next question."""
        try:
            await wait_until_served(self._account, READ_BY)
            self._is_served = True
        except Forbidden:
            await self._ask()
            if not self._is_served:
                self._changed.clear()
                await asyncio.sleep(ASK_SPACING)
                await self._wait_for_change(ASK_AGAIN)

    async def _ask(self) -> None:
        try:
            for resource in READ_BY:
                if await discovery.serves_resource(self._account, resource):
                    self._is_served = True
        except KubeError as error:
            self._warn("cannot find out whether home serves PlacementPolicies", error)

    async def _wait_for_change(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            self._changed.set()

    def _warn(self, problem: str, error: KubeError) -> None:
        fields = name_fields("Node", self._identity.node, cluster="home")
        log.warning("home: %s: %s", problem, error, extra=fields)

    async def _publish(self) -> None:
        version, groups = self._newest, self.room()
        # A pod need not change the groups, which are rounded: the placer has to know that they
        # account for it.
        if groups == self._published and self._newest_in_transit <= self._published_version:
            return
        node = await self._account.get(NODES, self._identity.node)
        wanted = published_room.room_config_map(node, groups, version)
        name, namespace = name_of(wanted), published_room.NAMESPACE
        patch = {
            "metadata": {
                "labels": wanted["metadata"]["labels"],
                "ownerReferences": wanted["metadata"]["ownerReferences"],
            },
            "data": wanted["data"],
        }
        try:
            await self._account.patch(CONFIG_MAPS, name, patch, namespace=namespace)
        except NotFound:
            try:
                await self._account.create(CONFIG_MAPS, wanted, namespace=namespace)
            except AlreadyExists:
                await self._account.patch(CONFIG_MAPS, name, patch, namespace=namespace)
        self._published, self._published_version = groups, version


def _labels(node: Object) -> Object:
    labels: Object = node["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key in PLATFORM_LABELS}
