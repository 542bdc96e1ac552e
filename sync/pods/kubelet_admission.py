"""What a new pod is compared with before it is created: the remote's nodes, and the virtual node.

As a kubelet's admission; `translators.pods.kubelet_admission` decides. Only pods that never ran are compared.
"""

from __future__ import annotations

from collections.abc import Callable

from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.resources import NODES
from translators.capacity.pod_requests import Amounts
from translators.objects import Object, is_deleting, name_of
from translators.pods import kubelet_admission, run_once, scheduling_predicates, status


class KubeletAdmission:
    """Reads the cache of the remote's nodes, and home's API server in doubt."""

    def __init__(self, home: KubeClient, remote_nodes: Informer) -> None:
        self._home = home
        self._remote_nodes = remote_nodes
        self._offered: Amounts | None = None
        self.cached_node: Callable[[], Object | None] = lambda: None
        """The virtual node at home, as it was last seen."""

    def remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        """A node of the remote was added, updated or deleted."""
        sizes = [((node or {}).get("status") or {}).get("allocatable") for node in (old, new)]
        if sizes[0] != sizes[1]:
            self._offered = None

    def remote_capacity(self) -> Amounts:
        """What all nodes have together: summed again after one of them changed its size."""
        if self._offered is None:
            self._offered = kubelet_admission.total_allocatable(self._remote_nodes.store)
        return self._offered

    async def virtual_node_for(self, home: Object | None, remote: Object | None) -> Object | None:
        """The virtual node for this pod; None where it is not known. Where a new pod does not
        select it as it was last seen, home's API server is asked: a label may have come just
        before the pod. Raises what the API server raises."""
        node = self.cached_node()
        if (
            home is None
            or remote is not None
            or node is None
            or scheduling_predicates.selects_node(home, node)
        ):
            return node
        if run_once.may_have_started(home) or is_deleting(home) or status.is_terminal(home):
            return node
        return await self._home.get(NODES, name_of(node))
