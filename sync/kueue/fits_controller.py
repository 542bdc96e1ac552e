"""Decides the admission check `cluster-bridge.io/fits` of Kueue's Workloads.

- A Workload with reserved quota gets `Ready` and the virtual node whose remote holds all of its
  pods. Otherwise it stays `Pending` with each remote's reason, and is judged again at each change
  of room, nodes, flavors or promises.
- After `HOLD_SECONDS` without a fit, `Retry` releases its quota if another Workload waits for
  quota: Kueue queues it again behind that one. `requeueAfterSeconds` is not set: Kueue would keep
  the quota for that time.
- Workloads are decided one after the other, each with the promises to all before it, so that no
  room is promised twice. A response is in the cache before the next decision.
- A Workload whose check is Ready keeps it, whatever happens to the remote or its room: Kueue evicts
  it for no outage and no reconnect. The exception is a remote that has been lost for `LOST_SECONDS`
  before any pod of the Workload was bound to its node: if another remote can hold the Workload,
  `Retry` lets Kueue admit it there.

Every decision follows from the caches. Memory alone has the times since which Workloads wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from sync.cache.store import Key, key_of
from sync.kube.api_resources import KUEUE_ADMISSION_CHECKS, KUEUE_WORKLOADS
from sync.kube.client import KubeClient
from sync.kueue.home_view import HomeView, node_of
from sync.kueue.room_ledger import RoomLedger
from sync.runtime.controller import Controller
from translators.kueue import workload as kueue
from translators.kueue.remote_choice import Choice, choose
from translators.kueue.workload import CheckResult, PodSet
from translators.object_accessors import (
    Object,
    is_ready,
    metadata,
    name_of,
    namespaced_name,
    uid_of,
)

log = logging.getLogger(__name__)

#: Seconds for which a Workload that fits nowhere keeps its quota although others wait for quota,
#: and between two updates of its message.
HOLD_SECONDS = 30.0
#: Seconds for which a virtual node is not Ready before Workloads that have not started may move.
LOST_SECONDS = 60.0
#: Seconds in which changes of home's pods are collected before waiting Workloads are judged again.
COLLECT_SECONDS = 1.0

#: The key of all Workloads that wait.
_ALL = Key("", "")


class FitsController:
    """The controller and its informers. `run` is a task of the caller's task group."""

    def __init__(self, home: KubeClient, *, now: Callable[[], str]) -> None:
        self.view = HomeView(home)
        self._ledger = RoomLedger(self.view)
        self.controller = Controller("kueue", self._reconcile, workers=1, kind="Workload")
        self._home = home
        self._now = now
        # By UID of Workloads without a fit: the loop's times of the first decision, and of the last
        # message.
        self._waiting: dict[str, tuple[float, float]] = {}
        # By name: the loop's time since which a virtual node is not Ready.
        self._not_ready_since: dict[str, float] = {}
        self._handle_changes()

    async def run(self) -> None:
        """Watches and decides until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.view.informers:
                group.create_task(informer.run(), name=f"informer {informer.resource}")
            for informer in self.view.informers:
                await informer.synced.wait()
            group.create_task(self.controller.run(), name=self.controller.name)

    # -- changes ---------------------------------------------------------------------------

    def _handle_changes(self) -> None:
        view = self.view
        view.checks.on_change(self._check_changed)
        view.workloads.on_change(self._workload_changed)
        view.nodes.on_change(self._node_changed)
        view.pods.on_change(self._pod_changed)
        for informer in (view.flavors, view.rooms):
            informer.on_change(lambda *_: self.controller.queue.add(_ALL))

    def _check_changed(self, old: Object | None, new: Object | None) -> None:
        self.controller.queue.add(key_of(new or old or {}))
        self.controller.queue.add(_ALL)

    def _workload_changed(self, old: Object | None, new: Object | None) -> None:
        self.controller.queue.add(key_of(new or old or {}))
        if new is None:
            self._forget(uid_of(old or {}))
        had, has = (kueue.chosen_hostname(it) if it else "" for it in (old, new))
        is_done = new is not None and not kueue.holds_room(new)
        if (had and (had != has or is_done)) or (new is not None and kueue.waits_for_quota(new)):
            self.controller.queue.add(_ALL)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        if new is None or is_ready(new):
            self._not_ready_since.pop(name, None)
        else:
            self._not_ready_since.setdefault(name, asyncio.get_running_loop().time())
        for promised in self.view.promised_to(kueue.hostname_of(new or old or {})):
            self.controller.queue.add(key_of(promised))
        if old is None or new is None or _offer(old) != _offer(new):
            self.controller.queue.add(_ALL)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        node = node_of(new or old or {})
        if not node or self.view.nodes.store.get(Key("", node)) is None:
            return
        if new is None or (old is not None and old.get("status") != new.get("status")):
            self.controller.queue.add_after(_ALL, COLLECT_SECONDS)

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        if key == _ALL:
            self._queue_waiting()
        elif not key.namespace:
            await self._report_active(key)
        else:
            await self._reconcile_workload(key)

    def _queue_waiting(self) -> None:
        """Queues Workloads without a decision, the most important first, and comes back when the
        room accounts for pods that have just started."""
        checks = self.view.own_checks
        undecided = [
            it
            for it in self.view.workloads.store
            if kueue.check_entries(it, checks) and not kueue.chosen_hostname(it)
        ]
        for one in sorted(undecided, key=_rank):
            self.controller.queue.add(key_of(one))
        settles = self.view.seconds_until_settled()
        if undecided and settles is not None:
            self.controller.queue.add_after(_ALL, settles)
        self._ledger.recompute()

    async def _report_active(self, key: Key) -> None:
        check = self.view.checks.store.get(key)
        if check is None or not kueue.is_own_check(check):
            return
        status = kueue.active_status(check, self._now())
        if status is not None:
            patch = {"metadata": _precondition(check), "status": status}
            patched = await self._home.patch(
                KUEUE_ADMISSION_CHECKS, key.name, patch, subresource="status"
            )
            self.view.checks.observe_write(patched)

    async def _reconcile_workload(self, key: Key) -> None:
        one = self.view.workloads.store.get(key)
        checks = self.view.own_checks
        entries = kueue.check_entries(one, checks) if one is not None else []
        if one is None or not entries:
            return
        states = {it.get("state") for it in entries}
        if kueue.has_quota(one) and not kueue.is_over(one):
            if "Pending" in states:
                await self._decide(one, checks)
            elif states == {"Ready"}:
                await self._move_from_lost_remote(one, checks)
        else:
            self._waiting.pop(uid_of(one), None)

    async def _decide(self, one: Object, checks: frozenset[str]) -> None:
        choice = self._choose(one, self.view.pod_sets(one))
        if choice.node is not None:
            hostname = kueue.hostname_of(choice.node)
            await self._write(one, checks, CheckResult("Ready", choice.message, hostname))
            self._forget(uid_of(one))
        else:
            await self._refuse(one, checks, choice.message)

    async def _refuse(self, one: Object, checks: frozenset[str], message: str) -> None:
        uid, now = uid_of(one), asyncio.get_running_loop().time()
        since, reported = self._waiting.get(uid, (now, -math.inf))
        held = now - since >= HOLD_SECONDS
        if held and self.view.others_wait_for_quota(one):
            await self._write(one, checks, CheckResult("Retry", message))
            self._forget(uid)
            return
        if now - reported >= HOLD_SECONDS:
            await self._write(one, checks, CheckResult("Pending", message))
            reported = now
        self._waiting[uid] = since, reported
        if not held:
            self.controller.queue.add_after(key_of(one), since + HOLD_SECONDS - now)

    async def _move_from_lost_remote(self, one: Object, checks: frozenset[str]) -> None:
        hostname = kueue.chosen_hostname(one)
        node = self.view.node_with(hostname)
        if not hostname or (node is not None and is_ready(node)):
            return
        if any(node_of(pod) for pod in self.view.pods_of(one)):
            return
        wait = self._seconds_until_lost(node)
        if wait > 0:
            self.controller.queue.add_after(key_of(one), wait)
            return
        pod_sets = self.view.pod_sets(one)
        choice = self._choose(one, pod_sets)
        if choice.node is not None:
            message = f"{hostname} was lost before a pod started; {choice.message}"
            await self._write(one, checks, CheckResult("Retry", message))
            self._ledger.expect(uid_of(one), name_of(choice.node), pod_sets)

    def _seconds_until_lost(self, node: Object | None) -> float:
        """Seconds until the node counts as lost; a deleted node does at once."""
        if node is None:
            return 0.0
        now = asyncio.get_running_loop().time()
        return self._not_ready_since.get(name_of(node), now) + LOST_SECONDS - now

    def _choose(self, one: Object, pod_sets: tuple[PodSet, ...]) -> Choice:
        return choose(pod_sets, self._ledger.remotes(one))

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._ledger.forget(uid)

    # -- requests --------------------------------------------------------------------------

    async def _write(self, one: Object, checks: frozenset[str], result: CheckResult) -> None:
        status = kueue.checks_status(one, checks, result, self._now())
        if status is None:
            return
        log.info("Workload %s: %s: %s", namespaced_name(one), result.state, result.message)
        await self._patch(one, status)

    async def _patch(self, one: Object, status: Object) -> None:
        """Patches the status unless another writer has changed the Workload: then its event, or
        the retry of the key, leads to a new decision. Raises KubeError."""
        patched = await self._home.patch(
            KUEUE_WORKLOADS,
            name_of(one),
            {"metadata": _precondition(one), "status": status},
            namespace=metadata(one)["namespace"],
            subresource="status",
        )
        self.view.workloads.observe_write(patched)


def _precondition(obj: Object) -> Object:
    return {"uid": uid_of(obj), "resourceVersion": metadata(obj).get("resourceVersion")}


def _rank(one: Object) -> tuple[int, str]:
    return -kueue.priority_of(one), str(metadata(one).get("creationTimestamp", ""))


def _offer(node: Object) -> tuple[object, ...]:
    """The parts of a node that decide what fits."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    labels = metadata(node).get("labels")
    return (
        is_ready(node),
        labels,
        spec.get("taints"),
        spec.get("unschedulable"),
        status.get("allocatable"),
    )
