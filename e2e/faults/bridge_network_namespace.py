"""A network namespace for the bridge, in the clusters' network: faults in it affect the connections
between the bridge and an API server only.

Needs clusters in namespaces of this machine (the native backend). iptables and tc rules are set in
the namespace; those of the machine are never touched. This machine's kernel may lack netem: then a
proxy (`e2e.faults.faulty_proxy`) delays, and iptables (`statistic`) loses packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from e2e.clusters.cluster import Cluster, Settings
from e2e.clusters.native_network import INTERFACE, NAMESPACES, bridge_name, exists
from e2e.clusters.run_command import run

#: The bridge's host number in the clusters' network, whose last addresses are unused.
_HOST = 250


@dataclass(frozen=True, slots=True)
class BridgeNetwork:
    """The namespace and its connection to the clusters. Use as a context manager."""

    prefix: str
    gateway: str
    """This machine's address in the clusters' network."""

    @classmethod
    def of(cls, settings: Settings, home: Cluster) -> BridgeNetwork:
        """The namespace for a set of clusters."""
        return cls(settings.prefix, home.host_address)

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return f"{self.prefix}-line"

    @property
    def address(self) -> str:
        """The bridge's address."""
        return str(IPv4Address(int(IPv4Address(self.gateway)) & 0xFFFFFF00 | _HOST))

    @property
    def through(self) -> list[str | Path]:
        """The command prefix that runs a command in the namespace."""
        return ["nsenter", f"--net={NAMESPACES / self.namespace}", "--"]

    def __enter__(self) -> BridgeNetwork:
        self._remove()  # remains of an interrupted run
        veth = f"{self.prefix}-vl"
        run(["ip", "netns", "add", self.namespace])
        peer = ["peer", "name", INTERFACE, "netns", self.namespace]
        run(["ip", "link", "add", veth, "type", "veth", *peer])
        run(["ip", "link", "set", veth, "master", bridge_name(self.prefix), "up"])
        inside = ["ip", "-netns", self.namespace]
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "addr", "add", f"{self.address}/24", "dev", INTERFACE])
        run([*inside, "link", "set", INTERFACE, "up"])
        run([*inside, "route", "add", "default", "via", self.gateway])
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if exists(f"{self.prefix}-vl"):
            run(["ip", "link", "del", f"{self.prefix}-vl"])
        if (NAMESPACES / self.namespace).exists():
            run(["ip", "netns", "del", self.namespace])

    # -- faults ------------------------------------------------------------------------------

    def drop(self, cluster: Cluster, *, sent: bool = True, received: bool = True) -> None:
        """Drops the packets that the bridge sends, those that it receives, or both."""
        if sent:
            self._rule("OUTPUT", "-d", cluster, "-j", "DROP")
        if received:
            self._rule("INPUT", "-s", cluster, "-j", "DROP")

    def lose(self, cluster: Cluster, share: float) -> None:
        """Drops a share of all packets, in both directions."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.3f}")
        self._rule("OUTPUT", "-d", cluster, *chance, "-j", "DROP")
        self._rule("INPUT", "-s", cluster, *chance, "-j", "DROP")

    def reset(self, cluster: Cluster) -> None:
        """Answers every packet with a reset to both ends, as a firewall without state."""
        answer = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
        self._rule("OUTPUT", "-d", cluster, *answer)
        self._rule("INPUT", "-s", cluster, *answer)

    def end_connections(self, cluster: Cluster) -> None:
        """Resets every connection of the bridge to the API server, once."""
        run([*self.through, "ss", "-K", "dst", cluster.node_ip], check=False)

    def slow(self, kilobits: int) -> None:
        """Limits the sent traffic to so many kilobits a second, with a queue."""
        rate = ["rate", f"{kilobits}kbit", "burst", "16kbit", "latency", "2s"]
        self._tc("add", *("root", "tbf", *rate))

    def heal(self) -> None:
        """Ends all faults."""
        run([*self.through, "iptables", "-w", "-F"])
        run([*self.through, "tc", "qdisc", "del", "dev", INTERFACE, "root"], check=False)

    def _rule(self, chain: str, which: str, cluster: Cluster, *rest: str) -> None:
        rule = ["iptables", "-w", "-A", chain, which, cluster.node_ip, *rest]
        run([*self.through, *rule])

    def _tc(self, verb: str, *rest: str) -> None:
        run([*self.through, "tc", "qdisc", verb, "dev", INTERFACE, *rest])
