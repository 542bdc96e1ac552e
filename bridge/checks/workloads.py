"""Checks of what runs: nodes, quotas, clashes, leftovers, usage, and the node's pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bridge.checks.context import CheckContext, Implementation
from bridge.checks.join_checks import build_identity
from bridge.checks.report import Finding, error, info, ok, summarize_names, warning
from bridge.clusters.connection import cluster_uid
from bridge.clusters.metrics_source import select_metrics_source
from bridge.node import conditions, node_object
from sync.cleanup import inventory
from sync.cleanup.inventory import NodeInventory
from sync.kube.client import KubeClient
from sync.kube.resources import EVENTS, NAMESPACES, NODES, PODS, RESOURCE_QUOTAS
from sync.pods import plan
from translators.capacity import resource_quota
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES
from translators.capacity.pod_requests import CPU, MEMORY
from translators.identity import LABEL_HOME, home_id_from_uid, is_usable_namespace
from translators.names import label_value
from translators.objects import HomeNamespace, Object, name_of, namespace_of
from translators.pods import synthetic_status

#: What of a quota's bounds is looked at, beside whatever it bounds of devices.
_BOUND = (CPU, MEMORY, "pods", "ephemeral-storage")
#: Namespaces of a cluster's own, whose pods nobody sends away.
_SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})
#: The reason of what waits for something of others to go.
_CLASH = "RemoteClash"
#: Reasons of the bridge's Events by which a pod that runs has not all that it asked for.
_LESS = ("FieldDropped", "UpdateRefused")


async def nodes(subject: CheckContext) -> list[Finding]:
    """BRG501."""
    selector = ",".join(f"{key}={it}" for key, it in subject.settings.node_selector.items())
    found = (await subject.remote_client.list(NODES, labels=selector)).items
    its = conditions.ready_condition(found)
    if not its.status:
        return [error("BRG501", "remote", its.message)]
    tell = warning if its.reason == NO_SCHEDULABLE_NODES else ok
    return [tell("BRG501", "remote", its.message)]


async def quotas(subject: CheckContext) -> list[Finding]:
    """BRG502."""
    remote = subject.remote_client
    owner = f"{LABEL_HOME}={home_id_from_uid(await cluster_uid(subject.home_client))}"
    ours = {name_of(it) for it in (await remote.list(NAMESPACES, labels=owner)).items}
    if not ours:
        return [ok("BRG502", "remote", "no namespace there stands for one of home yet")]
    bound = [it for it in (await remote.list(RESOURCE_QUOTAS)).items if namespace_of(it) in ours]
    used_up = [said for it in bound if (said := resource_quota.exhausted_keys(it, _BOUND))]
    if used_up:
        return [warning("BRG502", "remote", f"used up: {'; '.join(used_up)}")]
    return [ok("BRG502", "remote", f"{len(bound)} quota(s), none used up")]


# -- in the way, and left over -------------------------------------------------------------


async def clashes_before(subject: CheckContext) -> list[Finding]:
    """BRG503 before a join: by the names that namespaces would have."""
    home_uid = await cluster_uid(subject.home_client)
    identity = build_identity(subject.settings, node=subject.name, home_uid=home_uid)
    theirs = {name_of(it): it for it in (await subject.remote_client.list(NAMESPACES)).items}
    taken = []
    for namespace in (await subject.home_client.list(NAMESPACES)).items:
        name = identity.remote_namespace(HomeNamespace(name_of(namespace)))
        known = theirs.get(name)
        if name_of(namespace) in _SYSTEM or known is None:
            continue
        if not is_usable_namespace(known, identity):
            taken.append(name)
    if not taken:
        return [ok("BRG503", "remote", "no namespace of others has a name that is needed")]
    said = (
        f"namespaces that are somebody else's: {summarize_names(taken)}; pods of home's would wait"
    )
    return [warning("BRG503", "remote", said)]


async def leftovers(subject: CheckContext) -> list[Finding]:
    """BRG504."""
    ours = home_id_from_uid(await cluster_uid(subject.home_client))
    known = (await subject.home_client.list(NODES, labels=node_object.LABEL_REMOTE)).items
    alive = {label_value(name) for name in (subject.name, *map(name_of, known))}
    left, theirs = [], []
    for its in await inventory.list_node_inventories(subject.remote_client):
        if its.home != ours:
            theirs.append(its)
        elif its.node not in alive:
            left.append(its)
    found = []
    if left:
        said = f"this home has no such node, and its objects are there: {_who(left)}"
        found.append(warning("BRG504", "remote", said))
    if theirs:
        said = f"another home's: {_who(theirs)}; left over, unless a bridge of its serves them"
        found.append(info("BRG504", "remote", said, "`bridge garbage --kubeconfig REMOTE`"))
    return found or [ok("BRG504", "remote", "nothing that is not a node's of this home")]


def _who(several: Sequence[NodeInventory]) -> str:
    return summarize_names(
        f"home {it.home}, node {it.node} ({len(it.pods)} pods, {len(it.copies)} copies, "
        f"{len(it.namespaces)} namespaces; written {it.last_written})"
        for it in several
    )


# -- usage ---------------------------------------------------------------------------------


async def metrics(subject: CheckContext) -> list[Finding]:
    """BRG505."""
    source = await select_metrics_source(subject.remote_client, subject.settings.metrics)
    if source == "kubelets":
        return [ok("BRG505", "remote", "its kubelets tell what pods use")]
    if source == "api":
        return [ok("BRG505", "remote", "its metrics API tells what pods use")]
    if subject.settings.metrics == "none":
        return [info("BRG505", "remote", "--metrics none: nobody is asked what pods use")]
    return [warning("BRG505", "remote", "nothing tells this credential what pods use")]


# -- the node's pods -----------------------------------------------------------------------


async def pods(subject: CheckContext) -> list[Finding]:
    """BRG506, and BRG503 of pods that wait for something of others to go."""
    found = (await subject.home_client.list(PODS, fields=f"spec.nodeName={subject.name}")).items
    waiting: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in found:
        if synthetic_status.is_creation_blocked(pod):
            waiting[str((pod.get("status") or {}).get("reason") or "unknown")].append(pod)
    clashing = waiting.pop(_CLASH, [])
    skipped = waiting.pop(plan.REASON_SKIPPED, [])
    told = [warning("BRG506", "home", _waiting(reason, them)) for reason, them in waiting.items()]
    if skipped:
        told.append(info("BRG506", "home", _skipped(skipped)))
    if clashing:
        told.append(error("BRG503", "remote", _waiting(_CLASH, clashing)))
    told += await _with_less(subject.home_client, subject.name)
    accepted = len(found) - sum(map(len, (*waiting.values(), clashing, skipped)))
    return [*told, ok("BRG506", "home", f"{accepted} of {len(found)} pod(s) are accepted")]


def _waiting(reason: str, them: list[Object]) -> str:
    said = str((them[0].get("status") or {}).get("message") or "nothing is said")
    return f"{len(them)} pod(s) wait, {reason}: {summarize_names(map(_pod, them))}: {said}"


def _skipped(them: list[Object]) -> str:
    """Of DaemonSets' pods: these wait for nothing."""
    return (
        f"{len(them)} pod(s) of DaemonSets are skipped, see BRG507: "
        f"{summarize_names(map(_pod, them))}"
    )


async def _with_less(home: KubeClient, node: str) -> list[Finding]:
    """Of the bridge's Events that are still there."""
    by_reason: defaultdict[str, set[str]] = defaultdict(set)
    for reason in _LESS:
        for event in (await home.list(EVENTS, fields=f"reason={reason}")).items:
            about = event.get("involvedObject") or {}
            if (event.get("source") or {}).get("host") == node:
                by_reason[reason].add(f"{about.get('namespace', '')}/{about.get('name', '')}")
    return [
        info(
            "BRG506", "home", f"{reason}: {summarize_names(sorted(them))}; see kubectl describe pod"
        )
        for reason, them in sorted(by_reason.items())
    ]


def _pod(pod: Object) -> str:
    return f"{namespace_of(pod)}/{name_of(pod)}"


IMPLEMENTATIONS = (
    Implementation("BRG501", nodes, ("remote",)),
    Implementation("BRG502", quotas, ("home", "remote")),
    Implementation("BRG503", clashes_before, ("home", "remote"), only_before_join=True),
    Implementation("BRG504", leftovers, ("home", "remote")),
    Implementation("BRG505", metrics, ("remote",)),
    Implementation("BRG506", pods, ("home", "node")),
)
