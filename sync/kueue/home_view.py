"""Caches of home: virtual nodes, the free room of their remotes, Kueue's Workloads and all pods.

A pod of a Workload counts as
promised room until the published room accounts for it (`sync.placement.room_publisher`): that names
a version of home not older than the pod's binding, or the pod has been running for
`SETTLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sync.base.resource_version import version_of
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.api_resources import (
    CONFIG_MAPS,
    KUEUE_ADMISSION_CHECKS,
    KUEUE_RESOURCE_FLAVORS,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
)
from sync.kube.client import KubeClient
from translators.capacity import pod_requests
from translators.fit import published_room
from translators.fit.node_groups import RoomError
from translators.fit.published_room import PublishedRoom
from translators.kueue import workload
from translators.kueue.promises import Promises, has_ended, promises
from translators.kueue.workload import PodSet
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.ownership_labels import LABEL_VIRTUAL

#: Seconds: a bridge publishes its room at most every five, and only if it has changed.
SETTLE_SECONDS = 10.0

_NODE, _WORKLOAD, _HOSTNAME = "node", "workload", "hostname"


@dataclass(frozen=True, slots=True)
class _Bound:
    """A pod that is bound to a node."""

    uid: str
    version: int
    """The resource version in which the pod was first seen bound; 0 if unknown."""
    running_since: float = math.inf
    """The loop's time at which it was first seen running."""


def slim_pod(pod: Object) -> Object:
    """Reduces a pod of home to its identity, node, phase, requests and Workload."""
    meta = metadata(pod)
    identifiers = ("name", "namespace", "uid", "resourceVersion")
    kept: Object = {key: meta[key] for key in identifiers if key in meta}
    node = (pod.get("spec") or {}).get("nodeName")
    if started_by := workload.workload_of(pod):
        kept["annotations"] = {workload.ANNOTATION_WORKLOAD: started_by}
        kept["labels"] = {workload.LABEL_POD_SET: workload.pod_set_of(pod)}
    if not node:
        return {"metadata": kept}
    return {
        "metadata": kept,
        "spec": {"nodeName": node},
        "status": {"phase": (pod.get("status") or {}).get("phase")},
        "usage": pod_requests.requests_of(pod),
    }


def node_of(pod: Object) -> str:
    """The node that a slimmed pod is bound to; "" if it is not bound."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_running(pod: Object) -> bool:
    """Whether a slimmed pod is on a real node of its remote."""
    return (pod.get("status") or {}).get("phase") == "Running"


class HomeView:
    """The informers of home, which the caller runs, and what their caches say."""

    def __init__(self, home: KubeClient) -> None:
        self.checks = Informer(home, KUEUE_ADMISSION_CHECKS)
        self.flavors = Informer(home, KUEUE_RESOURCE_FLAVORS)
        self.workloads = Informer(home, KUEUE_WORKLOADS, indexers={_HOSTNAME: _hostnames})
        self.nodes = Informer(home, NODES, labels=LABEL_VIRTUAL)
        self.rooms = Informer(
            home,
            CONFIG_MAPS,
            namespace=published_room.NAMESPACE,
            labels=published_room.LABEL_ROOM,
        )
        self.pods = Informer(
            home, PODS, slim=slim_pod, indexers={_NODE: _nodes, _WORKLOAD: _workload_keys}
        )
        # The first states in which bound pods of Workloads were seen.
        self._bound: dict[Key, _Bound] = {}
        self.pods.on_change(self._note_bound)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """All informers."""
        return (self.checks, self.flavors, self.workloads, self.nodes, self.rooms, self.pods)

    @property
    def own_checks(self) -> frozenset[str]:
        """The names of the AdmissionChecks that the bridge decides."""
        return frozenset(name_of(it) for it in self.checks.store if workload.is_own_check(it))

    def pod_sets(self, of: Object) -> tuple[PodSet, ...]:
        """The pod sets of a Workload, with its flavors' labels and tolerations."""
        return workload.pod_sets(of, {name_of(it): it for it in self.flavors.store})

    def pods_of(self, of: Object) -> list[Object]:
        """The pods that Kueue has started for the Workload, slimmed."""
        return self.pods.store.by_index(_WORKLOAD, key_of(of))

    def node_with(self, hostname: str) -> Object | None:
        """The virtual node with this hostname label."""
        found = (it for it in self.nodes.store if workload.hostname_of(it) == hostname)
        return next(found, None)

    def others_wait_for_quota(self, one: Object) -> bool:
        """Whether any other Workload waits for quota, in whichever queue."""
        uid = uid_of(one)
        return any(
            workload.waits_for_quota(it) and uid_of(it) != uid for it in self.workloads.store
        )

    def promised_to(self, hostname: str) -> list[Object]:
        """The Workloads for which a check chose the node with this hostname label."""
        return self.workloads.store.by_index(_HOSTNAME, hostname)

    def room_of(self, node: str) -> PublishedRoom | None:
        """The published room; None if there is none, if it cannot be read, or if it is that of an
        earlier Node of the name."""
        key = Key(published_room.NAMESPACE, published_room.config_map_name(node))
        found = self.rooms.store.get(key)
        try:
            room = published_room.read_room(found) if found is not None else None
        except RoomError:
            return None
        known = self.nodes.store.get(Key("", node))
        return room if room and known and room.is_of(known) else None

    def promises(self, of: Object, node: str, home_version: int) -> Promises:
        """The pods of a Workload for which a ledger of the node does not account yet;
        ``home_version`` is that of the published room."""
        bound = [it for it in self.pods_of(of) if node_of(it) == node]
        settled = [it for it in bound if self._is_settled(it, home_version)]
        return promises(self.pod_sets(of), bound, settled)

    def seconds_until_settled(self) -> float | None:
        """Seconds until the room accounts for another running pod at the latest; None if it does
        for all."""
        ends = [it.running_since + SETTLE_SECONDS - _now() for it in self._bound.values()]
        return min((it for it in ends if 0 < it < math.inf), default=None)

    def active_on(self, node: str) -> list[Object]:
        """Home's pods that use resources of the node, slimmed."""
        return [it for it in self.pods.store.by_index(_NODE, node) if not has_ended(it)]

    def _is_settled(self, pod: Object, home_version: int) -> bool:
        bound = self._bound.get(key_of(pod))
        return bound is not None and (
            0 < bound.version <= home_version or _now() - bound.running_since >= SETTLE_SECONDS
        )

    def _note_bound(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._bound.pop(key_of(old or {}), None)
            return
        key, version = key_of(new), version_of(new)
        if not node_of(new) or not workload.workload_of(new):
            self._bound.pop(key, None)
            return
        known = self._bound.get(key)
        if known is None or known.uid != uid_of(new):
            known = _Bound(uid_of(new), int(version) if version.isdecimal() else 0)
        if is_running(new) and known.running_since == math.inf:
            known = replace(known, running_since=_now())
        self._bound[key] = known


def _hostnames(of: Object) -> Iterator[str]:
    if hostname := workload.chosen_hostname(of):
        yield hostname


def _nodes(pod: Object) -> Iterator[str]:
    if node := node_of(pod):
        yield node


def _workload_keys(pod: Object) -> Iterator[Key]:
    if name := workload.workload_of(pod):
        yield Key(namespace_of(pod), name)


def _now() -> float:
    return asyncio.get_running_loop().time()
