"""The room of each remote that is not promised yet: the input of `translators.kueue.remote_choice`.

A ledger of a virtual node is computed when it is read, and kept until something that it depends on
changes: the room, the node, its pods, or Workloads that were promised to it. So a Workload that
waits costs little, however many run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from sync.kueue.home_view import HomeView, node_of
from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.fit import published_room
from translators.fit.fit import in_remote, reserve
from translators.kueue import workload
from translators.kueue.remote_choice import Remote
from translators.kueue.workload import PodSet
from translators.object_accessors import Object, name_of, uid_of

#: Seconds for which room is kept for a Workload that Kueue queues again.
EXPECTED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Expected:
    """A Workload that Kueue queues again because a node has room for it."""

    node: str
    pods: tuple[Object, ...]
    until: float
    """The loop's time at which the expectation ends."""


class RoomLedger:
    """The ledgers of all virtual nodes. Create it before the informers of ``view`` run."""

    def __init__(self, view: HomeView) -> None:
        self._view = view
        self._known: dict[str, Remote] = {}
        # By the UID of the Workload.
        self._expected: dict[str, _Expected] = {}
        view.nodes.on_change(self._node_changed)
        view.rooms.on_change(self._room_changed)
        view.pods.on_change(self._pod_changed)
        view.workloads.on_change(self._workload_changed)
        view.flavors.on_change(lambda *_: self.recompute())

    def remotes(self, one: Object) -> list[Remote]:
        """All remotes, as this Workload finds them: without the promises to itself."""
        now = asyncio.get_running_loop().time()
        for uid in [uid for uid, it in self._expected.items() if it.until <= now]:
            self.forget(uid)
        uid, own = uid_of(one), set[str]()
        if uid in self._expected:
            own.add(self._expected[uid].node)
        if hostname := workload.chosen_hostname(one):
            own.update(name_of(it) for it in [self._view.node_with(hostname)] if it)
        return [
            self._compute(node, uid) if name_of(node) in own else self._remote(node)
            for node in self._view.nodes.store
        ]

    def expect(self, uid: str, node: str, pod_sets: Iterable[PodSet]) -> None:
        """Keeps room on the node for a Workload that Kueue is about to queue again."""
        pods = tuple(pod for it in pod_sets for pod in [it.pod] * it.count)
        until = asyncio.get_running_loop().time() + EXPECTED_SECONDS
        self._expected[uid] = _Expected(node, pods, until)
        self._known.pop(node, None)

    def is_expected(self, uid: str) -> bool:
        """Whether room is kept for the Workload."""
        return uid in self._expected

    def forget(self, uid: str) -> None:
        """Ends `expect`."""
        if expected := self._expected.pop(uid, None):
            self._known.pop(expected.node, None)

    def recompute(self) -> None:
        """Computes all ledgers again: time alone lets rooms account for running pods."""
        self._known.clear()

    def _remote(self, node: Object) -> Remote:
        name = name_of(node)
        if name not in self._known:
            self._known[name] = self._compute(node, "")
        return self._known[name]

    def _compute(self, node: Object, besides: str) -> Remote:
        view, name = self._view, name_of(node)
        room = view.room_of(name)
        for_room = [
            pod
            for uid, it in self._expected.items()
            if it.node == name and uid != besides
            for pod in it.pods
        ]
        for_node = [*for_room]
        for other in view.promised_to(workload.hostname_of(node)):
            if uid_of(other) != besides and workload.holds_room(other):
                owed = view.promises(other, name, room.home_version if room else 0)
                for_room += owed.for_room
                for_node += owed.for_node
        requested = [it["usage"] for it in view.active_on(name)]
        requested += map(pod_requests.requests_of, for_node)
        groups = reserve(room.groups, [*map(in_remote, for_room)]) if room else None
        return Remote(node, groups, len(for_room), _total(requested))

    # -- changes ---------------------------------------------------------------------------

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        self._known.pop(name_of(new or old or {}), None)

    def _room_changed(self, old: Object | None, new: Object | None) -> None:
        self._known.pop(published_room.node_of(new or old or {}), None)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        for pod in (old, new):
            self._known.pop(node_of(pod or {}), None)

    def _workload_changed(self, old: Object | None, new: Object | None) -> None:
        for each in (old, new):
            hostname = workload.chosen_hostname(each) if each else ""
            if hostname and (node := self._view.node_with(hostname)):
                self._known.pop(name_of(node), None)


def _total(requests: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for amounts in requests:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total
