"""Network namespaces of the clusters, joined by one bridge per set.

Each cluster has a namespace with one interface on the bridge. Every cluster has a route to every
other cluster's pods through its node, and the host has routes to all pods and services. There is no
NAT and no rule outside the namespaces, so the host's firewall and forwarding setting are unchanged:
traffic between clusters crosses the bridge and is not forwarded.

All steps are idempotent: existing objects are left alone, absent ones are no error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from e2e.clusters.addresses import Plan
from e2e.clusters.run_command import run

# Where iproute2 keeps named namespaces.
NAMESPACES = Path("/var/run/netns")
INTERFACE = "eth0"

# Held while a set of this machine chooses its addresses.
ADDRESS_LOCK = Path("/run/lock/cluster-bridge-addresses.lock")


@dataclass(frozen=True, slots=True)
class Network:
    """The network of one cluster; all clusters of the set share `bridge`."""

    prefix: str
    name: str
    plan: Plan

    @property
    def bridge(self) -> str:
        """The bridge's name."""
        return bridge_name(self.prefix)

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return f"{self.prefix}-{self.name}"

    @property
    def path(self) -> Path:
        """The namespace's file."""
        return NAMESPACES / self.namespace

    @property
    def port(self) -> str:
        """The host's end of the cluster's veth pair, a port of the bridge."""
        return f"{self.prefix}-v{self.plan.index}"

    def create(self) -> None:
        """Creates the bridge, the namespace and the host's routes."""
        create_bridge(self.bridge, self.plan)
        if not self.path.exists():
            run(["ip", "netns", "add", self.namespace])
        if not exists(self.port):
            peer = ["peer", "name", INTERFACE, "netns", self.namespace]
            run(["ip", "link", "add", self.port, "type", "veth", *peer])
        batch([f"link set {self.port} master {self.bridge} up"])
        batch(
            [
                "link set lo up",
                f"addr replace {self.plan.node} dev {INTERFACE}",
                f"link set {INTERFACE} up",
                f"route replace default via {self.plan.host}",
            ],
            namespace=self.namespace,
        )
        forward(self.path)
        batch(
            f"route replace {network} via {self.plan.node.ip} dev {self.bridge}"
            for network in (self.plan.pods, self.plan.services)
        )

    def reach(self, others: Iterable[Network]) -> None:
        """Adds routes to the pods of other clusters."""
        routes = [
            f"route replace {other.plan.pods} via {other.plan.node.ip}"
            for other in others
            if other.name != self.name
        ]
        if routes:
            batch(routes, namespace=self.namespace)

    def route(self, pods: str, via: str | None) -> None:
        """Routes `pods` through that node; None makes them unreachable."""
        way = f"{pods} via {via}" if via is not None else f"unreachable {pods}"
        batch([f"route replace {way}"], namespace=self.namespace)

    def connect(self, *, connected: bool) -> None:
        """Sets the host's end of the veth pair up or down; routes and addresses stay."""
        run(["ip", "link", "set", self.port, "up" if connected else "down"])

    def delete(self) -> None:
        """Removes veth pair and namespace, and with them their routes."""
        for route in (self.plan.pods, self.plan.services):
            run(["ip", "route", "del", str(route), "dev", self.bridge], check=False)
        # The namespace ends with its last process and mount only; the veth pair ends at once.
        if exists(self.port):
            run(["ip", "link", "del", self.port], check=False)
        if self.path.exists():
            run(["ip", "netns", "del", self.namespace])


def exists(interface: str) -> bool:
    """Whether the host has an interface of that name."""
    return Path("/sys/class/net", interface).exists()


def bridge_name(prefix: str) -> str:
    """The name of a set's bridge."""
    return f"{prefix}-br"


def create_bridge(name: str, plan: Plan) -> None:
    """Creates the bridge of a set, with the host's address on it."""
    if not exists(name):
        run(["ip", "link", "add", name, "type", "bridge"])
    batch([f"addr replace {plan.bridge} dev {name}", f"link set {name} up"])


def delete_bridge(name: str) -> None:
    """Removes the bridge of a set."""
    if exists(name):
        run(["ip", "link", "del", name])


def forward(namespace: Path) -> None:
    """Enables IP forwarding in a namespace."""
    script = "printf 1 >/proc/sys/net/ipv4/ip_forward"
    run(["nsenter", f"--net={namespace}", "--", "sh", "-c", script])


def networks_in_use() -> list[IPv4Network]:
    """Networks that this machine has an address in or a route to, except the default route."""
    found = []
    for address in json.loads(run(["ip", "-json", "-4", "address", "show"]).stdout):
        for info in address.get("addr_info", []):
            text = f"{info['local']}/{info['prefixlen']}"
            found.append(IPv4Network(text, strict=False))
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout)
    destinations = [route["dst"] for route in routes if route["dst"] != "default"]
    return found + [IPv4Network(destination, strict=False) for destination in destinations]


def batch(commands: Iterable[str], *, namespace: str | None = None) -> None:
    """Runs several `ip` commands in one process; stops at the first failure."""
    where = ["-netns", namespace] if namespace else []
    run(["ip", *where, "-batch", "-"], input="\n".join(commands) + "\n")
