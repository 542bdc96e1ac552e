"""What bridges have left in a remote, seen from the remote alone: to be listed, and removed.

Nothing is asked of any home, which may be gone for ever. So nobody can say whether a bridge still
looks after these objects: what is told is when one last wrote any of them, and the person decides.
Only objects with labels and annotations of ours are looked at (`sync.cleanup.belongings`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge import leaving
from bridge.preflight.checks import PreflightError, connected, explained
from sync import cleanup
from sync.cleanup import Belongings
from sync.kube.client import KubeClient
from sync.kube.kubeconfig import KubeconfigRef
from sync.mirror import RESOURCES
from translators import relayback

_HEAD = ("HOME", "NODE", "PODS", *(it.plural.upper() for it in RESOURCES), "NAMESPACES", "WRITTEN")


@dataclass(frozen=True, slots=True)
class GarbageSettings:
    """What `bridge garbage` was asked for."""

    remote: KubeconfigRef
    home: str = ""
    """The home whose objects are removed; "" lists those of all."""
    node: str = ""
    """Of that home's virtual nodes this one alone; "" for all."""
    timeout: float = leaving.TIMEOUT
    """The longest wait for pods to end, in seconds."""


async def listed(settings: GarbageSettings, *, told: Callable[[str], None]) -> list[str]:
    """The lines of a table: who has what. Empty where nobody has anything."""
    async with connected(settings.remote, side="remote", told=told) as remote:
        with explained("remote"):
            found = await cleanup.belongings(remote)
    return table(found) if found else []


async def remove(
    settings: GarbageSettings,
    *,
    told: Callable[[str], None],
    agree: Callable[[list[str]], bool],
) -> bool:
    """Removes what the home, or one virtual node of it, has there, if ``agree`` says yes to the
    lines that tell what that is. Returns whether it did. Raises PreflightError."""
    async with connected(settings.remote, side="remote", told=told) as remote:
        with explained("remote"):
            found = await cleanup.belongings(remote, settings.home, settings.node)
            for its in found:
                told(
                    f"remote: home {its.home} wrote objects of its node {its.node} last at "
                    f"{its.last_written}; if a bridge still serves that node, stop it first: it "
                    "would make all of them again"
                )
            lines = [line for its in found for line in leaving.in_remote(its)]
            if not agree(lines):
                return False
            await _remove(remote, found, settings.timeout, told=told)
    told(f"remote: what home {settings.home} had here is gone" if found else "remote: unchanged")
    return True


async def _remove(
    remote: KubeClient, found: Sequence[Belongings], timeout: float, *, told: Callable[[str], None]
) -> None:
    pods = [pod for its in found for pod in its.pods]
    try:
        async with asyncio.timeout(timeout):
            await cleanup.remove_pods(
                remote, pods, waiting=lambda left: told(f"remote: {left} pod(s) are ending")
            )
    except TimeoutError:
        raise PreflightError(
            f"remote: not all pods have ended in {timeout:.0f} s (is their machine away?); the "
            "rest is as it was. Try again later"
        ) from None
    await cleanup.remove_copies(remote, [copy for its in found for copy in its.copies])
    namespaces = [namespace for its in found for namespace in its.namespaces]
    for namespace, why in await cleanup.remove_namespaces(remote, namespaces):
        told(f"remote: namespace {namespace} stays: {why}")


def table(found: Sequence[Belongings]) -> list[str]:
    """A line for each home and node, under a head, in columns."""
    rows = [_HEAD]
    for its in found:
        copies = Counter(resource for resource, _ in its.copies)
        pods = sum(relayback.home_of(pod) is None for pod in its.pods)
        counts = [pods, *(copies[it] for it in RESOURCES), len(its.namespaces)]
        rows.append((its.home, its.node, *map(str, counts), its.last_written))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
