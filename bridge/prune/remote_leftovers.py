"""Lists the objects of bridges in a remote, and removes those of one home or virtual node.

No home is contacted: it may no longer exist. So nothing shows whether a bridge still manages the
objects; the time of the last write is reported, and the user decides. Only objects with the labels
and annotations of bridges are considered (`sync.cleanup.remote_inventory.list_node_inventories`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.cluster_reads_selection import read_scope
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.leave import leave_summary, remote_cleanup
from bridge.remote_claim import claim_removal
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import Inventory, NodeInventory
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.mirror.copy_rules import COPIED_RESOURCES
from translators.object_accessors import Object
from translators.relay import reverse_plan


@dataclass(frozen=True, slots=True)
class PruneSettings:
    """Options of `bridge prune`."""

    remote: KubeconfigRef
    home: str = ""
    """The ID of the home whose objects are removed; "" when listing."""
    node: str = ""
    """The home's virtual node whose objects are removed; "" for all nodes."""
    timeout: float = leave_summary.DEFAULT_TIMEOUT
    """Longest wait for pods to terminate, in seconds."""
    namespaces: tuple[str, ...] = ()
    """The remote's prepared namespaces, for a credential that may read these alone."""


async def list_leftovers(settings: PruneSettings, *, notify: Notify) -> list[Object]:
    """Counts the objects of each virtual node of each home in the remote by resource, with the time
    of the last write. Raises PreflightError."""
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            scope = await read_scope(remote, settings.namespaces)
            found = await remote_inventory.list_node_inventories(remote, scope=scope)
            return list(map(_counts, found))


def _counts(found: NodeInventory) -> Object:
    copies = Counter(resource for resource, _ in found.copies)
    return {
        "home": found.home,
        "node": found.node,
        "pods": sum(reverse_plan.relay_home_namespace(pod) is None for pod in found.pods),
        **{resource.plural: copies[resource] for resource in COPIED_RESOURCES},
        "namespaces": len(found.namespaces),
        "written": found.last_written,
    }


async def remove_leftovers(
    settings: PruneSettings, *, notify: Notify, confirm: Callable[[list[str]], bool]
) -> bool:
    """Removes the objects of the home or virtual node, if ``confirm`` accepts the lines that
    describe them. Returns whether it did. Raises PreflightError, also if objects appear again: then
    a bridge still serves the node."""
    owner = f"home {settings.home}"
    if settings.node:
        owner = f"node {settings.node} of {owner}"
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            scope = await read_scope(remote, settings.namespaces)
            found = await remote_inventory.list_node_inventories(
                remote, settings.home, settings.node, scope=scope
            )
            for its in found:
                notify(
                    Caveat(
                        f"remote: home {its.home} last wrote objects of its node {its.node} at "
                        f"{its.last_written}; if a bridge still serves that node, stop it first: "
                        "it would create all of them again"
                    )
                )
                for line in leave_summary.shared_lines(its):
                    notify(Caveat(line))
            if not confirm([line for its in found for line in leave_summary.remote_lines(its)]):
                return False
            kept = await remote_cleanup.delete_inventory(
                remote,
                _merged(found),
                has_ended=lambda node: settings.node in ("", node),
                timeout=settings.timeout,
                hint="nothing else was removed. Try again later",
                notify=notify,
            )
            for namespace, reason in kept.items():
                notify(Caveat(f"remote: namespace {namespace} stays: {reason}"))
            left = await remote_inventory.list_node_inventories(
                remote, settings.home, settings.node, scope=scope
            )
            if again := remote_cleanup.remaining_objects(_merged(left), kept):
                raise PreflightError(
                    f"remote: {owner} has objects again ({len(again)}, such as "
                    f"{remote_cleanup.describe(again[0])}): a bridge still serves it. Stop that "
                    "bridge and try again"
                )
            await claim_removal.remove_claims_of_home(
                remote, settings.home, settings.node, settings.namespaces, notify=notify
            )
    if not found:
        notify("remote: unchanged")
    elif kept or any(its.shared for its in found):
        notify(f"remote: the objects of {owner} are removed, except those reported above")
    else:
        notify(f"remote: the objects of {owner} are removed")
    return True


def _merged(inventories: Sequence[NodeInventory]) -> Inventory:
    return Inventory(
        [it for its in inventories for it in its.pods],
        [it for its in inventories for it in its.copies],
        [it for its in inventories for it in its.namespaces],
        [it for its in inventories for it in its.shared],
    )
