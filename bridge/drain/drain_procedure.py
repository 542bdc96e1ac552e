"""`bridge cordon`, `uncordon` and `drain`: as kubectl's, limited to virtual nodes of bridges.

- A node that already is in the requested state is not patched.
- `drain` cordons the node and evicts its pods (`bridge.drain.eviction`). A bridge must serve the
  node: only a bridge terminates the remote pods. The node stays cordoned. If the filters block the
  drain, nothing is changed.
- With ``dry_run`` requests are sent with ``dryRun=All``, so home validates and discards them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.drain.eviction import evict_pods
from bridge.drain.pod_filters import DrainOptions, DrainPlan, plan_drain
from bridge.election import serving_bridge_lookup
from bridge.status import status_client
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import DAEMON_SETS, NODES, PODS
from sync.kube.client import KubeClient
from sync.kube.request import MERGE_PATCH
from translators.object_accessors import (
    Object,
    controller_of,
    is_daemonset_pod,
    name_of,
    namespace_of,
    uid_of,
)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The outcome of a drain, or of its dry run."""

    newly_cordoned: bool
    """Whether the drain cordoned the node; False if it was cordoned before."""
    evicted: list[Object]
    skipped: list[Object]
    """DaemonSet pods and mirror pods, which stay."""


async def cordon(home: KubeClient, name: str, *, unschedulable: bool, dry_run: bool) -> bool:
    """Marks the node unschedulable or schedulable; returns whether that changed it. Raises
    PreflightError if it is not a virtual node, and KubeError."""
    node = await status_client.get_node(home, name)
    if bool((node.get("spec") or {}).get("unschedulable")) == unschedulable:
        return False
    patch: Object = {
        "metadata": {"uid": uid_of(node)},
        # The API omits the field if it is false.
        "spec": {"unschedulable": True if unschedulable else None},
    }
    await home.request(
        "PATCH",
        NODES.path(name),
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
    notify: Notify,
) -> DrainResult:
    """Cordons the node and evicts the pods that ``options`` allow. Raises PreflightError if no
    bridge serves the node, pods block the drain or time is up, and KubeError."""
    await status_client.get_node(home, name)
    if not await serving_bridge_lookup.find_serving_bridge(home, name):
        raise PreflightError(
            f"home: no bridge serves node {name}, so its pods in the remote would not be "
            "terminated; start the bridge, or run `bridge leave --drain`, which terminates them"
        )
    plan = await _plan(home, name, options)
    changed = await cordon(home, name, unschedulable=True, dry_run=dry_run)
    if dry_run:
        return DrainResult(changed, plan.evict, plan.skipped)
    if changed:
        notify(f"home: node {name} is cordoned")
    # Includes the pods that were bound before the node was cordoned.
    plan = await _plan(home, name, options)
    await evict_pods(
        home,
        plan.evict,
        end_pod=None,
        timeout=timeout,
        notify=notify,
        grace_period=options.grace_period,
        alternative="run `bridge uncordon` to use the node again",
    )
    return DrainResult(changed, plan.evict, plan.skipped)


async def _plan(home: KubeClient, name: str, options: DrainOptions) -> DrainPlan:
    """Raises PreflightError if pods block the drain."""
    pods = (await home.list(PODS, fields=f"spec.nodeName={name}")).items
    plan = plan_drain(pods, options, orphans=await _find_orphans(home, pods))
    plan.check_unblocked(name)
    return plan


async def _find_orphans(home: KubeClient, pods: list[Object]) -> set[str]:
    """The UIDs of pods whose DaemonSet no longer exists. A DaemonSet that the credential may not
    read counts as existing."""
    orphans = set()
    for pod in filter(is_daemonset_pod, pods):
        owner = controller_of(pod) or {}
        with suppress(Forbidden):
            if not await home.find(DAEMON_SETS, owner["name"], namespace=namespace_of(pod)):
                orphans.add(uid_of(pod))
    return orphans


def pod_references(pods: list[Object]) -> list[Object]:
    """Namespace and name of each pod, as the JSON output has them."""
    return [{"namespace": namespace_of(it), "name": name_of(it)} for it in pods]
