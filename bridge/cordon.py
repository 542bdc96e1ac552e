"""`bridge cordon`, `uncordon` and `drain`: as kubectl's, for virtual nodes of ours alone.

- A node that is as it should be already is not written.
- `drain` cordons, and then evicts what is on the node as `bridge.drain` does. It needs the bridge
  that serves the node, since nobody else ends its pods in the remote. The node stays cordoned.
- With ``dry_run`` nothing is written; home is asked whether it would take the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge import drain as draining
from bridge.drain import is_daemon
from bridge.node import leaver
from bridge.preflight.checks import PreflightError
from bridge.status import gather
from sync.kube.calls import MERGE_PATCH
from sync.kube.client import KubeClient
from sync.kube.resources import NODES, PODS
from translators.types import Object, name_of, namespace_of, uid_of

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did, or would do."""

    changed: bool
    """Whether the node was not cordoned before."""
    evicted: list[Object]
    """Pods that are off the node."""
    stay: list[Object]
    """Pods of DaemonSets, which are left alone."""


async def cordon(home: KubeClient, name: str, *, wanted: bool, dry_run: bool) -> bool:
    """Has the node take no new pods, or take them again; whether that was a change. Raises
    PreflightError where the node is none of ours, and KubeError."""
    return await _cordon(home, await gather.node(home, name), wanted=wanted, dry_run=dry_run)


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
    home: KubeClient, name: str, *, timeout: float, dry_run: bool, told: Told
) -> Drained:
    """Takes all pods off the node but those of DaemonSets. Raises PreflightError, where it cannot
    or time is up, and KubeError."""
    node = await gather.node(home, name)
    if not await leaver.served_by(home, name):
        raise PreflightError(
            f"home: no bridge serves node {name}, so nobody would end its pods in the remote; "
            "start the bridge, or leave with `bridge leave --drain`, which ends them itself"
        )
    changed = await _cordon(home, node, wanted=True, dry_run=dry_run)
    if changed and not dry_run:
        told(f"home: node {name} takes no new pods")
    pods = (await home.list(PODS, fields=f"spec.nodeName={name}")).items
    going = [it for it in pods if not is_daemon(it)]
    if not dry_run:
        await draining.drain(
            home,
            going,
            end=None,
            timeout=timeout,
            told=told,
            instead="`bridge uncordon` takes the node back into use",
        )
    return Drained(changed, going, [it for it in pods if is_daemon(it)])


def named(pods: list[Object]) -> list[Object]:
    """The pods, as they are told."""
    return [{"namespace": namespace_of(it), "name": name_of(it)} for it in pods]
