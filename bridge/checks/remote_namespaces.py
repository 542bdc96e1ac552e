"""Checks of remote namespaces.

Of a join with prepared namespaces: what the bridge may read in the whole remote (BRG208), and
whether options and quotas declare the capacity where its nodes are unknown (BRG509). Neither has a
finding where nothing is limited. Of all others: the Pod Security levels that they enforce (BRG508).
"""

from __future__ import annotations

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, ok, warning
from bridge.clusters.cluster_reads_selection import SUBSTITUTES, missing_reads
from bridge.rbac.permissions import REMOTE_CLUSTER_READS
from sync.kube.api_resources import NAMESPACES, RESOURCE_QUOTAS
from translators import pod_security
from translators.capacity import declared_capacity
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_HOME
from translators.pod_security import LEVELS

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
    missing = [name for name in declared_capacity.REQUIRED if name not in capacity]
    if missing:
        return error("BRG509", "remote", f"the node has no {', '.join(missing)}")
    return info("BRG509", "remote", "options and quotas declare the capacity of the node")


_UNSET_HINT = "none: the bridge sets it when it next creates an object there"
_PRIVILEGED_HINT = (
    "their pods can become root on the remote's nodes; to prevent that, join with --pod-security "
    "baseline"
)


async def check_levels(context: CheckContext) -> list[Finding]:
    """BRG508."""
    limit = context.settings.pod_security
    rule = "new namespaces have the level of the home namespace, or baseline"
    found = [ok("BRG508", "remote", f"{rule}; --pod-security {limit} is the loosest")]
    if context.settings.remote_namespaces:
        text = "their administrator decides for prepared namespaces, and no others are created"
        return [ok("BRG508", "remote", text)]
    owner = f"{LABEL_HOME}={await context.home_id()}"
    ours = (await context.remote_client.list(NAMESPACES, labels=owner)).items
    unset = [namespace for namespace in ours if _level(namespace) is None]
    if unset:
        text = f"no level is enforced: {summarize_names(map(name_of, unset))}"
        found.append(warning("BRG508", "remote", text, _UNSET_HINT))
    for level in LEVELS:
        if names := [name_of(each) for each in ours if _level(each) == level]:
            hint = _PRIVILEGED_HINT if level == LEVELS[0] else ""
            text = f"{level} is enforced: {summarize_names(names)}"
            found.append(info("BRG508", "remote", text, hint))
    return found


def _level(namespace: Object) -> str | None:
    stated = pod_security.stated_policy(metadata(namespace).get("labels") or {})
    return stated.level if stated is not None else None


IMPLEMENTATIONS = (
    Implementation("BRG208", check_cluster_reads, ("remote",)),
    Implementation("BRG509", check_declared_capacity, ("remote",)),
    Implementation("BRG508", check_levels, ("home", "remote")),
)
