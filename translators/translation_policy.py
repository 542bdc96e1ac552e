"""What a join decided once, and every translation and plan of it relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from translators.identity import Identity

#: How pods of the two clusters reach each other: ``flat``, every pod has an address that is routed
#: in both; ``relay``, the bridge carries connections from home's Services to pods in the remote
#: (`translators.relay.forward`); ``none``, not at all.
Network = Literal["flat", "relay", "none"]
#: What becomes of pods of DaemonSets that are bound to the virtual node.
DaemonSets = Literal["skip", "run"]
#: Whose identity pods have towards an API server (`translators.pods.service_accounts`).
ServiceAccounts = Literal["home", "remote", "none"]


class HostPort(NamedTuple):
    """Where a server listens; the host may be a name, an IPv4 or an IPv6 address (no brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Who we are, and what the person who joined chose. It does not change while we run."""

    identity: Identity
    node_address: str
    """The virtual node's IP address, which is its pods' ``status.hostIP``."""
    network: Network = "flat"
    relay_address: str = ""
    """Where the bridge listens at home for that, an IP address; "" where it does not."""
    relay_cidr: str = ""
    """Addresses at home for pods behind headless Services (`translators.relay.headless`); "" where
    they have none."""
    relay_image: str = ""
    """What relay pods in the remote run, where the bridge carries connections from there to home
    (`translators.relay.reverse`); "" where it does not."""
    daemonsets: DaemonSets = "skip"
    """Whether pods of DaemonSets run in the remote, or are skipped and count as available."""
    service_accounts: ServiceAccounts = "home"
    home_api: HostPort | None = None
    """Where pods reach home's API server; None where the mode needs none."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the remote's nodes that this virtual node stands for; of all where it is empty."""
    unschedulable_timeout: float | None = None
    """Seconds after which a pod that the remote cannot place is given up; None: never."""

    @property
    def node_selection(self) -> str:
        """The label selector of these nodes."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.node_selector.items()))
