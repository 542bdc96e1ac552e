"""Keeps home's Node object as it should be, and with it its Lease (`bridge.node.lease`).

- The Node is made when it is not there, also after somebody deleted it, and is never taken from
  another owner: `NodeTaken` ends the join.
- Labels, annotations and taints follow `bridge.node.field_ownership`: those of people stay.
- The status is written when it differs, `SETTLE` seconds after the first of a burst of changes;
  unchanged it is never written. Where the remote's load changes all the time, what is free is
  written every `SPACING` seconds, and the largest pod's size every `LARGEST_SECONDS`.
- Its requests, and those of the Lease, wait for no pod's (`sync.kube.request_limiter.urgent`).
- The renewal of the Lease is all that an idle bridge writes.
- A request that the remote refuses with 401 has its nodes watched anew: the outage is noticed then,
  and else when the server ends the watch, which is within ten minutes.
- A remote that cannot be watched for `OUTAGE_SECONDS` makes the node not Ready, with the reason.
  Ready and not Ready are told as Events too, as by a kubelet; that nobody serves the node any more
  is told by home's node controller.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from bridge.base.errors import BridgeError
from bridge.node import conditions, field_ownership, node_object
from bridge.node.conditions import NodeCondition
from bridge.node.field_ownership import NodeMetadata
from bridge.node.lease import LeaseAnnotation, NodeLease
from bridge.node.node_object import NodeFacts
from sync.base import exceptions
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.capacity.aggregator import CapacityAggregator, RemoteCapacity
from sync.capacity.unschedulable_pods import UnschedulablePods
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, NotLeaderError
from sync.kube.request_limiter import urgent
from sync.kube.resources import NODES
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import name_fields, object_fields
from sync.runtime.workqueue import WorkQueue
from translators.objects import Object, metadata, uid_of

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Seconds after a change before it is written, so that a burst is one write.
SETTLE = 0.5
#: The least seconds between two writes of what is free, each of which all watchers of Nodes get.
SPACING = 1.0
#: The least seconds between two writes of the annotation with the largest pod's size.
LARGEST_SECONDS = 30.0
#: Seconds for which the remote's watches may fail before the node says so: a restart of an API
#: server takes less, and a node that flaps costs its pods their endpoints.
OUTAGE_SECONDS = 15.0
#: Attempts to write a list of taints that others change at the same time.
ATTEMPTS = 5
#: The queue's only key: there is one node.
_NODE = "node"


class NodeTaken(BridgeError):
    """A Node of that name is not this virtual node."""


class NodeController:
    """``offer`` is what the Node has; ``remote_nodes`` is the informer of the nodes behind it;
    ``watched`` are the witnesses of the remote's health; ``unplaced`` tells whether pods wait
    there, None where nobody asks."""

    def __init__(
        self,
        home: KubeClient,
        facts: NodeFacts,
        *,
        capacity: CapacityAggregator,
        remote_nodes: Informer,
        watched: list[Informer],
        unschedulable_pods: UnschedulablePods | None,
        events: EventRecorder,
        now: Callable[[], str],
        lease_annotation: LeaseAnnotation | None = None,
    ) -> None:
        self._home = home
        self._facts = facts
        self._offer = capacity
        self._remote_nodes = remote_nodes
        self._watched = watched
        self._unplaced = unschedulable_pods
        self._events = events
        self._now = now
        self._queue: WorkQueue[str] = WorkQueue()
        self._node_uid = ""
        self._told: NodeCondition | None = None
        # What the Node is to say that is free, and the loop's times of when that last changed.
        self._said: RemoteCapacity | None = None
        self._said_since = self._largest_since = -math.inf
        self.node = Informer(home, NODES, fields=f"metadata.name={facts.name}")
        self._lease = NodeLease(home, facts.name, node=self._node, annotation=lease_annotation)
        self.node.on_change(self._changed)
        self.node.on_state(self._home_state_changed)
        remote_nodes.on_change(self._remote_node_changed)
        capacity.on_change(self._offer_changed)
        for informer in watched:
            informer.on_state(self._state_changed)
        if unschedulable_pods is not None:
            unschedulable_pods.on_change(lambda: self._queue.add_after(_NODE, SETTLE))

    @property
    def name(self) -> str:
        """The Node's name."""
        return self._facts.name

    def current_node(self) -> Object | None:
        """The Node, as it was last seen."""
        return self._node()

    async def is_name_free(self) -> bool:
        """Whether there is no Node of the name. Raises NodeTaken where there is another's."""
        try:
            node = await self._home.get(NODES, self._facts.name)
        except NotFound:
            return True
        require_same_remote(node, self._facts)
        return False

    def retry_now(self) -> None:
        """What failed is tried now: something that it may have failed for has changed."""
        self._queue.retry_now()

    async def register(self) -> Object:
        """Makes the Node, or takes it up again after an earlier join. Raises NodeTaken."""
        with urgent():
            node = await self._obtain()
            await self._take(node)
        return node

    async def run(self) -> None:
        """Keeps the Node and the Lease until cancelled, then releases the Lease."""
        forget = self._remote_nodes.client.on_unauthorized(self._remote_nodes.rewatch)
        try:
            with urgent():
                await self._run()
        finally:
            forget()
            self._queue.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run(), name="watch-home-node")
            group.create_task(self._lease.run(), name="node-lease")
            group.create_task(self._keep_node(), name="node-status")

    async def release(self) -> None:
        """Gives the Lease back."""
        with urgent():
            await self._lease.release()

    # -- what changed ----------------------------------------------------------------------

    def _changed(self, _: Object | None, __: Object | None) -> None:
        self._queue.add_after(_NODE, SETTLE)

    def _remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        if node_object.relevant_fields(old) != node_object.relevant_fields(new):
            self._queue.add_after(_NODE, SETTLE)

    def _offer_changed(self) -> None:
        self._queue.add_after(_NODE, SETTLE)

    def _state_changed(self, _: Informer) -> None:
        # An outage that is not one yet is looked at again when it is: `_health`.
        self._queue.add_after(_NODE, SETTLE)

    def _home_state_changed(self, informer: Informer) -> None:
        if informer.error is None:
            self._queue.retry_now()

    # -- the node --------------------------------------------------------------------------

    async def _keep_node(self) -> None:
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
            except Exception as error:  # noqa: BLE001  # the Lease and the pods do not depend on it
                log.error(  # noqa: TRY400  # a traceback can quote the object
                    "the Node: a defect in the bridge; please report it: %s",
                    exceptions.traced_summary(error),
                )
                self._queue.retry(key)
            else:
                self._queue.forget(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self) -> None:
        node = self._node()
        if node is None:
            node = await self._obtain()
            changes.info(
                "node %s: made again after its deletion",
                self._facts.name,
                extra=object_fields("Node", node, cluster="home"),
            )
        if uid_of(node) == self._node_uid:
            await self._write(node)
        else:
            await self._take(node)

    def _node(self) -> Object | None:
        return self.node.store.get(Key("", self._facts.name))

    async def _take(self, node: Object) -> None:
        """Makes a Node that is new to us say what it should, and own the Lease. Raises NodeTaken.

        The Lease must not wait for its next renewal: with its owner gone it would be collected.
        """
        try:
            require_same_remote(node, self._facts)
        except NodeTaken:
            self._lease.forget()  # It goes with the name: it is not ours to give back.
            raise
        await self._write(node)
        self._lease.forget()
        await self._lease.renew()
        self._node_uid = uid_of(node)

    async def _obtain(self) -> Object:
        """Makes the Node, or takes the one that is there. Raises NodeTaken.

        It is made with its status, so that the scheduler never sees a node without capacity.
        """
        nodes = list(self._remote_nodes.store)
        offered, ready = self._offered(), self._health(nodes)
        body = node_object.build_node(self._facts.name, self._marks(nodes, offered.largest))
        body["status"] = self._status(body, nodes, offered, ready)
        try:
            node = await self._home.create(NODES, body)
        except AlreadyExists:
            node = await self._home.get(NODES, self._facts.name)
            require_same_remote(node, self._facts)
        else:
            self._tell(ready, offered)
        self.node.observe_write(node)
        return node

    def _status(
        self, node: Object, nodes: list[Object], offered: RemoteCapacity, ready: NodeCondition
    ) -> Object:
        """The status that the Node should have."""
        return node_object.desired_status(
            node, self._facts, offered=offered, nodes=nodes, ready=ready, now=self._now()
        )

    def _offered(self) -> RemoteCapacity:
        """What the Node should say that is free: what it says until its time has come, since
        every write brings us here again."""
        found, now = self._offer.current(), asyncio.get_running_loop().time()
        if self._said is None or found != self._said:
            wait = self._said_since + SPACING - now
            if self._said is not None and wait > 0:
                self._queue.add_after(_NODE, wait)
                return self._said
            self._said, self._said_since = found, now
        return self._said

    def _largest(self, node: Object, wanted: str) -> str:
        """What the Node should say of the largest pod: what it says until its time has come."""
        said = (metadata(node).get("annotations") or {}).get(node_object.ANNOTATION_LARGEST)
        if said == wanted:
            return wanted
        now = asyncio.get_running_loop().time()
        wait = self._largest_since + LARGEST_SECONDS - now
        if said is not None and wait > 0:
            self._queue.add_after(_NODE, wait)
            return str(said)
        self._largest_since = now
        return wanted

    def _marks(self, nodes: list[Object], largest: str) -> NodeMetadata:
        """The labels, annotations and taints that the Node should have, as far as they are ours."""
        crowded, again = self._unplaced.waiting() if self._unplaced is not None else (False, None)
        if again is not None:
            self._queue.add_after(_NODE, again)
        return node_object.desired_metadata(self._facts, nodes, largest=largest, crowded=crowded)

    async def _write(self, node: Object) -> None:
        nodes, offered = list(self._remote_nodes.store), self._offered()
        node = await self._mark(node, self._marks(nodes, self._largest(node, offered.largest)))
        ready = self._health(nodes)
        patch = node_object.status_patch(node, self._status(node, nodes, offered, ready))
        if not patch:
            return
        written = await self._home.patch(
            NODES,
            self._facts.name,
            {"metadata": {"uid": uid_of(node)}, "status": patch},
            subresource="status",
            kind="strategic",
        )
        self.node.observe_write(written)
        self._tell(ready, offered)
        before, after = node_object.is_ready(node), node_object.is_ready(written)
        if before is not None and before != after:
            # The words of a kubelet's own (pkg/kubelet/events), and what is the matter.
            reason = "NodeReady" if after else "NodeNotReady"
            self._events.normal(written, reason, f"Node {self._facts.name} is {_words(ready)}")

    async def _mark(self, node: Object, wanted: NodeMetadata) -> Object:
        """Gives the Node labels, annotations and taints. Raises Conflict where others change it
        all the time, or another Node has taken its name."""
        for attempt in range(1, ATTEMPTS + 1):
            patch = field_ownership.metadata_patch(node, wanted)
            if not patch:
                break
            # With its UID, a patch meets no other Node that has since taken the name.
            patch["metadata"]["uid"] = uid_of(node)
            try:
                node = await self._home.patch(NODES, self._facts.name, patch)
                self.node.observe_write(node)
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
                node = await self._home.get(NODES, self._facts.name)
                require_same_remote(node, self._facts)
        return node

    def _tell(self, ready: NodeCondition, offered: RemoteCapacity) -> None:
        """One line for people when the node's health changes: what is free always does."""
        level = logging.INFO if ready != self._told else logging.DEBUG
        self._told = ready
        what = node_object.describe_capacity(offered.capacity)
        name = self._facts.name
        fields = name_fields("Node", name, uid=self._node_uid, cluster="home")
        changes.log(level, "node %s: %s; %s", name, _words(ready), what, extra=fields)

    def _health(self, nodes: list[Object]) -> NodeCondition:
        now = asyncio.get_running_loop().time()
        for informer in self._watched:
            since = informer.failing_since
            # NB: the timer that brings us here and the clock that is read may differ by a bit.
            if informer.error is not None and since is not None:
                if now - since >= OUTAGE_SECONDS - SETTLE:
                    return conditions.unreachable_condition(informer.error)
                self._queue.add_after(_NODE, OUTAGE_SECONDS - (now - since))
        return conditions.ready_condition(nodes)


def require_same_remote(node: Object, facts: NodeFacts) -> None:
    """Raises NodeTaken unless the Node is this remote's virtual node."""
    remote = (metadata(node).get("labels") or {}).get(node_object.LABEL_REMOTE)
    if remote == facts.remote_id:
        return
    whose = "stands for another remote cluster" if remote else "is not a bridge's"
    raise NodeTaken(f"home: node {facts.name} exists and {whose}; choose another name with --name")


def _words(ready: NodeCondition) -> str:
    return f"{'Ready' if ready.status else 'NotReady'} ({ready.message})"
