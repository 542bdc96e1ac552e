"""Decides when a home pod is deleted because its remote node cannot confirm the remote pod's
deletion.

A remote pod that is being deleted is re-created in place after its deletion. On a node that is not
Ready the pod stays Terminating until the kubelet is back, or the Node is deleted. In a single
cluster the deletionTimestamp lets the pod's controller replace it at once. So the bridge deletes
the home pod too, `WAIT` seconds after it saw the deletion. The home pod stays Terminating as long
as the remote pod exists, so that a StatefulSet never runs two pods of one name. `WAIT` is measured
by the clock of this process: the remote's may be wrong.

Where the bridge may not read the remote's nodes, no home pod is deleted: the node of a pod that
terminates slowly looks like a lost one.
"""

from __future__ import annotations

from typing import NamedTuple

from sync.base import clock
from sync.cache.store import Key, Store
from translators.object_accessors import Object, is_deleting, is_ready, metadata, name_of, uid_of
from translators.ownership_labels import origin_of

#: Seconds for a node to come back and to confirm the deletion, independent of the pod's grace
#: period: DefaultTerminationGracePeriodSeconds in k8s.io/api/core/v1.
WAIT = 30.0


class _Deletion(NamedTuple):
    """A deletion of a remote pod, as first seen by this process."""

    key: Key
    """The home pod's."""
    node: str
    since: float
    """Monotonic clock."""


class UnreachableNodeDeletions:
    """``nodes`` is the cache of remote nodes; None if they are unknown."""

    def __init__(self, nodes: Store | None) -> None:
        self._nodes = nodes
        # By the UID of each remote pod that is being deleted on a node.
        self._deleting: dict[str, _Deletion] = {}

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._deleting.pop(uid_of(old or {}), None)
        elif is_deleting(new) and (node := (new.get("spec") or {}).get("nodeName")):
            origin = origin_of(new)
            if origin is not None and uid_of(new) not in self._deleting:
                key = Key(origin.namespace, origin.name)
                self._deleting[uid_of(new)] = _Deletion(key, node, clock.now())

    def affected(self, old: Object | None, new: Object | None) -> list[Key]:
        """The home pods whose remote pods are being deleted on a node whose readiness changes."""
        if is_ready(old or {}) == is_ready(new or {}):
            return []
        name = name_of(new or old or {})
        return [it.key for it in self._deleting.values() if it.node == name]

    def seconds_left(self, remote: Object) -> float | None:
        """Seconds until the home pod is to be deleted, 0 for now; None while the remote's kubelet
        is expected to confirm the deletion."""
        known = self._deleting.get(uid_of(remote))
        if known is None or self._nodes is None:
            return None
        node = self._nodes.get(Key("", known.node))
        if is_ready(node or {}):
            return None
        wait = WAIT
        if node is None:
            # Deleted, or no longer selected; such a node may still be running.
            wait = max(wait, float(metadata(remote).get("deletionGracePeriodSeconds") or 0))
        return max(0.0, known.since + wait - clock.now())
