"""What bridges have left in a remote, seen from the remote alone: to be listed, and removed.

Nothing is asked of any home, which may be gone for ever. So nobody can say whether a bridge still
looks after these objects: what is told is when one last wrote any of them, and the person decides.
Only objects with labels and annotations of ours are looked at
(`sync.cleanup.inventory.list_node_inventories`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.clusters.connection import as_preflight_errors, connect
from bridge.leave import summary
from bridge.remote_claim import claim_removal
from sync.cleanup import inventory
from sync.cleanup.inventory import NodeInventory
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.mirror.copied_resources import COPIED_RESOURCES
from translators.objects import is_deleting, name_of
from translators.relay import reverse

_HEAD = (
    "HOME",
    "NODE",
    "PODS",
    *(it.plural.upper() for it in COPIED_RESOURCES),
    "NAMESPACES",
    "WRITTEN",
)


@dataclass(frozen=True, slots=True)
class PruneSettings:
    """What `bridge garbage` was asked for."""

    remote: KubeconfigRef
    home: str = ""
    """The home whose objects are removed; "" lists those of all."""
    node: str = ""
    """Of that home's virtual nodes this one alone; "" for all."""
    timeout: float = summary.DEFAULT_TIMEOUT
    """The longest wait for pods to end, in seconds."""


async def list_leftovers(settings: PruneSettings, *, notify: Callable[[str], None]) -> list[str]:
    """The lines of a table: who has what. Empty where nobody has anything."""
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            found = await inventory.list_node_inventories(remote)
    return table(found) if found else []


async def remove_leftovers(
    settings: PruneSettings, *, notify: Callable[[str], None], agree: Callable[[list[str]], bool]
) -> bool:
    """Removes what the home, or one virtual node of it, has there, if ``agree`` says yes to the
    lines that tell what that is. Returns whether it did. Raises PreflightError, also where
    something is there again afterwards: then a bridge serves the node."""
    whose = f"home {settings.home}"
    if settings.node:
        whose = f"node {settings.node} of {whose}"
    async with connect(settings.remote, side="remote", notify=notify) as remote:
        with as_preflight_errors("remote"):
            found = await inventory.list_node_inventories(remote, settings.home, settings.node)
            for its in found:
                notify(
                    f"remote: home {its.home} wrote objects of its node {its.node} last at "
                    f"{its.last_written}; if a bridge still serves that node, stop it first: "
                    "it would make all of them again"
                )
            for line in [line for its in found for line in summary.shared_lines(its)]:
                notify(line)
            lines = [line for its in found for line in summary.remote_lines(its)]
            if not agree(lines):
                return False
            kept = await _remove(remote, settings, found, told=notify)
            await _check_gone(remote, settings, kept, whose)
            await claim_removal.remove_claims_of_home(
                remote, settings.home, settings.node, notify=notify
            )
    if not found:
        notify("remote: unchanged")
    elif kept or any(its.shared for its in found):
        notify(f"remote: what {whose} had here is gone, except what stays for the reasons above")
    else:
        notify(f"remote: what {whose} had here is gone")
    return True


async def _remove(
    remote: KubeClient,
    settings: PruneSettings,
    found: Sequence[NodeInventory],
    *,
    told: Callable[[str], None],
) -> set[str]:
    """Returns the names of namespaces that stay, each of which is told with its reason."""
    pods = [pod for its in found for pod in its.pods]
    try:
        async with asyncio.timeout(settings.timeout):
            await inventory.delete_pods(
                remote, pods, waiting=lambda left: told(f"remote: {left} pod(s) are ending")
            )
    except TimeoutError:
        raise PreflightError(
            f"remote: not all pods have ended in {settings.timeout:.0f} s (is their machine "
            "away?); the rest is as it was. Try again later"
        ) from None
    await inventory.delete_copies(remote, [copy for its in found for copy in its.copies])
    await inventory.transfer_shared_copies(
        remote, [shared for its in found for shared in its.shared]
    )
    namespaces = [namespace for its in found for namespace in its.namespaces]
    kept = await inventory.delete_namespaces(
        remote, namespaces, has_ended=lambda node: not settings.node or node == settings.node
    )
    for namespace, why in kept:
        told(f"remote: namespace {namespace} stays: {why}")
    return {namespace for namespace, _ in kept}


async def _check_gone(
    remote: KubeClient, settings: PruneSettings, kept: set[str], whose: str
) -> None:
    left = await inventory.list_node_inventories(remote, settings.home, settings.node)
    for its in left:
        its.copies = [(kind, copy) for kind, copy in its.copies if not is_deleting(copy)]
        its.namespaces = [
            it for it in its.namespaces if name_of(it) not in kept and not is_deleting(it)
        ]
    lines = [line for its in left for line in summary.remote_lines(its)]
    if lines:
        raise PreflightError(
            f"remote: {whose} has objects here again ({len(lines)}, such as "
            f"{lines[0].removeprefix('remote: ')}): a bridge still serves it. Stop that "
            "bridge and try again"
        )


def table(found: Sequence[NodeInventory]) -> list[str]:
    """A line for each home and node, under a head, in columns."""
    rows = [_HEAD]
    for its in found:
        copies = Counter(resource for resource, _ in its.copies)
        pods = sum(reverse.relay_home_namespace(pod) is None for pod in its.pods)
        counts = [pods, *(copies[it] for it in COPIED_RESOURCES), len(its.namespaces)]
        rows.append((its.home, its.node, *map(str, counts), its.last_written))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
