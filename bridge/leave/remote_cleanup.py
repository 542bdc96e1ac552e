"""Finds and deletes what belongs to a leaving virtual node in the remote.

`remove` takes a new inventory before each round and repeats until nothing is left: the inventory
that the user confirmed is outdated, and bridges wrote until they were stopped. Objects that still
appear after `MAX_ROUNDS` rounds mean that a bridge which this machine cannot see is still writing;
that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat, Waiting
from bridge.clusters.cluster_reads_selection import read_scope
from bridge.clusters.connection import Notify
from bridge.leave import unfinished_claims
from bridge.leave.leave_summary import HomeState, LeaveSettings, RemoteState, format_counts
from bridge.node import namespace_ownership_lease
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import Inventory
from sync.kube.client import KubeClient
from sync.namespaces import namespace_ownership
from translators.object_accessors import Object, is_deleting, name_of, namespaced_name, uid_of

#: Rounds of removal before objects that still appear are an error.
MAX_ROUNDS = 5


async def collect(home: KubeClient, remote: KubeClient, state: HomeState) -> Inventory:
    """The inventory of the node in the remote, without namespaces that have its labels and that
    home did not record. Raises KubeError."""
    scope = await read_scope(remote, state.remote_namespaces)
    found = await remote_inventory.take_inventory(
        remote, state.identity, others=state.sibling_nodes, scope=scope
    )
    recorded = await namespace_ownership_lease.recorded_at_home(home, state.identity.node)
    if recorded is not None:
        found.namespaces = [
            name for name in found.namespaces if namespace_ownership.is_recorded(name, recorded)
        ]
    found.unfinished_claims = await unfinished_claims.find(home, remote, state, scope)
    return found


async def remove(
    home: KubeClient,
    remote: KubeClient,
    settings: LeaveSettings,
    home_state: HomeState,
    remote_state: RemoteState,
    *,
    notify: Notify,
) -> None:
    """Deletes what the node has in the remote. ``remote_state.inventory`` is what the user agreed
    to; afterwards, also after a failure, it is the last inventory. Raises PreflightError if pods do
    not terminate in time or objects keep appearing, and KubeError."""
    known = set(map(uid_of, _objects(remote_state.inventory)))
    siblings, label = home_state.sibling_nodes, home_state.identity.node_label
    kept: dict[str, str] = {}
    for _ in range(MAX_ROUNDS):
        found = remote_state.inventory = await collect(home, remote, home_state)
        for obj in _objects(found):
            if uid_of(obj) not in known:
                known.add(uid_of(obj))
                notify(f"remote: {describe(obj)} was created after the confirmation; removing it")
        kept |= await delete_inventory(
            remote,
            found,
            # This node, and nodes that no longer exist, use no namespace any more.
            has_ended=lambda it: it == label or (siblings is not None and it not in siblings),
            timeout=settings.timeout,
            hint="leave again to keep waiting, or with --force to leave them behind",
            notify=notify,
        )
        left = await collect(home, remote, home_state)
        if not remaining_objects(left, kept):
            break
    else:
        raise PreflightError(
            f"remote: objects of node {settings.name} keep appearing ({format_counts(left)}): a "
            "bridge that cannot be detected from here still serves it. Stop it and leave again"
        )
    for name, reason in kept.items():
        notify(Caveat(f"remote: namespace {name} stays: {reason}"))


async def delete_inventory(
    remote: KubeClient,
    inventory: Inventory,
    *,
    has_ended: Callable[[str], bool],
    timeout: float,
    hint: str,
    notify: Notify,
) -> dict[str, str]:
    """Deletes the pods, and after their termination the copies, the unfinished PVCs, and the
    namespaces that are empty and used only by nodes that ``has_ended`` (by label value).

    Returns the namespaces that stay, with the reason. Raises PreflightError, which ends with
    ``hint``, if pods do not terminate within ``timeout`` seconds, and KubeError.
    """
    left = len(inventory.pods)

    def waiting(count: int) -> None:
        nonlocal left
        left = count
        notify(Waiting(f"remote: {count} pod(s) are terminating"))

    try:
        async with asyncio.timeout(timeout):
            await remote_inventory.delete_pods(remote, inventory.pods, waiting=waiting)
    except TimeoutError:
        raise PreflightError(
            f"remote: {left} pod(s) have not terminated after {timeout:.0f} s (is their node "
            f"unreachable?); {hint}"
        ) from None
    await remote_inventory.delete_objects(remote, inventory.copies)
    await remote_inventory.transfer_shared_copies(remote, inventory.shared)
    await unfinished_claims.delete(remote, inventory.unfinished_claims, notify=notify)
    return dict(
        await remote_inventory.delete_namespaces(remote, inventory.namespaces, has_ended=has_ended)
    )


def remaining_objects(left: Inventory, kept: Mapping[str, str]) -> list[Object]:
    """The objects that `delete_inventory` should have deleted; ``kept`` is what it returned."""
    copies = [copy for _, copy in left.copies if not is_deleting(copy)]
    claims = [it for it in left.unfinished_claims if not is_deleting(it)]
    namespaces = [it for it in left.namespaces if not is_deleting(it) and name_of(it) not in kept]
    return [*left.pods, *copies, *claims, *namespaces]


def describe(obj: Object) -> str:
    """``Kind namespace/name``."""
    return f"{obj['kind']} {namespaced_name(obj)}"


def _objects(inventory: Inventory) -> list[Object]:
    copies = [copy for _, copy in inventory.copies]
    return [*inventory.pods, *copies, *inventory.unfinished_claims, *inventory.namespaces]
