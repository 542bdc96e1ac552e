"""What is looked at: two clusters as far as they are reached, and one virtual node between them.

A `Probe` is one look. It says what it needs, and is asked only where that is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from bridge.base.settings import JoinSettings
from bridge.checks.catalog import CHECKS
from bridge.checks.connectivity import Connectivity
from bridge.checks.report import Finding
from sync.kube.client import KubeClient
from translators.objects import Object, metadata

T = TypeVar("T")
Requirement = Literal["home", "remote", "node"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Before a join (``node`` is None), or of a node that exists."""

    settings: JoinSettings
    """What the join is asked for, or as far as the node tells."""
    name: str
    """The virtual node's."""
    home: Connectivity
    remote: Connectivity
    node: Object | None = None
    """The Node, where the check is of one that exists."""

    @property
    def home_client(self) -> KubeClient:
        """Home's client. Only for a probe that needs it."""
        return _there(self.home.client)

    @property
    def remote_client(self) -> KubeClient:
        """The remote's, likewise."""
        return _there(self.remote.client)

    @property
    def existing_node(self) -> Object:
        """The Node, likewise."""
        return _there(self.node)

    @property
    def annotations(self) -> dict[str, str]:
        """The Node's; none before a join."""
        return dict(metadata(self.node or {}).get("annotations") or {})

    def unavailable(self, need: Requirement) -> str:
        """Why what is needed is not there, in half a sentence; "" where it is."""
        if need == "node":
            return "" if self.node is not None else "there is no node yet"
        its = self.home if need == "home" else self.remote
        return "" if its.client is not None else its.unavailable_reason


@dataclass(frozen=True, slots=True)
class Implementation:
    """One look. ``id`` is that of its findings, where it cannot be made."""

    check_id: str
    run: Callable[[CheckContext], Awaitable[Sequence[Finding]]]
    needs: tuple[Requirement, ...]
    only_before_join: bool = False
    """Whether it is of use before a join alone."""

    def __post_init__(self) -> None:
        if self.check_id not in CHECKS:
            raise KeyError(self.check_id)


def _there(found: T | None) -> T:
    if found is None:
        raise RuntimeError("a probe asks for what it did not say that it needs")
    return found
