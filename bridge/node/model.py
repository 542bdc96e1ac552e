"""What the virtual node's Node object says: pure functions, no I/O.

Ours are the labels under our domain and a few that kubelets set, the taint that was asked for
when the node was made, and everything in the status that a kubelet would write. Whatever others
put on the Node (labels, annotations, taints, cordon, conditions of other types) is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sync.offer import Offered
from translators import diff
from translators.capacity import Capacity, by_importance, counts
from translators.naming import DOMAIN, LABEL_VIRTUAL, label_value
from translators.types import Object, metadata

#: Says that a Node is a virtual one of this bridge; the value is the remote's identity.
LABEL_REMOTE = f"{DOMAIN}/remote"
#: Where the remote's kubeconfig was at the last join, for `bridge leave` on the same machine.
ANNOTATION_KUBECONFIG = f"{DOMAIN}/kubeconfig"
ANNOTATION_CONTEXT = f"{DOMAIN}/context"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
#: On the Lease: what the node's pods have used by then, for the bridge that comes next.
ANNOTATION_CPU_SECONDS = f"{DOMAIN}/cpu-seconds"

#: What the largest pod is that could run (`translators.capacity.largest`).
ANNOTATION_LARGEST = f"{DOMAIN}/largest-pod"
#: Says which of the remote's ResourceQuotas are used up; on the Node where there are any.
CONDITION_QUOTA = f"{DOMAIN}/QuotaExhausted"

#: Conditions that a kubelet reports and that must each have a status, or the node's health is
#: taken as unknown; (type, reason, message).
_QUIET = (
    ("MemoryPressure", "RemoteSchedules", "the remote's own nodes report memory pressure"),
    ("DiskPressure", "RemoteSchedules", "the remote's own nodes report disk pressure"),
    ("PIDPressure", "RemoteSchedules", "the remote's own nodes report process pressure"),
    ("NetworkUnavailable", "RemoteNetwork", "pods use the remote cluster's network"),
)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether pods on the node can run and be managed, and why not, for a person."""

    ready: bool
    reason: str
    message: str


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
    taint: Object | None
    annotations: dict[str, str]


def new_node(facts: NodeFacts, nodes: Iterable[Object], *, largest: str) -> Object:
    """The Node to create. ``nodes`` are the remote's: what they all are, the virtual node is."""
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": facts.name,
            "labels": labels(facts, nodes),
            "annotations": {**facts.annotations, ANNOTATION_LARGEST: largest},
        },
        "spec": {"taints": [facts.taint]} if facts.taint else {},
    }
    return node


def labels(facts: NodeFacts, nodes: Iterable[Object]) -> dict[str, str]:
    """Labels that are ours to set."""
    infos = [(node.get("status") or {}).get("nodeInfo") or {} for node in nodes]
    return {
        "kubernetes.io/hostname": label_value(facts.name),
        "kubernetes.io/arch": _same(infos, "architecture") or "amd64",
        "kubernetes.io/os": _same(infos, "operatingSystem") or "linux",
        "type": "virtual-kubelet",
        # Cloud controllers and load balancers must not look for a machine behind the node.
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        LABEL_VIRTUAL: "true",
        LABEL_REMOTE: facts.remote_id,
    }


def seen_of(node: Object | None) -> object:
    """What `labels` and `status` read of a node of the remote, beside what it offers."""
    return node and (counts(node), (node.get("status") or {}).get("nodeInfo"))


def metadata_patch(
    current: Object, facts: NodeFacts, nodes: Iterable[Object], *, largest: str
) -> Object:
    """The merge patch for labels and annotations of ours that are not as they should be."""
    desired = {
        "labels": labels(facts, nodes),
        "annotations": {**facts.annotations, ANNOTATION_LARGEST: largest},
    }
    patch: Object = diff.merge_patch(metadata(current), desired)
    return {"metadata": patch} if patch else {}


def status(
    current: Object,
    facts: NodeFacts,
    *,
    offered: Offered,
    nodes: Iterable[Object],
    health: Health,
    now: str,
) -> Object:
    """The status of the Node, to be compared with `diff.status_patch`.

    Conditions carry their times from ``current`` while they stay the same: the heartbeat that
    counts is the Lease's (KEP-589), and a status that only says the time anew is not written.
    """
    ours: Object = current.get("status") or {}
    wanted = [("Ready", health.ready, health.reason, health.message)]
    wanted += [(kind, False, reason, message) for kind, reason, message in _QUIET]
    had = any(it.get("type") == CONDITION_QUOTA for it in ours.get("conditions") or ())
    if offered.exhausted is not None or had:
        wanted.append(_quota(offered.exhausted or ()))
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
        "conditions": _conditions(ours.get("conditions") or (), wanted, now),
    }


def status_patch(current: Object, desired: Object) -> Object:
    """The strategic merge patch from the Node's status to ``desired``; {} where they agree."""
    ours: Object = current.get("status") or {}
    patch: Object = diff.merge_patch(ours, {k: v for k, v in desired.items() if k != "conditions"})
    if "addresses" in patch:
        # Merged by type, an address of ours that changed its type would stay.
        patch["addresses"] = [{"$patch": "replace"}, *patch["addresses"]]
    conditions = diff.status_patch(ours, {"conditions": desired["conditions"]})
    return {**patch, **conditions}


def _quota(exhausted: tuple[str, ...]) -> tuple[str, bool, str, str]:
    """The condition that tells of quotas; without numbers, which change with every pod."""
    if exhausted:
        return CONDITION_QUOTA, True, "RemoteQuotaReached", "; ".join(exhausted)
    return CONDITION_QUOTA, False, "RemoteQuotaLeft", "no quota of the remote is used up"


def describe(capacity: Capacity) -> str:
    """One line for people: ``2 nodes: cpu 4, memory 16Gi, pods 220``."""
    offered = capacity.allocatable
    parts = [f"{name} {offered[name]}" for name in sorted(offered, key=by_importance)]
    what = ", ".join(parts) or "nothing"
    return f"{capacity.nodes} node{'s' if capacity.nodes != 1 else ''}: {what}"


def remote_health(nodes: Iterable[Object]) -> Health:
    """The health of a remote that answers. ``nodes``: those that --node-selector selects."""
    known = list(nodes)
    usable = sum(1 for node in known if counts(node))
    if usable:
        return Health(True, "RemoteReady", f"the remote cluster has {usable} usable node(s)")
    if known:
        why = "no node of the remote cluster is Ready, schedulable and untainted"
    else:
        why = "the remote cluster has no nodes, or none that --node-selector selects"
    return Health(False, "NoUsableNodes", why)


def _node_info(facts: NodeFacts, nodes: Iterable[Object]) -> Object:
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
    same["architecture"] = same["architecture"] or "amd64"
    same["operatingSystem"] = same["operatingSystem"] or "linux"
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
    current: Iterable[Object], wanted: list[tuple[str, bool, str, str]], now: str
) -> list[Object]:
    known = {condition.get("type"): condition for condition in current}
    conditions = []
    for kind, is_true, reason, message in wanted:
        before = known.get(kind) or {}
        word = "True" if is_true else "False"
        said = {"type": kind, "status": word, "reason": reason, "message": message}
        same = all(before.get(key) == value for key, value in said.items())
        beat = before.get("lastHeartbeatTime") if same else None
        since = before.get("lastTransitionTime") if before.get("status") == word else None
        conditions.append(
            {**said, "lastHeartbeatTime": beat or now, "lastTransitionTime": since or now}
        )
    return conditions
