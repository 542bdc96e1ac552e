"""Lists what bridges created in a remote, and removes the objects of one home or virtual node.

No home is contacted: it may no longer exist. So nothing shows whether a bridge still manages the
objects; the time of the last write is reported, and the user decides. Only objects with the labels
and annotations of bridges are considered (`sync.cleanup.remote_inventory.list_node_inventories`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.leave import leave_summary
from bridge.remote_claim import claim_removal
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import NodeInventory
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.mirror.copy_rules import COPIED_RESOURCES
from translators.objects import is_deleting, name_of
from translators.relay import reverse_plan

_HEADER = (
    "HOME",
    "NODE",
    "PODS",
    *(it.plural.upper() for it in COPIED_RESOURCES),
    "NAMESPACES",
    "WRITTEN",
)


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


async def list_leftovers(settings: PruneSettings, *, notify: Notify) -> list[str]:
    """A table with a line per home and node; empty if there are no leftovers. Raises
    PreflightError."""
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            found = await remote_inventory.list_node_inventories(remote)
    return _format_table(found) if found else []


async def remove_leftovers(
    settings: PruneSettings, *, notify: Notify, agree: Callable[[list[str]], bool]
) -> bool:
    """Removes the objects of the home or virtual node, if ``agree`` accepts the lines that describe
    them. Returns whether it did. Raises PreflightError, also if objects appear again: then a
    bridge still serves the node."""
    owner = f"home {settings.home}"
    if settings.node:
        owner = f"node {settings.node} of {owner}"
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            found = await remote_inventory.list_node_inventories(
                remote, settings.home, settings.node
            )
            for its in found:
                notify(
                    f"remote: home {its.home} last wrote objects of its node {its.node} at "
                    f"{its.last_written}; if a bridge still serves that node, stop it first: it "
                    "would create all of them again"
                )
            for line in [line for its in found for line in leave_summary.shared_lines(its)]:
                notify(line)
            lines = [line for its in found for line in leave_summary.remote_lines(its)]
            if not agree(lines):
                return False
            kept = await _remove(remote, settings, found, notify=notify)
            await _check_gone(remote, settings, kept, owner)
            await claim_removal.remove_claims_of_home(
                remote, settings.home, settings.node, notify=notify
            )
    if not found:
        notify("remote: unchanged")
    elif kept or any(its.shared for its in found):
        notify(f"remote: the objects of {owner} are removed, except those reported above")
    else:
        notify(f"remote: the objects of {owner} are removed")
    return True


async def _remove(
    remote: KubeClient,
    settings: PruneSettings,
    found: Sequence[NodeInventory],
    *,
    notify: Notify,
) -> set[str]:
    """Returns the namespaces that stay, each of which is reported with its reason."""
    pods = [pod for its in found for pod in its.pods]
    try:
        async with asyncio.timeout(settings.timeout):
            await remote_inventory.delete_pods(
                remote, pods, waiting=lambda left: notify(f"remote: {left} pod(s) are terminating")
            )
    except TimeoutError:
        raise PreflightError(
            f"remote: not all pods have terminated after {settings.timeout:.0f} s (is their node "
            "unreachable?); nothing else was removed. Try again later"
        ) from None
    await remote_inventory.delete_copies(remote, [copy for its in found for copy in its.copies])
    await remote_inventory.transfer_shared_copies(
        remote, [shared for its in found for shared in its.shared]
    )
    namespaces = [namespace for its in found for namespace in its.namespaces]
    kept = await remote_inventory.delete_namespaces(
        remote, namespaces, has_ended=lambda node: not settings.node or node == settings.node
    )
    for namespace, reason in kept:
        notify(f"remote: namespace {namespace} stays: {reason}")
    return {namespace for namespace, _ in kept}


async def _check_gone(
    remote: KubeClient, settings: PruneSettings, kept: set[str], owner: str
) -> None:
    """Raises PreflightError if objects exist that are neither terminating nor kept."""
    left = await remote_inventory.list_node_inventories(remote, settings.home, settings.node)
    for its in left:
        its.copies = [(kind, copy) for kind, copy in its.copies if not is_deleting(copy)]
        its.namespaces = [
            it for it in its.namespaces if name_of(it) not in kept and not is_deleting(it)
        ]
    lines = [line for its in left for line in leave_summary.remote_lines(its)]
    if lines:
        raise PreflightError(
            f"remote: {owner} has objects again ({len(lines)}, such as "
            f"{lines[0].removeprefix('remote: ')}): a bridge still serves it. Stop that "
            "bridge and try again"
        )


def _format_table(found: Sequence[NodeInventory]) -> list[str]:
    """The table's lines, in aligned columns under a header."""
    rows = [_HEADER]
    for its in found:
        copies = Counter(resource for resource, _ in its.copies)
        pods = sum(reverse_plan.relay_home_namespace(pod) is None for pod in its.pods)
        counts = [pods, *(copies[it] for it in COPIED_RESOURCES), len(its.namespaces)]
        rows.append((its.home, its.node, *map(str, counts), its.last_written))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
