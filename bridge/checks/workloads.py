"""Checks the remote's nodes and quotas, name clashes, leftovers, metrics, and the node's pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, not_checked, ok, warning
from bridge.node import conditions, node_object
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import NodeInventory, ReadScope
from sync.kube.api_resources import EVENTS, NAMESPACES, NODES, PODS, RESOURCE_QUOTAS
from sync.kube.client import KubeClient
from sync.pods import action_planner
from translators.capacity import resource_quota
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES
from translators.capacity.pod_requests import CPU, MEMORY
from translators.derived_names import label_value
from translators.handed_over_namespaces import (
    is_usable_namespace,
    unprepared_namespace_message,
    unusable_namespace_message,
)
from translators.object_accessors import (
    HomeNamespace,
    Object,
    name_of,
    namespace_of,
    namespaced_name,
)
from translators.ownership_labels import LABEL_HOME
from translators.pods import synthetic_status

#: The resources of a quota that are checked, in addition to devices.
_BOUND = (CPU, MEMORY, "pods", "ephemeral-storage")
_NODES_UNKNOWN = "the credential may not list the remote's nodes (see BRG208)"
#: System namespaces, whose pods are not offloaded.
_SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})
#: The reason of pods that wait until an unmanaged object is deleted.
_REMOTE_CLASH = "RemoteClash"
#: Reasons of Events about pods that run without a part of their spec.
_REDUCED_REASONS = ("FieldDropped", "UpdateRefused")


async def check_schedulable_nodes(context: CheckContext) -> list[Finding]:
    """BRG501."""
    if not (await context.own_cluster_reads()).nodes:
        return [not_checked("BRG501", "remote", _NODES_UNKNOWN)]
    selector = ",".join(f"{key}={it}" for key, it in context.settings.node_selector.items())
    found = (await context.remote_client.list(NODES, labels=selector)).items
    condition = conditions.ready_condition([(node, 1) for node in found])
    if not condition.status:
        return [error("BRG501", "remote", condition.message)]
    severity = warning if condition.reason == NO_SCHEDULABLE_NODES else ok
    return [severity("BRG501", "remote", condition.message)]


async def check_quotas(context: CheckContext) -> list[Finding]:
    """BRG502."""
    remote, prepared = context.remote_client, context.settings.remote_namespaces
    if prepared:
        pages = [await remote.list(RESOURCE_QUOTAS, namespace=it) for it in prepared]
        bound = [it for page in pages for it in page.items]
    else:
        owner = f"{LABEL_HOME}={await context.home_id()}"
        ours = {name_of(it) for it in (await remote.list(NAMESPACES, labels=owner)).items}
        if not ours:
            return [ok("BRG502", "remote", "no namespace of this home exists there yet")]
        quotas = (await remote.list(RESOURCE_QUOTAS)).items
        bound = [it for it in quotas if namespace_of(it) in ours]
    used_up = [text for it in bound if (text := resource_quota.exhausted_keys(it, _BOUND))]
    if used_up:
        return [warning("BRG502", "remote", f"used up: {'; '.join(used_up)}")]
    return [ok("BRG502", "remote", f"{len(bound)} quota(s), none used up")]


async def check_namespace_clashes(context: CheckContext) -> list[Finding]:
    """BRG503 before a join: by the names that namespaces would have."""
    if context.settings.remote_namespaces:
        return await _check_prepared(context)
    identity = await context.identity()
    home_names = map(name_of, (await context.home_client.list(NAMESPACES)).items)
    required = {
        identity.remote_namespace(HomeNamespace(it)) for it in home_names if it not in _SYSTEM
    }
    taken = [
        name_of(it)
        for it in (await context.remote_client.list(NAMESPACES)).items
        if name_of(it) in required and not is_usable_namespace(it, identity)
    ]
    if not taken:
        return [ok("BRG503", "remote", "no unmanaged namespace has a required name")]
    text = f"unmanaged namespaces: {summarize_names(taken)}; pods that need them would wait"
    return [warning("BRG503", "remote", text)]


async def _check_prepared(context: CheckContext) -> list[Finding]:
    """BRG503 for prepared namespaces, each read by its name."""
    identity, findings = await context.identity(), list[Finding]()
    for name in context.settings.remote_namespaces:
        found = await context.remote_client.find(NAMESPACES, name)
        if found is None:
            text = unprepared_namespace_message(name)
            findings.append(warning("BRG503", "remote", text.removeprefix("remote: ")))
        elif not is_usable_namespace(found, identity):
            text = unusable_namespace_message(found, identity)
            findings.append(warning("BRG503", "remote", text))
    return findings or [ok("BRG503", "remote", "the prepared namespaces are handed over")]


async def check_leftovers(context: CheckContext) -> list[Finding]:
    """BRG504."""
    ours = await context.home_id()
    known = (await context.home_client.list(NODES, labels=node_object.LABEL_REMOTE)).items
    alive = {label_value(name) for name in (context.name, *map(name_of, known))}
    left, theirs = [], []
    for its in await remote_inventory.list_node_inventories(
        context.remote_client,
        scope=ReadScope(context.settings.remote_namespaces, await context.own_cluster_reads()),
    ):
        if its.home != ours:
            theirs.append(its)
        elif its.node not in alive:
            left.append(its)
    found = []
    if left:
        text = f"objects of virtual nodes that home does not have: {_describe(left)}"
        found.append(warning("BRG504", "remote", text))
    if theirs:
        text = f"objects of another home, left over unless its bridge runs: {_describe(theirs)}"
        found.append(info("BRG504", "remote", text, "`bridge prune --kubeconfig REMOTE`"))
    return found or [ok("BRG504", "remote", "all objects belong to nodes of this home")]


def _describe(several: Sequence[NodeInventory]) -> str:
    return summarize_names(
        f"home {it.home}, node {it.node} ({len(it.pods)} pods, {len(it.copies)} copies, "
        f"{len(it.namespaces)} namespaces; written {it.last_written})"
        for it in several
    )


async def check_metrics_source(context: CheckContext) -> list[Finding]:
    """BRG505."""
    source = await context.metrics_source()
    if source == "kubelets":
        return [ok("BRG505", "remote", "its kubelets serve resource metrics")]
    if source == "api":
        text = "its metrics API serves resource metrics; kubelets, which need get nodes/proxy, are "
        return [info("BRG505", "remote", f"{text}more exact")]
    if context.settings.metrics == "none":
        return [info("BRG505", "remote", "--metrics none: no resource metrics")]
    text = "this credential may read no resource metrics: kubectl top and autoscalers have none"
    return [warning("BRG505", "remote", text)]


async def check_pods(context: CheckContext) -> list[Finding]:
    """BRG506, and BRG503 of pods that wait until an unmanaged object is deleted."""
    found = (await context.home_client.list(PODS, fields=f"spec.nodeName={context.name}")).items
    waiting: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in found:
        if synthetic_status.is_creation_blocked(pod):
            waiting[str((pod.get("status") or {}).get("reason") or "unknown")].append(pod)
    clashing = waiting.pop(_REMOTE_CLASH, [])
    skipped = waiting.pop(action_planner.REASON_SKIPPED, [])
    findings = [
        warning("BRG506", "home", _waiting(reason, them)) for reason, them in waiting.items()
    ]
    if skipped:  # Pods of DaemonSets, which wait for nothing.
        names = summarize_names(map(namespaced_name, skipped))
        text = f"{len(skipped)} pod(s) of DaemonSets are skipped, see BRG507: {names}"
        findings.append(info("BRG506", "home", text))
    if clashing:
        findings.append(error("BRG503", "remote", _waiting(_REMOTE_CLASH, clashing)))
    findings += await _reduced_pods(context.home_client, context.name)
    accepted = len(found) - sum(map(len, (*waiting.values(), clashing, skipped)))
    severity = ok if accepted == len(found) else info
    findings.append(severity("BRG506", "home", f"{accepted} of {len(found)} pod(s) are accepted"))
    return findings


def _waiting(reason: str, them: list[Object]) -> str:
    text = str((them[0].get("status") or {}).get("message") or "no message")
    return (
        f"{len(them)} pod(s) wait, {reason}: {summarize_names(map(namespaced_name, them))}: {text}"
    )


async def _reduced_pods(home: KubeClient, node: str) -> list[Finding]:
    """From the bridge's Events that still exist."""
    findings = []
    for reason in _REDUCED_REASONS:
        pods = set()
        for event in (await home.list(EVENTS, fields=f"reason={reason}")).items:
            about = event.get("involvedObject") or {}
            if (event.get("source") or {}).get("host") == node:
                pods.add(f"{about.get('namespace', '')}/{about.get('name', '')}")
        if pods:
            text = f"{reason}: {summarize_names(sorted(pods))}; see kubectl describe pod"
            findings.append(info("BRG506", "home", text))
    return findings


IMPLEMENTATIONS = (
    Implementation("BRG501", check_schedulable_nodes, ("remote",)),
    Implementation("BRG502", check_quotas, ("home", "remote")),
    Implementation("BRG503", check_namespace_clashes, ("home", "remote"), only_before_join=True),
    Implementation("BRG504", check_leftovers, ("home", "remote")),
    Implementation("BRG505", check_metrics_source, ("remote",)),
    Implementation("BRG506", check_pods, ("home", "node")),
)
