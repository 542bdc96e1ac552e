"""What the kubelet API has to know about pods, as a protocol that its caller implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sync.kube.resources import Object
from translators.identity import Origin


@dataclass(frozen=True, slots=True)
class RemotePod:
    """Where a home pod runs: its pod in the remote, and the containers that it has there."""

    namespace: str
    name: str
    containers: frozenset[str]
    """The names of all its containers: init and ephemeral ones are among them."""


@dataclass(frozen=True, slots=True)
class ScheduledPod:
    """A pod that a kubelet of the remote runs, and the home pod that it stands for."""

    home: Origin
    namespace: str
    name: str
    node: str
    """The remote's node; whoever else there has a pod of this name has another."""
    since: int = 0
    """When the remote's scheduler placed it, in milliseconds since 1970; 0: unknown."""


class PodDirectory(Protocol):
    """Finds pods by what home calls them. Answers from caches; called on the event loop."""

    def find_remote_pod(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        """The remote pod of a home pod that is bound to our node; None when there is none (yet).

        With ``uid``, only the home pod with this UID counts: another that has taken the name
        since is not the one that is meant.
        """

    def home_pods(self) -> list[Object]:
        """The home pods that are bound to our node, as home has them."""

    def scheduled_pods(self) -> list[ScheduledPod]:
        """Where the remote pods of our node are: those that the remote's scheduler has placed."""
