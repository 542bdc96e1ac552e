"""Reconciles home's Node object and its Lease (`bridge.node.node_lease`).

- The Node is created if it does not exist, also after its deletion. A Node of another owner is
  never changed: `NodeTaken` ends the join.
- Labels, annotations and taints follow `bridge.node.node_metadata_merge`.
- The status is written only if it differs, `SETTLE` seconds after the first of a burst of
  changes. Under constant load the remote's free capacity is written at most every `SPACING`
  seconds, and the largest pod's size every `LARGEST_SECONDS`.
- Requests for the Node and its Lease have priority over those for pods
  (`sync.kube.request_limiter.urgent`). While nothing changes, the Lease's renewal is the only
  write.
- A 401 of the remote, or a request without a response in time, restarts the watch of its nodes:
  the server would end that watch up to ten minutes later. A slow server answers the new watch, and
  the node stays Ready. The claim in the remote is renewed every few seconds
  (`bridge.remote_claim`), so a remote that hangs is noticed without requests for pods.
- The node becomes NotReady, with the reason, when the remote cannot be watched for
  `OUTAGE_SECONDS`. Changes of Ready are also Events, as by a kubelet.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from bridge.base.command_error import BridgeError
from bridge.node import conditions, node_metadata_merge, node_object
from bridge.node.conditions import NodeCondition
from bridge.node.node_lease import LeaseAnnotation, NodeLease
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts, RemoteNodes
from sync.base import exception_summary
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.capacity.remote_capacity import CapacityAggregator, RemoteCapacity
from sync.capacity.unschedulable_pods import UnschedulablePods
from sync.kube.api_errors import AlreadyExists, Conflict, KubeError, NotLeaderError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.request_limiter import urgent
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields, object_fields
from sync.runtime.workqueue import WorkQueue
from translators.object_accessors import Object, metadata, uid_of

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Seconds from a change to its write, so that a burst is one write.
SETTLE = 0.5
#: The least seconds between two writes of the free capacity, which reach all watchers of Nodes.
SPACING = 1.0
#: The least seconds between two writes of the largest pod's size.
LARGEST_SECONDS = 30.0
#: Seconds for which the watches of the remote may fail before the node is NotReady: longer than the
#: restart of an API server, since a flapping node costs its pods their endpoints.
OUTAGE_SECONDS = 15.0
#: Attempts to write taints that others change at the same time.
ATTEMPTS = 5
#: The queue's only key.
_NODE = "node"


class NodeTaken(BridgeError):
    """Raised if a Node of that name is not this virtual node."""


class NodeController:
    """The controller of one Node.

    ``account`` sets labels, annotations and taints, which a node may not all set itself; None is
    ``home``. ``capacity`` aggregates its capacity from ``remote_nodes``, the informer of the
    remote's nodes; failures of the ``watched`` informers make it NotReady; ``unschedulable_pods``:
    whether pods wait for a node of the remote (None: not observed).
    """

    def __init__(
        self,
        home: KubeClient,
        facts: NodeFacts,
        *,
        account: KubeClient | None = None,
        capacity: CapacityAggregator,
        remote_nodes: Informer,
        watched: list[Informer],
        unschedulable_pods: UnschedulablePods | None,
        events: EventRecorder,
        now: Callable[[], str],
        lease_annotation: LeaseAnnotation | None = None,
    ) -> None:
        self._home = home
        self._account = account or home
        self._facts = facts
        self.name = facts.name
        self._capacity = capacity
        self._remote_nodes = remote_nodes
        self._watched = watched
        self._unschedulable_pods = unschedulable_pods
        self._events = events
        self._now = now
        self._queue: WorkQueue[str] = WorkQueue()
        self._node_uid = ""
        self._logged_condition: NodeCondition | None = None
        # The capacity last published, and the loop's times of the last changes.
        self._published: RemoteCapacity | None = None
        self._published_at = self._largest_published_at = -math.inf
        self._nodes = RemoteNodes(node_object.relevant_fields, remote_nodes.store)
        self.node = Informer(home, NODES, fields=f"metadata.name={facts.name}")
        self._lease = NodeLease(
            home, facts.name, node=self.current_node, annotation=lease_annotation
        )
        self.node.on_change(self._changed)
        self.node.on_state(self._home_state_changed)
        remote_nodes.on_change(self._remote_node_changed)
        capacity.on_change(self._changed)
        for informer in watched:
            # `_ready_condition` schedules the check at the end of OUTAGE_SECONDS.
            informer.on_state(self._changed)
        if unschedulable_pods is not None:
            unschedulable_pods.on_change(self._changed)

    def current_node(self) -> Object | None:
        """The Node as last seen."""
        return self.node.store.get(Key("", self.name))

    async def find_node(self) -> Object | None:
        """The Node of an earlier join or of another replica; None if there is none. Raises
        NodeTaken and KubeError."""
        node = await self._home.find(NODES, self.name)
        if node is not None:
            require_same_remote(node, self._facts)
        return node

    def set_annotations(self, annotations: Mapping[str, str]) -> None:
        """Replaces the annotations of `NodeFacts`, and writes them if they differ."""
        self._facts = replace(self._facts, annotations=dict(annotations))
        self._changed()

    def retry_now(self) -> None:
        """Retries failed writes now, because their cause may be gone."""
        self._queue.retry_now()

    async def register(self) -> None:
        """Creates the Node, or takes it over from an earlier join. Raises NodeTaken and
        KubeError."""
        with urgent():
            await self._take_over(await self._create_or_get())

    async def run(self) -> None:
        """Reconciles the Node and renews the Lease until cancelled."""
        client = self._remote_nodes.client
        forget = [client.on_unauthorized(self._rewatch), client.on_unanswered(self._rewatch)]
        try:
            with urgent():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.node.run(), name="watch-home-node")
                    group.create_task(self._lease.run(), name="node-lease")
                    group.create_task(self._reconcile_changes(), name="node-status")
        finally:
            for remove in forget:
                remove()
            self._queue.close()

    def _rewatch(self) -> None:
        """Requests the watch of the remote's nodes again; where these are unknown, the others."""
        for informer in self._watched if self._facts.nodes_are_unknown else [self._remote_nodes]:
            informer.rewatch()

    async def release(self) -> None:
        with urgent():
            await self._lease.release()

    # -- from changes to the queue ---------------------------------------------------------

    def _changed(self, *_: object) -> None:
        self._queue.add_after(_NODE, SETTLE)

    def _remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        if self._nodes.changed(new) if new is not None else self._nodes.removed(old or {}):
            self._changed()

    def _home_state_changed(self, informer: Informer) -> None:
        if informer.error is None:
            self._queue.retry_now()

    # -- the node --------------------------------------------------------------------------

    async def _reconcile_changes(self) -> None:
        await self.node.synced.wait()
        while True:
            key = await self._queue.get()
            try:
                await self._reconcile()
            except KubeError as error:
                level = logging.DEBUG if isinstance(error, NotLeaderError) else logging.WARNING
                log.log(level, "the Node could not be written: %s", error)
                self._queue.retry(key)
            except NodeTaken:
                raise
            except Exception as error:  # noqa: BLE001  # the Lease and the pods must go on
                log.error(  # noqa: TRY400  # a traceback can quote the object
                    "the Node: a defect in the bridge; please report it: %s",
                    exception_summary.traced_summary(error),
                )
                self._queue.retry(key)
            else:
                self._queue.forget(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self) -> None:
        node = self.current_node()
        if node is None:
            node = await self._create_or_get()
            changes.info(
                "node %s: re-created after its deletion",
                self.name,
                extra=object_fields("Node", node, cluster="home"),
            )
        if uid_of(node) == self._node_uid:
            await self._write(node)
        else:
            await self._take_over(node)

    async def _take_over(self, node: Object) -> None:
        """Writes a Node that is new to this bridge, and makes it the owner of the Lease. Raises
        NodeTaken.

        The Lease cannot wait for its next renewal: without its owner it would be garbage collected.
        """
        try:
            require_same_remote(node, self._facts)
        except NodeTaken:
            self._lease.forget()  # The Lease belongs to the Node that has the name now.
            raise
        await self._write(node)
        self._lease.forget()
        await self._lease.renew()
        self._node_uid = uid_of(node)

    async def _create_or_get(self) -> Object:
        """Creates the Node, or gets the existing one. Raises NodeTaken.

        It is created with its status, so that the scheduler never sees a node without capacity.
        """
        offered, ready = self._capacity_to_publish(), self._ready_condition()
        wanted = self._desired_metadata(offered.largest)
        body = node_object.build_node(
            self._facts, node_metadata_merge.permitted_at_registration(wanted)
        )
        body["status"] = self._desired_status(body, offered, ready)
        try:
            node = await self._home.create(NODES, body)
        except AlreadyExists:
            node = await self._home.get(NODES, self.name)
            require_same_remote(node, self._facts)
        else:
            self._log_condition(ready, offered)
        self.node.observe_write(node)
        return node

    def _desired_status(
        self, node: Object, offered: RemoteCapacity, ready: NodeCondition
    ) -> Object:
        return node_object.desired_status(
            node,
            self._facts,
            offered=offered,
            nodes=self._nodes.groups(),
            ready=ready,
            now=self._now(),
        )

    def _capacity_to_publish(self) -> RemoteCapacity:
        """The capacity to write: the published one until `SPACING` seconds are over."""
        current, now = self._capacity.current(), asyncio.get_running_loop().time()
        if self._published is None or current != self._published:
            wait = self._published_at + SPACING - now
            if self._published is not None and wait > 0:
                self._queue.add_after(_NODE, wait)
                return self._published
            self._published, self._published_at = current, now
        return self._published

    def _largest_to_publish(self, node: Object, wanted: str) -> str:
        """The largest pod's size to write: the written one until `LARGEST_SECONDS` are over."""
        published = (metadata(node).get("annotations") or {}).get(node_object.ANNOTATION_LARGEST)
        if published == wanted:
            return wanted
        now = asyncio.get_running_loop().time()
        wait = self._largest_published_at + LARGEST_SECONDS - now
        if published is not None and wait > 0:
            self._queue.add_after(_NODE, wait)
            return str(published)
        self._largest_published_at = now
        return wanted

    def _desired_metadata(self, largest: str) -> NodeMetadata:
        pods = self._unschedulable_pods
        pods_wait, recheck = pods.waiting() if pods is not None else (False, None)
        if recheck is not None:
            self._queue.add_after(_NODE, recheck)
        return node_object.desired_metadata(
            self._facts, self._nodes, largest=largest, pods_wait=pods_wait
        )

    async def _write(self, node: Object) -> None:
        offered = self._capacity_to_publish()
        node = await self._write_metadata(
            node, self._desired_metadata(self._largest_to_publish(node, offered.largest))
        )
        ready = self._ready_condition()
        patch = node_object.status_patch(node, self._desired_status(node, offered, ready))
        if not patch:
            return
        written = await self._home.patch(
            NODES,
            self.name,
            {"metadata": {"uid": uid_of(node)}, "status": patch},
            subresource="status",
            kind="strategic",
        )
        self.node.observe_write(written)
        self._log_condition(ready, offered)
        before, after = node_object.is_ready(node), node_object.is_ready(written)
        if before is not None and before != after:
            # A kubelet's reasons (pkg/kubelet/events).
            reason = "NodeReady" if after else "NodeNotReady"
            self._events.normal(
                written, reason, f"Node {self.name} is {_describe_condition(ready)}"
            )

    async def _write_metadata(self, node: Object, wanted: NodeMetadata) -> Object:
        """Writes labels, annotations and taints, and the provider id of a Node that has none.
        Raises Conflict after `ATTEMPTS`, or where another Node took the name."""
        for attempt in range(1, ATTEMPTS + 1):
            patch = node_metadata_merge.metadata_patch(node, wanted)
            if not (node.get("spec") or {}).get("providerID"):
                patch.setdefault("spec", {})["providerID"] = node_object.provider_id(self._facts)
            if not patch:
                break
            # The UID is a precondition: another Node may have the name by now.
            patch.setdefault("metadata", {})["uid"] = uid_of(node)
            try:
                node = await self._account.patch(NODES, self.name, patch)
                self.node.observe_write(node)
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
                node = await self._home.get(NODES, self.name)
                require_same_remote(node, self._facts)
        return node

    def _log_condition(self, ready: NodeCondition, offered: RemoteCapacity) -> None:
        """Logs a change of the Ready condition at INFO, and other writes at DEBUG."""
        level = logging.INFO if ready != self._logged_condition else logging.DEBUG
        self._logged_condition = ready
        capacity = node_object.describe_capacity(offered.capacity)
        fields = name_fields("Node", self.name, uid=self._node_uid, cluster="home")
        text = _describe_condition(ready)
        changes.log(level, "node %s: %s; %s", self.name, text, capacity, extra=fields)

    def _ready_condition(self) -> NodeCondition:
        now = asyncio.get_running_loop().time()
        for informer in self._watched:
            since = informer.failing_since
            # SETTLE is tolerance: the timer and the clock may differ slightly.
            if informer.error is not None and since is not None:
                if now - since >= OUTAGE_SECONDS - SETTLE:
                    return conditions.unreachable_condition(informer.error)
                self._queue.add_after(_NODE, OUTAGE_SECONDS - (now - since))
        known = None if self._facts.nodes_are_unknown else self._nodes.groups()
        return conditions.ready_condition(known, is_elastic=self._capacity.is_elastic)


def require_same_remote(node: Object, facts: NodeFacts) -> None:
    """Raises NodeTaken unless the Node is this remote's virtual node."""
    remote = (metadata(node).get("labels") or {}).get(node_object.LABEL_REMOTE)
    if remote == facts.remote_id:
        return
    whose = "stands for another remote cluster" if remote else "is not a bridge's"
    raise NodeTaken(f"home: node {facts.name} exists and {whose}; choose another name with --name")


def _describe_condition(ready: NodeCondition) -> str:
    return f"{'Ready' if ready.status else 'NotReady'} ({ready.message})"
