"""Computes the virtual node's Node object. Pure.

The bridge owns the labels, annotations and taints of `desired_metadata`, by the rules of
`bridge.node.node_metadata_merge`, and all status fields that a kubelet writes. Everything else
(cordon, conditions of other types, other metadata) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.node import node_metadata_merge
from bridge.node.conditions import PRESSURES, NodeCondition, pressure_condition, relevant_conditions
from bridge.node.node_metadata_merge import (
    LABEL_ARCH,
    LABEL_BETA_ARCH,
    LABEL_BETA_OS,
    LABEL_OS,
    NodeMetadata,
)
from bridge.node.node_option_parsing import TAINT_UNSCHEDULABLE
from sync.capacity.remote_capacity import RemoteCapacity
from translators import merge_patch
from translators.capacity import node_capacity
from translators.capacity.node_capacity import NodeCapacity, resource_sort_key
from translators.derived_names import label_value
from translators.object_accessors import Object, condition_of, metadata, name_of
from translators.ownership_labels import DOMAIN, LABEL_VIRTUAL
from translators.ownership_labels import LABEL_REMOTE as LABEL_REMOTE  # noqa: PLC0414  # re-exported
from translators.remote_shapes import NODE_INFO

#: The remote's kubeconfig at the last join, for `bridge leave` on the same machine.
ANNOTATION_KUBECONFIG = f"{DOMAIN}/kubeconfig"
ANNOTATION_CONTEXT = f"{DOMAIN}/context"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
#: Where the machine of that join keeps a serving certificate signed by home.
ANNOTATION_CERT_DIR = f"{DOMAIN}/cert-dir"
#: Home's namespace in which the bridge is installed; "" for a bridge that runs elsewhere.
ANNOTATION_INSTALLATION = f"{DOMAIN}/installation-namespace"
#: On the node's Lease: CPU time used by the node's pods, for the next bridge.
ANNOTATION_CPU_SECONDS = f"{DOMAIN}/cpu-seconds"

#: The requests of the largest pod that fits (`translators.capacity.node_capacity`).
ANNOTATION_LARGEST = f"{DOMAIN}/largest-pod"
#: Names the exhausted ResourceQuotas of the remote; on the Node if there are any.
CONDITION_QUOTA = f"{DOMAIN}/QuotaExhausted"

#: The beginning of a virtual node's ``osImage``; the bridge's version follows.
_OS_IMAGE = "cluster-bridge "
#: Keeps pods that can run elsewhere away while others wait for a node of the remote.
_UNSCHEDULABLE_TAINT: Object = {"key": TAINT_UNSCHEDULABLE, "effect": "PreferNoSchedule"}
_NETWORK = NodeCondition(False, "RemoteNetwork", "pods use the remote cluster's network")


def remote_id_of(node: Object) -> str:
    """The identity of the remote that the Node represents; "" if it is not a virtual node."""
    return str((metadata(node).get("labels") or {}).get(LABEL_REMOTE) or "")


def is_virtual_node(node: Object) -> bool:
    return bool(remote_id_of(node))


def bridge_version(node: Object) -> str:
    """The version of the bridge that last wrote the Node's status; "" if unknown."""
    image = str(((node.get("status") or {}).get("nodeInfo") or {}).get("osImage") or "")
    return image.removeprefix(_OS_IMAGE) if image.startswith(_OS_IMAGE) else ""


#: The scheme of the Node's provider id.
PROVIDER_SCHEME = "cluster-bridge"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts that are constant while the bridge runs."""

    name: str
    remote_id: str
    """The remote's identity, from the UID of its kube-system namespace."""
    address: str
    port: int
    version: str
    """The bridge's version."""
    configured: NodeMetadata
    """Labels, annotations and taints from the options."""
    annotations: dict[str, str]
    """Annotations for the next join and `bridge leave`."""
    nodes_are_unknown: bool = False
    """Whether the bridge may not read the remote's nodes."""
    remote_version: str = ""
    """The version of the remote's API server, in place of that of unknown kubelets."""


def desired_metadata(
    facts: NodeFacts, nodes: Iterable[Object], *, largest: str, pods_wait: bool = False
) -> NodeMetadata:
    """The labels, annotations and taints that the bridge sets. ``nodes`` are the remote's,
    ``largest`` is the value of `ANNOTATION_LARGEST`, ``pods_wait``: pods wait for a node of the
    remote."""
    own = {
        node_metadata_merge.LABEL_HOSTNAME: label_value(facts.name),
        node_metadata_merge.LABEL_TYPE: "virtual-kubelet",
        node_metadata_merge.LABEL_NO_BALANCER: "true",
        LABEL_VIRTUAL: "true",
        LABEL_REMOTE: facts.remote_id,
    }
    return NodeMetadata(
        labels={**common_labels(nodes), **facts.configured.labels, **own},
        annotations={
            **facts.configured.annotations,
            **facts.annotations,
            ANNOTATION_LARGEST: largest,
        },
        taints=(*facts.configured.taints, *([_UNSCHEDULABLE_TAINT] if pods_wait else ())),
    )


def provider_id(facts: NodeFacts) -> str:
    """The Node's ``spec.providerID``. Cloud controllers delete a Node that is not Ready and whose
    machine does not exist, such as one without an id, and with it all its pods. An id of another
    scheme than the cloud's is an error to them, or names an unmanaged Node."""
    return f"{PROVIDER_SCHEME}://{facts.remote_id}/{facts.name}"


def build_node(facts: NodeFacts, own: NodeMetadata) -> Object:
    spec: Object = {"providerID": provider_id(facts)}
    if own.taints:
        spec["taints"] = list(own.taints)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": facts.name,
            "labels": dict(own.labels),
            "annotations": {**own.annotations, **node_metadata_merge.applied_annotation(own)},
        },
        "spec": spec,
    }


def relevant_fields(node: Object) -> Hashable:
    """The input of `desired_metadata` and `desired_status` from a node of the remote, except
    capacity."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return (
        frozenset(shareable_labels(node)),
        relevant_conditions(node),
        tuple(str(info.get(field, "")) for field in NODE_INFO),
    )


def desired_status(
    current: Object,
    facts: NodeFacts,
    *,
    offered: RemoteCapacity,
    nodes: Sequence[tuple[Object, int]],
    ready: NodeCondition,
    now: str,
) -> Object:
    """The status of the Node, for `status_patch`. ``nodes`` are the remote's, each of which stands
    for a number of equal ones (`bridge.node.node_controller`).

    Unchanged conditions keep their times from ``current``: the Lease is the heartbeat (KEP-589), so
    a status that differs only in time is not written.
    """
    current_status: Object = current.get("status") or {}
    # The node controller treats a condition without a status as unknown.
    desired = {"Ready": ready, "NetworkUnavailable": _NETWORK}
    known = None if facts.nodes_are_unknown else nodes
    desired |= {kind: pressure_condition(kind, known) for kind in PRESSURES}
    had_quota = any(
        it.get("type") == CONDITION_QUOTA for it in current_status.get("conditions") or ()
    )
    if offered.exhausted is not None or had_quota:
        desired[CONDITION_QUOTA] = _quota(offered.exhausted or ())
    capacity = offered.capacity
    return {
        # None removes resources that the remote no longer has.
        "capacity": {**dict.fromkeys(current_status.get("capacity") or {}), **capacity.capacity},
        "allocatable": {
            **dict.fromkeys(current_status.get("allocatable") or {}),
            **capacity.allocatable,
        },
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": _node_info(facts, [node for node, _ in nodes]),
        "conditions": _conditions(current_status.get("conditions") or (), desired, now),
    }


def status_patch(current: Object, desired: Object) -> Object:
    """The strategic merge patch from the Node's status to ``desired``; {} if they agree."""
    current_status: Object = current.get("status") or {}
    patch: Object = merge_patch.merge_patch(
        current_status, {k: v for k, v in desired.items() if k != "conditions"}
    )
    if "addresses" in patch:
        # The list is merged by type: without this, an address with a changed type would stay.
        patch["addresses"] = [{"$patch": "replace"}, *patch["addresses"]]
    conditions = merge_patch.status_patch(current_status, {"conditions": desired["conditions"]})
    return {**patch, **conditions}


def _quota(exhausted: tuple[str, ...]) -> NodeCondition:
    """The condition about quotas, without numbers, which change with every pod."""
    if exhausted:
        return NodeCondition(True, "RemoteQuotaReached", "; ".join(exhausted))
    return NodeCondition(False, "RemoteQuotaLeft", "no quota of the remote is used up")


def is_ready(node: Object) -> bool | None:
    """The status of the Ready condition; None if there is none."""
    ready = condition_of(node, "Ready")
    return bool(ready.get("status") == "True") if ready else None


def describe_capacity(capacity: NodeCapacity) -> str:
    """One line for messages: ``2 nodes: cpu 4, memory 16Gi, pods 220``."""
    offered = capacity.allocatable
    parts = [f"{name} {offered[name]}" for name in sorted(offered, key=resource_sort_key)]
    resources = ", ".join(parts) or "nothing"
    if capacity.nodes is None:
        return f"unknown nodes: {resources}"
    return f"{capacity.nodes} node{'s' if capacity.nodes != 1 else ''}: {resources}"


def _node_info(facts: NodeFacts, nodes: Sequence[Object]) -> Object:
    """The node information that all remote nodes share, and the oldest version of their kubelets.

    Clients and the scheduler infer a kubelet's features from ``kubeletVersion``, so it is the
    remote's. All fields are required.
    """
    infos = [(node.get("status") or {}).get("nodeInfo") or {} for node in nodes]
    same = {field: _same(infos, field) for field in NODE_INFO}
    versions = (str(info.get("kubeletVersion", "")) for info in infos)
    oldest = min(versions, key=_age, default=facts.remote_version)
    same["kubeletVersion"] = same["kubeletVersion"] or oldest
    # The virtual node has no machine identity, even if the remote has only one node.
    same.update({"machineID": "", "systemUUID": facts.remote_id, "bootID": ""})
    same["osImage"] = f"{_OS_IMAGE}{facts.version}"
    return {key: value or "" for key, value in same.items()}


def _age(version: str) -> tuple[list[int], str]:
    """Sort key that orders ``v1.34.9`` before ``v1.34.10``."""
    # Python parses a number of at most 4300 digits.
    return [int(number) for number in re.findall(r"\d{1,9}", version)], version


def _same(infos: list[Object], field: str) -> str | None:
    values = {info.get(field) for info in infos}
    return values.pop() if len(values) == 1 else None


def _conditions(
    current: Iterable[Object], desired: Mapping[str, NodeCondition], now: str
) -> list[Object]:
    known = {condition.get("type"): condition for condition in current}
    conditions = []
    for kind, condition in desired.items():
        previous = known.get(kind) or {}
        status = "True" if condition.status else "False"
        new = {
            "type": kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
        }
        same = all(previous.get(key) == value for key, value in new.items())
        heartbeat = previous.get("lastHeartbeatTime") if same else None
        since = previous.get("lastTransitionTime") if previous.get("status") == status else None
        conditions.append(
            {**new, "lastHeartbeatTime": heartbeat or now, "lastTransitionTime": since or now}
        )
    return conditions


class RemoteNodes:
    """The nodes of the remote in groups of those that are equal to the virtual node.

    A remote has thousands of nodes and few kinds of them. Labels, conditions and ``nodeInfo`` of
    the virtual node are computed from one node of each group and its size, so that a write of the
    Node costs no time in proportion to the nodes. ``equality`` returns what the virtual node
    depends on of a node: a value that is equal for nodes of one group.
    """

    def __init__(
        self, equality: Callable[[Object], Hashable], nodes: Iterable[Object] = ()
    ) -> None:
        self._equality = equality
        self._group_of: dict[str, Hashable] = {}
        # Of each group: one of its nodes as it was seen last, and how many it has.
        self._groups: dict[Hashable, tuple[Object, int]] = {}
        for node in nodes:
            self.changed(node)

    def __len__(self) -> int:
        return len(self._group_of)

    def changed(self, node: Object) -> bool:
        """Records a node that was added or changed. Returns whether its group is another one."""
        group, known = self._equality(node), self._group_of.get(name_of(node))
        if group == known:
            return False
        self.removed(node)
        self._group_of[name_of(node)] = group
        self._groups[group] = (node, self._size(group) + 1)
        return True

    def removed(self, node: Object) -> bool:
        """Records the deletion of a node. Returns whether it was known."""
        group = self._group_of.pop(name_of(node), None)
        if group is None:
            return False
        if (left := self._size(group) - 1) > 0:
            self._groups[group] = (self._groups[group][0], left)
        else:
            del self._groups[group]
        return True

    def groups(self) -> list[tuple[Object, int]]:
        """One node of each group, and the size of the group."""
        return list(self._groups.values())

    def __iter__(self) -> Iterator[Object]:
        """One node of each group."""
        return (node for node, _ in self.groups())

    def _size(self, group: Hashable) -> int:
        return self._groups[group][1] if group in self._groups else 0


#: Well-known labels (k8s.io/api/core/v1 well_known_labels.go) and labels of accelerators, except
#: those that vendors' DaemonSets select, such as nvidia.com/gpu.present or gpu.deploy.*.
SHAREABLE = frozenset(
    {
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        # The example of Kubernetes' own documentation, "Schedule GPUs".
        "accelerator",
        # NVIDIA GPU feature discovery.
        "nvidia.com/gpu.compute.major",
        "nvidia.com/gpu.compute.minor",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.family",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.product",
        "nvidia.com/mig.strategy",
        # AMD's node labeller.
        "amd.com/gpu.cu-count",
        "amd.com/gpu.device-id",
        "amd.com/gpu.family",
        "amd.com/gpu.product-name",
        "amd.com/gpu.vram",
        # Intel's rules for node feature discovery.
        "gpu.intel.com/device.count",
        "gpu.intel.com/family",
        "gpu.intel.com/product",
        # Managed clusters, and Karpenter on AWS.
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-accelerator-count",
        "cloud.google.com/gke-gpu-partition-size",
        "cloud.google.com/gke-tpu-accelerator",
        "cloud.google.com/gke-tpu-topology",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-accelerator-count",
        "karpenter.k8s.aws/instance-accelerator-name",
        "karpenter.k8s.aws/instance-gpu-count",
        "karpenter.k8s.aws/instance-gpu-memory",
        "karpenter.k8s.aws/instance-gpu-name",
        "kubernetes.azure.com/accelerator",
    }
)


def common_labels(nodes: Iterable[Object]) -> dict[str, str]:
    """The labels that all usable nodes have with the same value, for the virtual node.

    Usable nodes are those that count for the capacity (`node_capacity.is_counted`); if none counts,
    all nodes, so that an outage changes no label. Architecture and operating system are those that
    the kubelets report. If they differ, the virtual node has no such label: a pod that selects one
    is not scheduled here unless ``--labels`` sets it.

    Only labels about hardware and location are shared (`SHAREABLE`). Others can select workloads of
    the remote's components, whose counterparts in the home cluster would then run here.
    """
    all_nodes = list(nodes)
    usable = [node for node in all_nodes if node_capacity.is_counted(node)] or all_nodes
    shared: set[tuple[str, str]] = (
        set.intersection(*map(shareable_labels, usable)) if usable else set()
    )
    return dict(sorted(shared))


def shareable_labels(node: Object) -> set[tuple[str, str]]:
    """The labels of one node that the virtual node may have."""
    labels = metadata(node).get("labels") or {}
    info = (node.get("status") or {}).get("nodeInfo") or {}
    shareable = {key: labels[key] for key in labels.keys() & SHAREABLE}
    shareable[LABEL_ARCH] = shareable[LABEL_BETA_ARCH] = info.get("architecture")
    shareable[LABEL_OS] = shareable[LABEL_BETA_OS] = info.get("operatingSystem")
    return {(key, str(value)) for key, value in shareable.items() if value}
