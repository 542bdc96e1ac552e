"""The state by which the placer decides: home's nodes and pods, policies, and published room.

- `pod_changed` and the other handlers keep sums, so that the cost of an event depends on its change
  only.
- A pod that was placed and is not bound yet, or that was bound later than the remote's published
  room accounts for, is *in transit*: it needs room that the caches still show as free.
- ``on_change`` handlers are called when a pod that waits could fit now.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from sync.base.resource_version import version_of
from sync.base.safe_callbacks import Callbacks
from translators.capacity import pod_requests
from translators.capacity.node_capacity import free_resources
from translators.capacity.pod_requests import Amounts
from translators.fit import published_room
from translators.fit.fit import in_remote, reserve
from translators.fit.node_groups import (
    NodeGroup,
    RoomError,
    is_schedulable,
    merge_equal,
    node_group,
)
from translators.fit.published_room import PublishedRoom
from translators.label_selectors import selects
from translators.object_accessors import Object, is_ready, metadata, name_of, uid_of
from translators.ownership_labels import LABEL_PLACEMENT, LABEL_VIRTUAL
from translators.placement import placed_pod
from translators.placement.decision import HOME, Remote, Room
from translators.placement.placement_policy import (
    PlacementPolicy,
    PolicyError,
    parse_policy,
)

log = logging.getLogger(__name__)

#: Seconds after which a bound pod is in transit no longer, whatever its remote's room accounts for.
#: A bridge that works publishes within seconds that it does; the time is for bridges that stopped.
TRANSIT_SECONDS = 300.0
#: Seconds for which the room of a Ready virtual node is awaited: its bridge publishes it within
#: seconds once it is needed, unless it lacks the permission.
ROOM_SECONDS = 30.0


def slim_pod(pod: Object) -> Object:
    """Reduces a pod that no policy is for to what it uses, for the informer's store."""
    meta, spec, status = metadata(pod), pod.get("spec") or {}, pod.get("status") or {}
    if LABEL_PLACEMENT in (meta.get("labels") or {}):
        return pod
    kept = {it: meta[it] for it in ("name", "namespace", "uid", "resourceVersion") if it in meta}
    return {
        "metadata": kept,
        "spec": {"nodeName": spec.get("nodeName", "")},
        "status": {"phase": status.get("phase", "")},
        "usage": pod_requests.requests_of(pod),
    }


@dataclass(slots=True)
class _Transit:
    """A pod on its way to a candidate."""

    pod: Object
    bound_version: int = 0
    """The first version with a node name that was seen; 0 before."""
    bound_at: float = 0.0


class HomeState:
    """The state by events. ``room`` and ``counts`` are the input of a decision.

    ``ready_for``: for how many seconds the room of a node could have been published when the node
    is first seen; by default for none.
    """

    def __init__(self, *, ready_for: Callable[[Object], float] | None = None) -> None:
        self._ready_for = ready_for
        self._handlers: Callbacks[[]] = Callbacks("room of placement")
        self._nodes: dict[str, Object] = {}
        self._pods: dict[str, tuple[str, Amounts]] = {}
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._records: dict[str, tuple[str, str]] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._transit: defaultdict[str, dict[str, _Transit]] = defaultdict(dict)
        self._published: dict[str, PublishedRoom] = {}
        # By virtual node without published room, until when (monotonic) the room is awaited.
        self._awaited_until: dict[str, float] = {}
        # The room that is left for further pods, by candidate; computed again after a change.
        self._remaining: dict[str, tuple[NodeGroup, ...]] = {}
        self.policies: dict[str, PlacementPolicy] = {}
        self.invalid_policies: dict[str, str] = {}
        """By name, what is wrong with it."""

    def on_change(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when there may be room that was not there before."""
        self._handlers.add(handler)

    # -- handlers ----------------------------------------------------------------------

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        self._await_room(name, new)
        if old is not None and new is not None and _shape(old) == _shape(new):
            return  # A heartbeat.
        if LABEL_VIRTUAL not in (metadata(new or old or {}).get("labels") or {}):
            self._remaining.pop(HOME, None)
        self._handlers()

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        uid = uid_of(new or old or {})
        ended = new is None or (new.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        before = self._pods.pop(uid, None)
        if before is not None:
            self._used[before[0]].subtract(before[1])
        node = str(((new or {}).get("spec") or {}).get("nodeName") or "")
        if new is not None and not ended and node:
            usage = new["usage"] if "usage" in new else pod_requests.requests_of(new)
            self._pods[uid] = (node, usage)
            self._used[node].update(usage)
        if self._pods.get(uid) != before:
            # Virtual nodes too: their room changes with the ConfigMap, their allocatable is here.
            self._remaining.pop(HOME, None)
        self._follow_placed(uid, None if ended else new, node)
        if before is not None and (ended or new is None):
            self._handlers()

    def room_changed(self, old: Object | None, new: Object | None) -> None:
        """Handles a ConfigMap with the room of a remote."""
        node = published_room.node_of(new or old or {})
        self._published.pop(node, None)
        self._remaining.pop(node, None)
        if new is not None:
            try:
                self._published[node] = published_room.read_room(new)
            except RoomError as error:
                log.warning("home: ConfigMap %s has no valid room: %s", name_of(new), error)
        self._handlers()

    def policy_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and old.get("spec") == new.get("spec"):
            return  # Its status, for example.
        name = name_of(new or old or {})
        self.policies.pop(name, None)
        self.invalid_policies.pop(name, None)
        if new is not None:
            try:
                self.policies[name] = parse_policy(new)
            except PolicyError as error:
                self.invalid_policies[name] = str(error)
                log.warning("home: PlacementPolicy %s is ignored: %s", name, error)
        self._handlers()

    def _await_room(self, name: str, node: Object | None) -> None:
        if node is None or not is_ready(node) or not published_room.publishes(node):
            self._awaited_until.pop(name, None)
        elif name not in self._awaited_until:
            ready_for = self._ready_for(node) if self._ready_for is not None else 0.0
            self._awaited_until[name] = monotonic() + ROOM_SECONDS - ready_for

    def _follow_placed(self, uid: str, pod: Object | None, node: str) -> None:
        before = self._records.pop(uid, None)
        after = placed_pod.read_record(pod) if pod is not None else None
        if after is not None and pod is not None and not placed_pod.has_gate(pod):
            self._records[uid] = after
        else:
            after = None
        if before != after:
            if before is not None:
                self._uncount(*before)
                if self._transit[before[1]].pop(uid, None) is not None:
                    self._remaining.pop(before[1], None)
            if after is not None and pod is not None:
                self._counts[after[0]][after[1]] += 1
                if not (node and (pod.get("status") or {}).get("phase") == "Running"):
                    # One that runs when it is first seen has been in its node's room for long.
                    self._transit[after[1]][uid] = _Transit(pod)
                    self._reserve(after[1], pod)
            if before is not None or (after is not None and self._has_shares(after[0])):
                self._handlers()
        transit = self._transit[after[1]].get(uid) if after is not None else None
        if transit is not None and node and not transit.bound_version and pod is not None:
            version = version_of(pod)
            transit.bound_version = int(version) if version.isdecimal() else 1
            transit.bound_at = monotonic()
            if after is not None and after[1] == HOME:
                self._transit[HOME].pop(uid)  # It counts as a pod of its node from now on.
                self._remaining.pop(HOME, None)
        for record in (before, after):
            if record is not None and not self._transit[record[1]]:
                del self._transit[record[1]]

    def _uncount(self, policy: str, candidate: str) -> None:
        # Nothing stays of a policy that only the annotations of pods name.
        self._counts[policy][candidate] -= 1
        if self._counts[policy][candidate] <= 0:
            del self._counts[policy][candidate]
        if not self._counts[policy]:
            del self._counts[policy]

    def _has_shares(self, policy: str) -> bool:
        """Whether one more pod of the policy permits others elsewhere."""
        found = self.policies.get(policy)
        return found is not None and any(it.max_share is not None for it in found.tiers)

    # -- the input of a decision -----------------------------------------------------------

    def home_nodes(self) -> list[Object]:
        """Home's own nodes."""
        return [it for it in self._nodes.values() if is_schedulable(it)]

    def virtual_nodes(self) -> list[Object]:
        """All virtual nodes."""
        return [
            it for it in self._nodes.values() if LABEL_VIRTUAL in (metadata(it).get("labels") or {})
        ]

    def counts(self, policy: str) -> Mapping[str, int]:
        """The policy's pods that are placed and have not ended, by candidate."""
        return {**self._counts.get(policy, {})}

    def counts_by_policy(self) -> Mapping[str, Mapping[str, int]]:
        """`counts` of every policy that the records of pods name, which need not exist."""
        return self._counts

    def tiers_without_candidate(self, policy: PlacementPolicy) -> list[str]:
        """The policy's tiers that select neither home nor an existing virtual node."""
        labels = [metadata(it).get("labels") or {} for it in self.virtual_nodes()]
        return [
            tier.name
            for tier in policy.tiers
            if not tier.home and not any(selects(tier.remotes, it) for it in labels)
        ]

    def room(self) -> Room:
        """The room now, less what pods in transit need."""
        remotes = []
        for node in self.virtual_nodes():
            name = name_of(node)
            allocatable = pod_requests.parse_resource_list(
                (node.get("status") or {}).get("allocatable")
            )
            unbound: Counter[str] = Counter()
            for it in self._transit[name].values():
                if not it.bound_version:
                    unbound.update(pod_requests.requests_of(it.pod))
            free = free_resources(allocatable, self._used.get(name, {}), unbound)
            groups = self._groups(name) if self._has_room(node) else None
            awaited = self._awaited_until.get(name, 0.0) > monotonic()
            remotes.append(Remote(node, free, groups, is_awaited=awaited))
        return Room(remotes, self._groups(HOME))

    def seconds_until_not_awaited(self) -> float | None:
        """Seconds until the room of a next virtual node is awaited no longer; None if none is."""
        now = monotonic()
        ends = [
            end - now
            for name, end in self._awaited_until.items()
            if end > now and not self._has_room(self._nodes[name])
        ]
        return min(ends, default=None)

    def _has_room(self, node: Object) -> bool:
        published = self._published.get(name_of(node))
        return published is not None and published.is_of(node)

    def _groups(self, candidate: str) -> tuple[NodeGroup, ...]:
        if candidate in self._remaining:
            return self._remaining[candidate]
        if candidate == HOME:
            groups = self._home_groups()
        else:
            self._settle_transit(candidate)
            groups = self._published[candidate].groups
        pods = [it.pod for it in self._transit[candidate].values()]
        forms = pods if candidate == HOME else [in_remote(it) for it in pods]
        self._remaining[candidate] = reserve(groups, forms)
        return self._remaining[candidate]

    def _home_groups(self) -> tuple[NodeGroup, ...]:
        return merge_equal(
            node_group(
                node,
                free_resources(
                    pod_requests.parse_resource_list((node.get("status") or {}).get("allocatable")),
                    self._used.get(name_of(node), {}),
                ),
                label_keys=metadata(node).get("labels") or {},
            )
            for node in self.home_nodes()
        )

    def _settle_transit(self, candidate: str) -> None:
        """Forgets the pods that the published room accounts for."""
        version = self._published[candidate].home_version
        now = monotonic()
        arrived = [
            uid
            for uid, it in self._transit[candidate].items()
            if it.bound_version
            and (it.bound_version <= version or now - it.bound_at >= TRANSIT_SECONDS)
        ]
        for uid in arrived:
            del self._transit[candidate][uid]

    def _reserve(self, candidate: str, pod: Object) -> None:
        """Subtracts one more pod in transit."""
        if candidate in self._remaining:
            form = pod if candidate == HOME else in_remote(pod)
            self._remaining[candidate] = reserve(self._remaining[candidate], [form])


def _shape(node: Object) -> Iterable[object]:
    """The fields of a Node that decisions depend on, without heartbeats."""
    status = node.get("status") or {}
    conditions = [
        [it.get(key) for key in ("type", "status", "reason")]
        for it in status.get("conditions") or ()
    ]
    return metadata(node).get("labels"), node.get("spec"), status.get("allocatable"), conditions
