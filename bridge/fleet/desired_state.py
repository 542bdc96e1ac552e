"""The desired state of a fleet, and the interface of the sources that it comes from.

A source yields a whole state each time, never a change: a missed or repeated state harms nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bridge.base.join_settings import Part
from bridge.fleet.fleet_report import FleetReport
from sync.kube.kubeconfig_ref import KubeconfigRef


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All remotes that the process should serve or leave."""

    parts: tuple[Part, ...]
    warnings: tuple[str, ...] = ()
    """Changes of the source that do not take effect, each as a sentence."""
    elsewhere: Mapping[str, tuple[KubeconfigRef, str]] = field(default_factory=dict)
    """Remotes that are desired, and run in another replica: their home, and that replica's name, by
    key (`bridge.sharding`)."""
    is_read: bool = True
    """Whether the source was read; False if only the shares of replicas changed."""


@dataclass(frozen=True, slots=True)
class InvalidState:
    """The source has no valid state: the last valid one stays in effect."""

    error: str
    """Where the error is, its cause, and what to do, as one sentence without secrets."""


class FleetSource(Protocol):
    """Yields the desired state at the start, and again after changes."""

    @property
    def name(self) -> str:
        """The name of the source in messages, such as a file's."""

    @property
    def ends_with_last_node(self) -> bool:
        """Whether the process ends once `bridge leave` has removed all nodes."""

    def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        """The states, the newest last; a state may equal the one before. Raises nothing."""

    async def run(self, report: FleetReport) -> None:
        """Works for the source, beside `states`, until cancelled or done. ``report`` has the states
        of the remotes."""


@dataclass(frozen=True, slots=True)
class FixedSource:
    """A source whose state never changes."""

    parts: tuple[Part, ...]
    name: str = "the configuration"
    ends_with_last_node: bool = True

    async def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        """The one state."""
        yield DesiredState(self.parts)

    async def run(self, report: FleetReport) -> None:
        """Nothing to do."""


def by_key(parts: Iterable[Part]) -> Mapping[str, Part]:
    """The remotes by a key that stays when others are added, moved or removed: the node's name, or
    else the kubeconfig with its context, and ``#2`` for its second use."""
    found: dict[str, Part] = {}
    for part in parts:
        name = key = part.settings.name or str(part.settings.remote)
        number = 1
        while key in found:
            number += 1
            key = f"{name}#{number}"
        found[key] = part
    return found
