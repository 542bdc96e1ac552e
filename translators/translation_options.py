"""The options of a join that translation and planning depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from translators.home_ranges import NO_RANGES, HomeRanges
from translators.pod_security import PodSecurityLevel
from translators.virtual_node_identity import Identity

#: How pods of the two clusters reach each other. ``flat``: pod IPs are routed in both clusters.
#: ``relay``: the bridge forwards connections from home's Services to pods in the remote
#: (`translators.relay.forward_plan`). ``none``: pods of different clusters cannot connect.
Network = Literal["flat", "relay", "none"]
#: How the bridge handles DaemonSet pods that are bound to the virtual node.
DaemonSets = Literal["skip", "run"]
#: The service account identity of pods (`translators.pods.service_accounts`).
ServiceAccounts = Literal["home", "remote", "none"]
#: Whether pods may tolerate the taints of the remote's control plane nodes
#: (`translators.pods.scheduling_fields`).
ControlPlaneNodes = Literal["deny", "allow"]
#: The treatment of PersistentVolumeClaims. ``provision``: the bridge is the provisioner of home's
#: StorageClasses that name it, and a pod uses the remote PVC of its home PVC
#: (`translators.storage`). ``none``: a pod uses the remote's PVC of the same name.
Storage = Literal["provision", "none"]


class HostPort(NamedTuple):
    """A server's address; the host is a name, an IPv4 or an IPv6 address (without brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PodMetadata(NamedTuple):
    """Patterns of labels and annotations of pods, in addition to those that are dropped by default
    (`translators.pods.dropped_metadata`)."""

    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """These win, also over the default."""

    @classmethod
    def from_actions(cls, actions: Mapping[str, str]) -> PodMetadata:
        """From a map of patterns to ``drop`` or ``keep``, as the option has it; other values are
        ignored."""
        drop, keep = (
            tuple(pattern for pattern, found in actions.items() if found == action)
            for action in ("drop", "keep")
        )
        return cls(drop, keep)

    @property
    def actions(self) -> dict[str, str]:
        """The map of `from_actions`."""
        return dict.fromkeys(self.drop, "drop") | dict.fromkeys(self.keep, "keep")


def _no_ranges() -> HomeRanges:
    return NO_RANGES


@dataclass(frozen=True, slots=True)
class ClusterReads:
    """The resources that the bridge reads in the whole remote. With prepared namespaces, it reads
    the namespaced others in these alone, the prepared Namespaces by name, and no Node and no
    PriorityClass."""

    nodes: bool = True
    namespaces: bool = True
    pods: bool = True
    priority_classes: bool = True
    resource_quotas: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """The identity of the virtual node and the options of its join. Immutable."""

    identity: Identity
    node_address: str
    """The virtual node's IP address, which is its pods' ``status.hostIP``."""
    network: Network = "flat"
    remote_pod_cidrs: tuple[str, ...] = ()
    """Networks of the remote's pods; () does not limit the pod IPs that are copied to home."""
    home_addresses: tuple[str, ...] = ()
    """Addresses, or names, of home's own servers, which no pod of the remote has."""
    home_ranges: Callable[[], HomeRanges] = _no_ranges
    """Returns home's own ranges as last read."""
    relay_address: str = ""
    """The IP address at home where the bridge listens for the relay; "" disables forwarding."""
    relay_cidr: str = ""
    """Addresses at home for pods behind headless Services; "" for none."""
    relay_image: str = ""
    """Image of the relay agent in the remote; "" disables reverse forwarding."""
    daemonsets: DaemonSets = "skip"
    """``skip`` does not run DaemonSet pods, and reports them as available."""
    service_accounts: ServiceAccounts = "home"
    home_api: HostPort | None = None
    """Address of home's API server for pods; None if the mode needs none."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the remote's nodes that the virtual node stands for; {} selects all."""
    control_plane_nodes: ControlPlaneNodes = "deny"
    pod_security: PodSecurityLevel = "privileged"
    """The loosest level of namespaces that the bridge creates (`translators.pod_security`)."""
    pod_metadata: PodMetadata = field(default_factory=PodMetadata)
    unschedulable_timeout: float | None = None
    """Seconds until a pod that the remote cannot schedule fails at home; None waits forever."""

    storage: Storage = "none"
    snapshots: bool = False
    """Whether both sides have VolumeSnapshots, and the permissions are granted."""
    remote_id: str = ""
    """The remote's identity; needed to provision volumes."""
    remote_namespaces: tuple[str, ...] = ()
    """The remote's prepared namespaces, if the bridge works in these alone and creates none."""
    cluster_reads: ClusterReads = field(default_factory=ClusterReads)
    """The reads of the whole remote that are granted; all without ``remote_namespaces``."""

    @property
    def node_selection(self) -> str:
        """``node_selector`` as a label selector."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.node_selector.items()))
