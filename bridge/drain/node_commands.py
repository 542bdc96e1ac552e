"""`bridge cordon`, `uncordon` and `drain`: as kubectl's, for virtual nodes of ours alone.

- A node that is as it should be already is not written.
- `drain` cordons, and then evicts what is on the node as `bridge.drain.eviction` does. It needs
  the bridge
  that serves the node, since nobody else ends its pods in the remote. The node stays cordoned;
  where pods take an option that is not set, it is not cordoned.
- With ``dry_run`` nothing is written; home is asked whether it would take the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.drain import eviction as draining
from bridge.drain.eviction import DrainOptions, DrainPlan
from bridge.election import leave_lock
from bridge.status import status_client
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden, NotFound
from sync.kube.request import MERGE_PATCH
from sync.kube.resources import DAEMON_SETS, NODES, PODS
from translators.objects import Object, is_daemonset_pod, metadata, name_of, namespace_of, uid_of

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a drain did, or would do."""

    newly_cordoned: bool
    """Whether the node was not cordoned before."""
    evicted: list[Object]
    """Pods that are off the node."""
    skipped: list[Object]
    """Pods of DaemonSets, and mirror pods."""


async def cordon(home: KubeClient, name: str, *, unschedulable: bool, dry_run: bool) -> bool:
    """Has the node take no new pods, or take them again; whether that was a change. Raises
    PreflightError where the node is none of ours, and KubeError."""
    return await _cordon(
        home, await status_client.get_node(home, name), wanted=unschedulable, dry_run=dry_run
    )


async def _cordon(home: KubeClient, node: Object, *, wanted: bool, dry_run: bool) -> bool:
    if bool((node.get("spec") or {}).get("unschedulable")) == wanted:
        return False
    patch: Object = {
        "metadata": {"uid": uid_of(node)},
        # The field is left out where it is false.
        "spec": {"unschedulable": True if wanted else None},
    }
    await home.request(
        "PATCH",
        NODES.path(name_of(node)),
        query={"dryRun": "All"} if dry_run else None,
        body=patch,
        content_type=MERGE_PATCH,
    )
    return True


async def drain(
    home: KubeClient,
    name: str,
    *,
    options: DrainOptions,
    timeout: float,
    dry_run: bool,
    report: Told,
) -> DrainResult:
    """Evicts the pods that ``options`` allow. Raises PreflightError, where it cannot or time is up,
    and KubeError. Nothing is changed where pods are in the way."""
    node = await status_client.get_node(home, name)
    if not await leave_lock.find_serving_bridge(home, name):
        raise PreflightError(
            f"home: no bridge serves node {name}, so nobody would end its pods in the "
            "remote; start the bridge, or leave with `bridge leave --drain`, which ends "
            "them itself"
        )
    plan = await _plan(home, name, options)
    changed = await _cordon(home, node, wanted=True, dry_run=dry_run)
    if dry_run:
        return DrainResult(changed, plan.evict, plan.skipped)
    if changed:
        report(f"home: node {name} takes no new pods")
    # Those that came before the node was cordoned.
    plan = await _plan(home, name, options)
    await draining.evict_pods(
        home,
        plan.evict,
        end_pod=None,
        timeout=timeout,
        report=report,
        grace_period=options.grace_period,
        alternative="`bridge uncordon` takes the node back into use",
    )
    return DrainResult(changed, plan.evict, plan.skipped)


async def _plan(home: KubeClient, name: str, options: DrainOptions) -> DrainPlan:
    """Raises PreflightError where pods are in the way."""
    pods = (await home.list(PODS, fields=f"spec.nodeName={name}")).items
    plan = draining.plan_drain(pods, options, orphans=await _orphans(home, pods))
    plan.check_unblocked(name)
    return plan


async def _orphans(home: KubeClient, pods: list[Object]) -> set[str]:
    """The UIDs of pods whose DaemonSet is no more. One that may not be read counts as there."""
    found = set()
    for pod in filter(is_daemonset_pod, pods):
        owner = next(it for it in metadata(pod)["ownerReferences"] if it.get("controller"))
        try:
            await home.get(DAEMON_SETS, owner["name"], namespace=namespace_of(pod))
        except NotFound:
            found.add(uid_of(pod))
        except Forbidden:
            continue
    return found


def pod_references(pods: list[Object]) -> list[Object]:
    """The pods, as they are told."""
    return [{"namespace": namespace_of(it), "name": name_of(it)} for it in pods]
