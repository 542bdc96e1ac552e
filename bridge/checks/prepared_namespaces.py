"""Checks a join with prepared namespaces: what the bridge may read in the whole remote (BRG208),
and whether options and quotas declare the capacity where its nodes are unknown (BRG509). Neither
has a finding where nothing is limited."""

from __future__ import annotations

from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, ok
from bridge.clusters.cluster_reads_selection import SUBSTITUTES, missing_reads
from bridge.rbac.permissions import REMOTE_CLUSTER_READS
from sync.kube.api_resources import RESOURCE_QUOTAS
from translators.capacity import declared_capacity
from translators.object_accessors import Object

_HINT = "`bridge rbac remote --cluster-reads` prints a ClusterRole for it, with the --namespace"


async def check_cluster_reads(context: CheckContext) -> list[Finding]:
    """BRG208."""
    if not context.settings.remote_namespaces:
        return []
    reads = await context.cluster_reads()
    missing = missing_reads(reads)
    if not missing:
        return [ok("BRG208", "remote", "nodes, namespaces, pods and quotas of the whole remote")]
    return [
        info("BRG208", "remote", f"no list of all {_plural(name)}: {SUBSTITUTES[name]}", _HINT)
        for name in missing
    ]


def _plural(name: str) -> str:
    return str(REMOTE_CLUSTER_READS[name][0].resource)


async def check_declared_capacity(context: CheckContext) -> list[Finding]:
    """BRG509."""
    if (await context.cluster_reads()).nodes:
        return []
    if context.node is not None:
        return [_capacity_of(context.node)]
    quotas: list[Object] = []
    for namespace in context.settings.remote_namespaces:
        page = await context.remote_client.list(RESOURCE_QUOTAS, namespace=namespace)
        quotas += page.items
    missing = declared_capacity.missing_resources(context.settings.limits.caps, quotas)
    if not missing:
        text = "options and quotas of the prepared namespaces declare the capacity"
        return [info("BRG509", "remote", text)]
    options = "--limits " + ",".join(f"{resource}=AMOUNT" for resource in missing)
    text = (
        f"the capacity is unknown ({', '.join(missing)}): this credential may not list nodes, and "
        "no ResourceQuota of the prepared namespaces limits it"
    )
    hint = f"join with {options}, or set such quotas, or grant `bridge rbac remote --cluster-reads`"
    return [error("BRG509", "remote", text, hint)]


def _capacity_of(node: Object) -> Finding:
    capacity = (node.get("status") or {}).get("capacity") or {}
    missing = [it for it in declared_capacity.REQUIRED if it not in capacity]
    if missing:
        return error("BRG509", "remote", f"the node has no {', '.join(missing)}")
    return info("BRG509", "remote", "options and quotas declare the capacity of the node")


IMPLEMENTATIONS = (
    Implementation("BRG208", check_cluster_reads, ("remote",)),
    Implementation("BRG509", check_declared_capacity, ("remote",)),
)
