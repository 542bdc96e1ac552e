"""Finds and deletes what belongs to a leaving virtual node in the remote.

`remove` takes a new inventory before each round and repeats until nothing is left: the inventory
that the user confirmed is outdated, and bridges wrote until they were stopped. Objects that still
appear after `MAX_ROUNDS` rounds mean that a bridge which this machine cannot see is still writing;
that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.leave.leave_summary import HomeState, LeaveSettings, format_counts
from sync.cleanup import remote_inventory
from sync.cleanup.remote_inventory import Inventory
from sync.kube.client import KubeClient
from translators.names import label_value
from translators.objects import Object, is_deleting, name_of, namespace_of, uid_of
from translators.virtual_node_identity import Identity

#: Rounds of removal before objects that still appear are an error.
MAX_ROUNDS = 5


async def collect(remote: KubeClient, name: str, home_state: HomeState) -> Inventory:
    """The inventory of the node in the remote. Raises KubeError."""
    home_id = home_state.home_id
    identity = Identity(home_id=home_id, home_name=home_id[:8], node=name)
    return await remote_inventory.take_inventory(remote, identity, others=home_state.sibling_nodes)


async def remove(
    remote: KubeClient,
    settings: LeaveSettings,
    home_state: HomeState,
    confirmed: Inventory,
    *,
    notify: Notify,
) -> None:
    """Deletes what the node has in the remote. ``confirmed`` is what the user agreed to; it is
    updated to the last inventory, so that a failure leaves it with what is left. Raises
    PreflightError if pods do not terminate in time or objects keep appearing, and KubeError."""
    known = set(map(uid_of, _objects(confirmed)))
    kept: dict[str, str] = {}
    for _ in range(MAX_ROUNDS):
        _update(confirmed, await collect(remote, settings.name, home_state))
        for obj in _objects(confirmed):
            if uid_of(obj) not in known:
                known.add(uid_of(obj))
                notify(f"remote: {_describe(obj)} was created after the confirmation; removing it")
        await _delete_pods(remote, confirmed.pods, settings.timeout, notify=notify)
        await remote_inventory.delete_copies(remote, confirmed.copies)
        await remote_inventory.transfer_shared_copies(remote, confirmed.shared)
        kept |= dict(
            await remote_inventory.delete_namespaces(
                remote, confirmed.namespaces, has_ended=_has_ended(settings.name, home_state)
            )
        )
        left = await collect(remote, settings.name, home_state)
        if not left.pods and not any(_should_be_gone(obj, kept) for obj in _objects(left)):
            break
    else:
        raise PreflightError(
            f"remote: objects of node {settings.name} keep appearing ({format_counts(left)}): a "
            "bridge that cannot be detected from here still serves it. Stop it and leave again"
        )
    for name, reason in kept.items():
        notify(f"remote: namespace {name} stays: {reason}")


def _has_ended(name: str, home_state: HomeState) -> Callable[[str], bool]:
    """A predicate: whether a virtual node no longer uses any namespace. True for this node and for
    nodes that no longer exist."""
    label, siblings = label_value(name), home_state.sibling_nodes

    def has_ended(node: str) -> bool:
        return node == label or (siblings is not None and node not in siblings)

    return has_ended


def _should_be_gone(obj: Object, kept: dict[str, str]) -> bool:
    """Whether the object should have been deleted. ``kept`` are namespaces that stay on purpose."""
    return not is_deleting(obj) and not (obj.get("kind") == "Namespace" and name_of(obj) in kept)


async def _delete_pods(
    remote: KubeClient, pods: list[Object], timeout: float, *, notify: Notify
) -> None:
    left = len(pods)

    def waiting(count: int) -> None:
        nonlocal left
        left = count
        notify(f"remote: {count} pod(s) are terminating")

    try:
        async with asyncio.timeout(timeout):
            await remote_inventory.delete_pods(remote, pods, waiting=waiting)
    except TimeoutError:
        raise PreflightError(
            f"remote: {left} pod(s) have not terminated after {timeout:.0f} s (is their node "
            "unreachable?); leave again to keep waiting, or with --force to leave them behind"
        ) from None


def _objects(found: Inventory) -> list[Object]:
    return [*found.pods, *(copy for _, copy in found.copies), *found.namespaces]


def _update(outdated: Inventory, current: Inventory) -> None:
    outdated.pods, outdated.copies = current.pods, current.copies
    outdated.namespaces, outdated.shared = current.namespaces, current.shared


def _describe(obj: Object) -> str:
    namespace = namespace_of(obj)
    name = f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)
    return f"{obj['kind']} {name}"
