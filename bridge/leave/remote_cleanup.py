"""What a virtual node that leaves has in the remote, and its removal.

`remove` takes the inventory itself, and again after each round, until nothing is left: the one that
was shown with the question is as old as the answer, and the bridges wrote until they ended. Objects
that still come after `ROUNDS` mean that a bridge writes which nobody sees from here, and are an
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bridge.base.errors import PreflightError
from bridge.leave.summary import HomeState, LeaveSettings, format_counts
from sync.cleanup import inventory
from sync.cleanup.inventory import Inventory
from sync.kube.client import KubeClient
from translators.identity import Identity
from translators.names import label_value
from translators.objects import Object, is_deleting, name_of, namespace_of, uid_of

#: Rounds of removal before objects that still come are an error.
ROUNDS = 5

Told = Callable[[str], None]


async def collect(remote: KubeClient, name: str, found: HomeState) -> Inventory:
    """What the node has in the remote. Raises KubeError."""
    identity = Identity(home_id=found.home_id, home_name=found.home_id[:8], node=name)
    return await inventory.take_inventory(remote, identity, others=found.sibling_nodes)


async def remove(
    remote: KubeClient, settings: LeaveSettings, found: HomeState, shown: Inventory, *, report: Told
) -> None:
    """Removes what the node has in the remote; ``shown`` is what the person agreed to, and becomes
    what was there last. Raises PreflightError where pods do not end in time or objects still come,
    and KubeError."""
    known = frozenset(map(uid_of, _all(shown)))
    kept: dict[str, str] = {}
    for _ in range(ROUNDS):
        _become(shown, await collect(remote, settings.name, found))
        for obj in _all(shown):
            if uid_of(obj) not in known:
                report(f"remote: {_named(obj)} came after the question, and is removed too")
        known |= set(map(uid_of, _all(shown)))
        await _remove_pods(remote, shown.pods, settings.timeout, told=report)
        await inventory.delete_copies(remote, shown.copies)
        await inventory.transfer_shared_copies(remote, shown.shared)
        has_ended = _has_ended(settings.name, found)
        left = await inventory.delete_namespaces(remote, shown.namespaces, has_ended=has_ended)
        kept |= dict(left)
        now = await collect(remote, settings.name, found)
        if not now.pods and not any(_is_left(obj, kept) for obj in _all(now)):
            break
    else:
        raise PreflightError(
            f"remote: objects of node {settings.name} keep coming ({format_counts(now)}): a bridge "
            "that cannot be seen from here still serves it. Stop that one and leave again"
        )
    for line in [f"namespace {name} stays: {why}" for name, why in kept.items()]:
        report(f"remote: {line}")


def _has_ended(name: str, found: HomeState) -> Callable[[str], bool]:
    """Whether a virtual node needs no namespace any more: this one, and those that are no more."""
    label = label_value(name)

    def has_ended(node: str) -> bool:
        return node == label or (
            found.sibling_nodes is not None and node not in found.sibling_nodes
        )

    return has_ended


def _is_left(obj: Object, kept: dict[str, str]) -> bool:
    """Whether the object should be gone, or going. A namespace that stays has its reason."""
    return not is_deleting(obj) and not (obj.get("kind") == "Namespace" and name_of(obj) in kept)


async def _remove_pods(
    remote: KubeClient, pods: list[Object], timeout: float, *, told: Told
) -> None:
    left = len(pods)

    def waiting(now: int) -> None:
        nonlocal left
        left = now
        told(f"remote: {now} pod(s) are ending")

    try:
        async with asyncio.timeout(timeout):
            await inventory.delete_pods(remote, pods, waiting=waiting)
    except TimeoutError:
        raise PreflightError(
            f"remote: {left} pod(s) have not ended in {timeout:.0f} s (is their machine away?); "
            "leave again to wait on, or with --force to leave them behind"
        ) from None


def _all(ours: Inventory) -> Iterable[Object]:
    return [*ours.pods, *(copy for _, copy in ours.copies), *ours.namespaces]


def _become(shown: Inventory, now: Inventory) -> None:
    shown.pods, shown.copies = now.pods, now.copies
    shown.namespaces, shown.shared = now.namespaces, now.shared


def _named(obj: Object) -> str:
    where = namespace_of(obj)
    return f"{obj['kind']} {where}/{name_of(obj)}" if where else f"{obj['kind']} {name_of(obj)}"
