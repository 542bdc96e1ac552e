"""What the virtual node's Node object says: pure functions, no I/O.

Ours are the labels, annotations and taints of `wanted`, by the rules of `bridge.node.field_ownership`, and
everything in the status that a kubelet would write. Whatever others put on the Node (labels,
annotations, taints, cordon, conditions of other types) is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.node import conditions as health
from bridge.node import field_ownership, shared_labels
from bridge.node.conditions import NodeCondition
from bridge.node.field_ownership import NodeMetadata
from bridge.node.node_options import TAINT_UNSCHEDULABLE
from sync.capacity.aggregator import RemoteCapacity
from translators import merge_patch
from translators.capacity.node_capacity import NodeCapacity, resource_sort_key
from translators.identity import DOMAIN, LABEL_VIRTUAL
from translators.names import label_value
from translators.objects import Object, condition_of

#: Says that a Node is a virtual one of this bridge; the value is the remote's identity.
LABEL_REMOTE = f"{DOMAIN}/remote"
#: Where the remote's kubeconfig was at the last join, for `bridge leave` on the same machine.
ANNOTATION_KUBECONFIG = f"{DOMAIN}/kubeconfig"
ANNOTATION_CONTEXT = f"{DOMAIN}/context"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
#: Where a serving certificate of home's is kept on that machine.
ANNOTATION_CERT_DIR = f"{DOMAIN}/cert-dir"
#: The namespace of home in which the bridge is installed; "" for one that runs elsewhere.
ANNOTATION_INSTALLATION = f"{DOMAIN}/installation-namespace"
#: On the Lease: what the node's pods have used by then, for the bridge that comes next.
ANNOTATION_CPU_SECONDS = f"{DOMAIN}/cpu-seconds"

#: What the largest pod is that could run (`translators.capacity.node_capacity.largest`).
ANNOTATION_LARGEST = f"{DOMAIN}/largest-pod"
#: Says which of the remote's ResourceQuotas are used up; on the Node where there are any.
CONDITION_QUOTA = f"{DOMAIN}/QuotaExhausted"

#: What keeps pods that have a choice away while others wait for a node of the remote.
_CROWDED: Object = {"key": TAINT_UNSCHEDULABLE, "effect": "PreferNoSchedule"}
_NETWORK = NodeCondition(False, "RemoteNetwork", "pods use the remote cluster's network")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What does not change while the bridge runs."""

    name: str
    remote_id: str
    """The identity of the remote, from its kube-system namespace."""
    address: str
    port: int
    version: str
    """The bridge's version."""
    configured: NodeMetadata
    """What the person who joined asked for."""
    annotations: dict[str, str]
    """What the next join and `bridge leave` are to know."""


def desired_metadata(
    facts: NodeFacts, nodes: Sequence[Object], *, largest: str, crowded: bool = False
) -> NodeMetadata:
    """Labels, annotations and taints that are ours to set. ``nodes`` are the remote's: what they
    all are, the virtual node is. ``largest`` is for `ANNOTATION_LARGEST`. ``crowded``: pods wait
    there for a node."""
    own = {
        field_ownership.LABEL_HOSTNAME: label_value(facts.name),
        field_ownership.LABEL_TYPE: "virtual-kubelet",
        field_ownership.LABEL_NO_BALANCER: "true",
        LABEL_VIRTUAL: "true",
        LABEL_REMOTE: facts.remote_id,
    }
    return NodeMetadata(
        labels={**shared_labels.common_labels(nodes), **facts.configured.labels, **own},
        annotations={
            **facts.configured.annotations,
            **facts.annotations,
            ANNOTATION_LARGEST: largest,
        },
        taints=(*facts.configured.taints, _CROWDED) if crowded else facts.configured.taints,
    )


def build_node(name: str, ours: NodeMetadata) -> Object:
    """The Node to create."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": dict(ours.labels),
            "annotations": {**ours.annotations, **field_ownership.applied_annotation(ours)},
        },
        "spec": {"taints": list(ours.taints)} if ours.taints else {},
    }


def relevant_fields(node: Object | None) -> object:
    """What `wanted` and `status` read of a node of the remote, beside what it offers."""
    if node is None:
        return None
    info = (node.get("status") or {}).get("nodeInfo")
    return shared_labels.shareable_labels(node), health.relevant_conditions(node), info


def desired_status(
    current: Object,
    facts: NodeFacts,
    *,
    offered: RemoteCapacity,
    nodes: Sequence[Object],
    ready: NodeCondition,
    now: str,
) -> Object:
    """The status of the Node, to be compared with `diff.status_patch`.

    Conditions carry their times from ``current`` while they stay the same: the heartbeat that
    counts is the Lease's (KEP-589), and a status that only says the time anew is not written.
    """
    ours: Object = current.get("status") or {}
    # Each must have a status, or the node's health is taken as unknown.
    said = {"Ready": ready, "NetworkUnavailable": _NETWORK}
    said |= {kind: health.pressure_condition(kind, nodes) for kind in health.PRESSURES}
    had = any(it.get("type") == CONDITION_QUOTA for it in ours.get("conditions") or ())
    if offered.exhausted is not None or had:
        said[CONDITION_QUOTA] = _quota(offered.exhausted or ())
    capacity = offered.capacity
    return {
        # Resources that the remote no longer has are to go from the map.
        "capacity": {**dict.fromkeys(ours.get("capacity") or {}), **capacity.capacity},
        "allocatable": {**dict.fromkeys(ours.get("allocatable") or {}), **capacity.allocatable},
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": _node_info(facts, nodes),
        "conditions": _conditions(ours.get("conditions") or (), said, now),
    }


def status_patch(current: Object, desired: Object) -> Object:
    """The strategic merge patch from the Node's status to ``desired``; {} where they agree."""
    ours: Object = current.get("status") or {}
    patch: Object = merge_patch.merge_patch(
        ours, {k: v for k, v in desired.items() if k != "conditions"}
    )
    if "addresses" in patch:
        # Merged by type, an address of ours that changed its type would stay.
        patch["addresses"] = [{"$patch": "replace"}, *patch["addresses"]]
    conditions = merge_patch.status_patch(ours, {"conditions": desired["conditions"]})
    return {**patch, **conditions}


def _quota(exhausted: tuple[str, ...]) -> NodeCondition:
    """The condition that tells of quotas; without numbers, which change with every pod."""
    if exhausted:
        return NodeCondition(True, "RemoteQuotaReached", "; ".join(exhausted))
    return NodeCondition(False, "RemoteQuotaLeft", "no quota of the remote is used up")


def is_ready(node: Object) -> bool | None:
    """Whether the Node says that it is Ready; None where it says nothing."""
    said = condition_of(node, "Ready")
    return bool(said.get("status") == "True") if said else None


def describe_capacity(capacity: NodeCapacity) -> str:
    """One line for people: ``2 nodes: cpu 4, memory 16Gi, pods 220``."""
    offered = capacity.allocatable
    parts = [f"{name} {offered[name]}" for name in sorted(offered, key=resource_sort_key)]
    what = ", ".join(parts) or "nothing"
    return f"{capacity.nodes} node{'s' if capacity.nodes != 1 else ''}: {what}"


def _node_info(facts: NodeFacts, nodes: Sequence[Object]) -> Object:
    """What the remote's nodes have in common, with the version of their kubelets.

    ``kubeletVersion`` is theirs because clients and the scheduler read from it what a kubelet can
    do; the bridge passes it on. All fields must be there.
    """
    infos = [(node.get("status") or {}).get("nodeInfo") or {} for node in nodes]
    same = {
        field: _same(infos, field)
        for field in (
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        )
    }
    versions = (str(info.get("kubeletVersion", "")) for info in infos)
    same["kubeletVersion"] = same["kubeletVersion"] or min(versions, key=_age, default="")
    # The identities of machines are not the virtual node's, even where there is only one.
    same.update({"machineID": "", "systemUUID": facts.remote_id, "bootID": ""})
    same["osImage"] = f"cluster-bridge {facts.version}"
    return {key: value or "" for key, value in same.items()}


def _age(version: str) -> tuple[list[int], str]:
    """Orders ``v1.34.9`` before ``v1.34.10``."""
    return [int(number) for number in re.findall(r"\d+", version)], version


def _same(infos: list[Object], field: str) -> str | None:
    values = {info.get(field) for info in infos}
    return values.pop() if len(values) == 1 else None


def _conditions(
    current: Iterable[Object], wanted: Mapping[str, NodeCondition], now: str
) -> list[Object]:
    known = {condition.get("type"): condition for condition in current}
    conditions = []
    for kind, told in wanted.items():
        before = known.get(kind) or {}
        word = "True" if told.status else "False"
        said = {"type": kind, "status": word, "reason": told.reason, "message": told.message}
        same = all(before.get(key) == value for key, value in said.items())
        beat = before.get("lastHeartbeatTime") if same else None
        since = before.get("lastTransitionTime") if before.get("status") == word else None
        conditions.append(
            {**said, "lastHeartbeatTime": beat or now, "lastTransitionTime": since or now}
        )
    return conditions
