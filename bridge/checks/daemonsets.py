"""Checks which DaemonSets of home have a pod on the virtual node, and whether that pod runs."""

from __future__ import annotations

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, info, not_checked, ok, warning
from bridge.explain.cluster_lookup import pod_of_manifest
from bridge.node import join_record, node_object
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts
from bridge.rbac import permissions
from sync.kube.api_resources import DAEMON_SETS, NODES
from translators.object_accessors import Object, namespaced_name
from translators.pods import home_scheduler_filters, remote_pod
from translators.translation_options import DaemonSets

#: Tolerations that the DaemonSet controller adds to every pod (AddOrUpdateDaemonPodTolerations in
#: pkg/controller/daemon/util).
_DEFAULT_TOLERATIONS = tuple(
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
#: Added to pods with hostNetwork only.
_HOST_NETWORK_TOLERATION = {
    "key": "node.kubernetes.io/network-unavailable",
    "operator": "Exists",
    "effect": "NoSchedule",
}
_HINT = (
    "to keep one off the node, give it a node affinity that excludes nodes with the label "
    "cluster-bridge.io/virtual-node; to run them, join with --daemonsets run"
)


async def check_before_join(context: CheckContext) -> list[Finding]:
    """BRG507 before a join: for the Node that the join would register."""
    settings = context.settings
    facts = NodeFacts(
        name=context.name,
        remote_id="",
        address="",
        port=0,
        version="",
        configured=NodeMetadata(settings.labels, settings.annotations, settings.taints),
        annotations={},
    )
    selector = ",".join(f"{key}={it}" for key, it in settings.node_selector.items())
    nodes = list[Object]()
    if (await context.own_cluster_reads()).nodes:
        nodes = (await context.remote_client.list(NODES, labels=selector)).items
    planned = node_object.build_node(facts, node_object.desired_metadata(facts, nodes, largest=""))
    return await _findings(context, planned, settings.daemonsets)


async def check_existing_node(context: CheckContext) -> list[Finding]:
    """BRG507 of an existing node."""
    policy, _ = join_record.read_policy(context.existing_node, await context.home_id())
    return await _findings(context, context.existing_node, policy.daemonsets)


async def _findings(context: CheckContext, node: Object, option: DaemonSets) -> list[Finding]:
    client = context.home_client
    if not await permissions.are_granted(client, permissions.HOME_DAEMON_SETS):
        reason = "the credential may not list daemonsets.apps at home"
        return [not_checked("BRG507", "home", reason)]
    daemon_sets = (await client.list(DAEMON_SETS)).items
    placed = [it for it in daemon_sets if _is_placed(it, node)]
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
    return summarize_names(map(namespaced_name, daemon_sets))


def _is_placed(daemon_set: Object, node: Object) -> bool:
    """Whether the DaemonSet controller creates a pod for the node: by labels and taints, whatever
    the capacity (predicates of pkg/controller/daemon)."""
    template = pod_of_manifest(daemon_set)
    if template is None:
        return False
    spec = template["spec"]
    tolerations = [*(spec.get("tolerations") or ()), *_DEFAULT_TOLERATIONS]
    if spec.get("hostNetwork"):
        tolerations.append(_HOST_NETWORK_TOLERATION)
    bare: Object = {"spec": {**spec, "tolerations": tolerations}}
    return not home_scheduler_filters.label_and_taint_failures(bare, node)


IMPLEMENTATIONS = (
    Implementation("BRG507", check_before_join, ("home", "remote"), only_before_join=True),
    Implementation("BRG507", check_existing_node, ("home", "node")),
)
