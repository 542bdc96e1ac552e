"""Checks which DaemonSets of home have a pod on the virtual node, and whether that pod runs."""

from __future__ import annotations

from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, info, ok, summarize_names, warning
from bridge.clusters.connection import cluster_uid
from bridge.explain.cluster_lookup import pod_of_manifest
from bridge.node import join_record, node_object
from bridge.node.field_ownership import NodeMetadata
from bridge.node.node_object import NodeFacts
from bridge.rbac import permissions
from sync.kube.resources import DAEMON_SETS, NODES
from translators.identity import home_id_from_uid
from translators.objects import Object, name_of, namespace_of
from translators.pods import remote_pod, scheduling_predicates
from translators.translation_policy import DaemonSets

#: What the DaemonSet controller adds to the tolerations of every pod
#: (AddOrUpdateDaemonPodTolerations in pkg/controller/daemon/util).
_ADDED = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
#: As above, of pods with hostNetwork alone.
_ADDED_HOST_NETWORK = {
    "key": "node.kubernetes.io/network-unavailable",
    "operator": "Exists",
    "effect": "NoSchedule",
}
_HINT = (
    "to keep one off the node, give it a node affinity that excludes nodes with the label "
    "cluster-bridge.io/virtual-node; to run them, join with --daemonsets run"
)


async def before(subject: CheckContext) -> list[Finding]:
    """BRG507 before a join: of the Node that the join would register."""
    settings = subject.settings
    facts = NodeFacts(
        name=subject.name,
        remote_id="",
        address="",
        port=0,
        version="",
        configured=NodeMetadata(settings.labels, settings.annotations, settings.taints),
        annotations={},
    )
    selector = ",".join(f"{key}={it}" for key, it in settings.node_selector.items())
    nodes = (await subject.remote_client.list(NODES, labels=selector)).items
    planned = node_object.build_node(
        subject.name, node_object.desired_metadata(facts, nodes, largest="")
    )
    return await _found(subject, planned, settings.daemonsets)


async def of_node(subject: CheckContext) -> list[Finding]:
    """BRG507 of a node that exists."""
    policy, _ = join_record.read_policy(
        subject.existing_node, home_id_from_uid(await cluster_uid(subject.home_client))
    )
    return await _found(subject, subject.existing_node, policy.daemonsets)


async def _found(subject: CheckContext, node: Object, option: DaemonSets) -> list[Finding]:
    client = subject.home_client
    if not await permissions.are_granted(client, permissions.HOME_DAEMON_SETS):
        why = "not checked: the credential may not list daemonsets.apps at home"
        return [info("BRG507", "home", why)]
    daemon_sets = (await client.list(DAEMON_SETS)).items
    placed = [it for it in daemon_sets if _comes_to(it, node)]
    unfit = [it for it in placed if remote_pod.rejection_message(pod_of_manifest(it) or {})]
    if not placed:
        return [ok("BRG507", "home", "no DaemonSet has a pod on the node")]
    if option == "skip":
        found = f"skipped, counted as available: {_names(placed)}"
        return [info("BRG507", "home", found, _HINT)]
    fit = [it for it in placed if it not in unfit]
    found = f"run in the remote (--daemonsets run): {_names(fit) or 'none'}"
    skipped = f"cannot run in the remote; skipped, counted as available: {_names(unfit)}"
    return [info("BRG507", "home", found), *([warning("BRG507", "home", skipped)] if unfit else ())]


def _names(daemon_sets: list[Object]) -> str:
    return summarize_names(f"{namespace_of(it)}/{name_of(it)}" for it in daemon_sets)


def _comes_to(daemon_set: Object, node: Object) -> bool:
    """Whether the DaemonSet controller makes a pod for the node: by its labels and taints, whatever
    room it has (predicates of pkg/controller/daemon)."""
    template = pod_of_manifest(daemon_set)
    if template is None:
        return False
    spec = template["spec"]
    added = [*_ADDED, _ADDED_HOST_NETWORK] if spec.get("hostNetwork") else [*_ADDED]
    tolerations = [*(spec.get("tolerations") or ()), *added]
    bare: Object = {"spec": {**spec, "tolerations": tolerations}}
    return not scheduling_predicates.label_and_taint_failures(bare, node)


IMPLEMENTATIONS = (
    Implementation("BRG507", before, ("home", "remote"), only_before_join=True),
    Implementation("BRG507", of_node, ("home", "node")),
)
