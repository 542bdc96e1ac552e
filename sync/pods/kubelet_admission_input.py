"""Provides the input of kubelet admission: the capacity of the remote's nodes and the virtual node.

`translators.pods.kubelet_admission` decides, and only about pods that never ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sync.cache.informer import Informer
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object, is_deleting, name_of
from translators.pods import (
    home_scheduler_filters,
    kubelet_admission,
    pod_status,
    restart_policy_never,
)


class KubeletAdmission:
    """Reads the cache of remote nodes, and home's API server if a new pod does not select the
    cached virtual node."""

    def __init__(
        self, home: KubeClient, remote_nodes: Informer, *, elastic: Mapping[str, int]
    ) -> None:
        self._home = home
        self._elastic = elastic
        self._remote_nodes = remote_nodes
        self._remote_capacity: Amounts | None = None
        self.cached_node: Callable[[], Object | None] = lambda: None
        """Returns the cached Node object of the virtual node; None if unknown."""

    def remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        before, after = (
            ((node or {}).get("status") or {}).get("allocatable") for node in (old, new)
        )
        if before != after:
            self._remote_capacity = None

    def remote_capacity(self) -> Amounts:
        """The sum of the allocatable of all remote nodes, and at least what the remote has once its
        autoscaler has added nodes (``--elastic``)."""
        if self._remote_capacity is None:
            total = kubelet_admission.total_allocatable(self._remote_nodes.store)
            if total:  # Without nodes, nothing is rejected.
                total |= {it: max(total.get(it, 0), least) for it, least in self._elastic.items()}
            self._remote_capacity = total
        return self._remote_capacity

    async def virtual_node_for(self, home: Object | None, remote: Object | None) -> Object | None:
        """The virtual node's Node object; None if unknown. If a new pod does not select the cached
        Node, reads it from home's API server: a label may just have been added."""
        node = self.cached_node()
        if home is None or remote is not None or node is None:
            return node
        if restart_policy_never.may_have_started(home) or is_deleting(home):
            return node
        if pod_status.is_terminal(home) or home_scheduler_filters.selects_node(home, node):
            return node
        return await self._home.get(NODES, name_of(node))
