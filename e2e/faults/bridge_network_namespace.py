"""A network namespace for the bridge alone, on the clusters' network: what breaks in it breaks
between the bridge and an API server, and for nobody else.

It needs clusters that are namespaces of this machine (the native backend). Rules are iptables' and
tc's, in that namespace: the machine's own are never touched. This machine's kernel may lack netem:
then delays are a proxy's (`e2e.faults.faulty_proxy`), and losses iptables' (`statistic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from e2e.clusters.cluster import Cluster, Settings
from e2e.clusters.native_network import INTERFACE, NAMESPACES, bridge_name, exists
from e2e.clusters.run_command import run

#: The bridge's address in the clusters' network: its last ones belong to nobody.
_HOST = 250


@dataclass(frozen=True, slots=True)
class Line:
    """The namespace, and the line to the clusters. Use as a context manager."""

    prefix: str
    gateway: str
    """This machine's address in the clusters' network."""

    @classmethod
    def of(cls, settings: Settings, home: Cluster) -> Line:
        """That of a set of clusters."""
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
        """What runs a command in it."""
        return ["nsenter", f"--net={NAMESPACES / self.namespace}", "--"]

    def __enter__(self) -> Line:
        self._remove()  # what an interrupted run has left
        cable = f"{self.prefix}-vl"
        run(["ip", "netns", "add", self.namespace])
        peer = ["peer", "name", INTERFACE, "netns", self.namespace]
        run(["ip", "link", "add", cable, "type", "veth", *peer])
        run(["ip", "link", "set", cable, "master", bridge_name(self.prefix), "up"])
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

    # -- what breaks -------------------------------------------------------------------------

    def drop(self, cluster: Cluster, *, sent: bool = True, received: bool = True) -> None:
        """Packets vanish: those that the bridge sends, those that it is sent, or both."""
        if sent:
            self._rule("OUTPUT", "-d", cluster, "-j", "DROP")
        if received:
            self._rule("INPUT", "-s", cluster, "-j", "DROP")

    def lose(self, cluster: Cluster, share: float) -> None:
        """A share of all packets vanishes, in both directions."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{share:.3f}")
        self._rule("OUTPUT", "-d", cluster, *chance, "-j", "DROP")
        self._rule("INPUT", "-s", cluster, *chance, "-j", "DROP")

    def reset(self, cluster: Cluster) -> None:
        """Every packet is answered with a reset, to both ends: as by a firewall that has lost
        its state."""
        answer = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
        self._rule("OUTPUT", "-d", cluster, *answer)
        self._rule("INPUT", "-s", cluster, *answer)

    def end_connections(self, cluster: Cluster) -> None:
        """Every connection of the bridge to the API server is reset, once."""
        run([*self.through, "ss", "-K", "dst", cluster.node_ip], check=False)

    def slow(self, kilobits: int) -> None:
        """No more than so many kilobits a second go out, with queues in front of that."""
        rate = ["rate", f"{kilobits}kbit", "burst", "16kbit", "latency", "2s"]
        self._tc("add", *("root", "tbf", *rate))

    def heal(self) -> None:
        """Ends all of it."""
        run([*self.through, "iptables", "-w", "-F"])
        run([*self.through, "tc", "qdisc", "del", "dev", INTERFACE, "root"], check=False)

    def _rule(self, chain: str, which: str, cluster: Cluster, *rest: str) -> None:
        rule = ["iptables", "-w", "-A", chain, which, cluster.node_ip, *rest]
        run([*self.through, *rule])

    def _tc(self, verb: str, *rest: str) -> None:
        run([*self.through, "tc", "qdisc", verb, "dev", INTERFACE, *rest])
