"""What a join decided once, and every translation and plan of it relies on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from translators.naming import Identity

#: What becomes of pods of DaemonSets that are bound to the virtual node.
DaemonSets = Literal["skip", "run"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Who we are, and what the person who joined chose. It does not change while we run."""

    identity: Identity
    node_address: str
    """The virtual node's IP address, which is its pods' ``status.hostIP``."""
    daemonsets: DaemonSets = "skip"
    """Whether pods of DaemonSets run in the remote, or are told that they do not."""
