"""Control of a running kind cluster: see `e2e.clusters.cluster.Control`.

The control plane's components are static pods of the node; kubelet and containerd are its services.
A static pod is stopped by moving its manifest away, a service by systemd; both are killed after
their grace period, as by the native backend.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.clusters import (
    csi_driver,
    docker_engine,
    go_build,
    go_recipes,
    metrics_server,
    native_network,
    provisioners,
    snapshot_controller,
)
from e2e.clusters.cluster import SNAPSHOT_CONTROLLER, CsiPart, Progress, Provisioner
from e2e.clusters.docker_engine import Engine
from e2e.clusters.errors import StartFailed
from e2e.clusters.native_control_plane import METRICS
from e2e.clusters.processes import POLL
from e2e.clusters.run_command import run

NODE_SUFFIX = "-control-plane"
_WORKER_SUFFIX = "-worker"

_MANIFESTS = "/etc/kubernetes/manifests"
_STOPPED = "/etc/kubernetes/stopped"
_STATIC = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_SERVICES = ("kubelet", "containerd")

_LOAD_TIMEOUT = 300.0
_GONE_TIMEOUT = 60.0
_METRICS_TIMEOUT = 60.0
# The kernel truncates program names to this length.
_COMM = 15

#: Chains that drop packets to and from other machines; the node's own packets pass.
_CUTS = (
    ("raw", "PREROUTING", "-i"),
    ("mangle", "POSTROUTING", "-o"),
)
_METRICS_API = "/apis/metrics.k8s.io/v1beta1/nodes"
_ADMIN = "/etc/kubernetes/admin.conf"
_VOLUMES = "/var/lib/cluster-bridge-volumes"
_CSI = Path("/var/lib/cluster-bridge-csi")
_PLUGINS = Path("/var/lib/kubelet/plugins_registry")


def worker_name(cluster: str, number: int) -> str:
    """The container of a cluster's n-th worker, counted from 1, as named by kind."""
    return f"{cluster}{_WORKER_SUFFIX}{number if number > 1 else ''}"


def _unit(service: str) -> str:
    return f"/etc/systemd/system/{service}.service"


@dataclass(frozen=True, slots=True)
class KindControl:
    """Controls the cluster's nodes, which are containers; components are the control plane's."""

    program: Path
    engine: Engine
    cluster: str
    cache: Path
    kubectl: tuple[str | Path, ...]
    node_count: int = 1

    @property
    def node(self) -> str:
        """The control plane's container."""
        return f"{self.cluster}{NODE_SUFFIX}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The containers of all nodes, the control plane's first."""
        return (self.node, *(worker_name(self.cluster, n) for n in range(1, self.node_count)))

    def components(self) -> dict[str, bool]:
        static = {name: bool(self._pids(name)) for name in _STATIC}
        return static | {name: self._active(name) for name in self._services()}

    def pid(self, component: str) -> int | None:
        processes = self.engine.docker("top", self.node, "-eo", "pid,comm", check=False).stdout
        for line in processes.splitlines()[1:]:
            pid, _, name = line.strip().partition(" ")
            if name.strip() == component[:_COMM]:
                return int(pid)
        return None

    def stop(self, component: str, *, grace: float) -> None:
        if component in _STATIC:
            self.inside("mkdir", "-p", _STOPPED)
            self.inside("mv", f"{_MANIFESTS}/{component}.yaml", _STOPPED, check=False)
            self._signal(component, "TERM" if grace > 0 else "KILL")
        elif grace > 0:
            self.inside("systemctl", "stop", "--no-block", component)
        else:
            # systemd restarts a killed service, but not a stopped one.
            self.inside("systemctl", "stop", "--no-block", component)
            self._signal(component, "KILL")
        self._wait_gone(component, grace)

    def start(self, component: str) -> None:
        if component in _STATIC:
            self.inside("mv", f"{_STOPPED}/{component}.yaml", _MANIFESTS, check=False)
        else:
            self.inside("systemctl", "start", component)

    def suspend(self, component: str, *, suspended: bool) -> None:
        self._signal(component, "STOP" if suspended else "CONT")

    def restart_ended(self) -> dict[str, str]:
        return {}  # The kubelet restarts static pods, and systemd the services.

    def connect(self, *, connected: bool) -> None:
        addresses = {it: self._address(it) for it in self.nodes} if self.node_count > 1 else {}
        for node in self.nodes:
            others = [address for other, address in addresses.items() if other != node]
            for table, chain, direction in _CUTS:
                # iptables evaluates the rule that was inserted last first.
                rules: list[tuple[str, ...]] = [("-j", "DROP")]
                source = "-s" if direction == "-i" else "-d"
                rules += [(source, other, "-j", "ACCEPT") for other in others]
                for rule in rules:
                    whole = (chain, direction, "eth0", *rule)
                    self._set_rule(node, table, whole, wanted=not connected)

    def _set_rule(self, node: str, table: str, rule: tuple[str, ...], *, wanted: bool) -> None:
        filtering = ("iptables", "--wait", "--table", table)
        there = self._succeeds(*filtering, "-C", *rule, node=node)
        if there != wanted:
            self.inside(*filtering, "-I" if wanted else "-D", *rule, node=node)

    def pod_routes(self, pods: str, address: str) -> dict[str, str]:
        # Routed through another node, only the first packet would arrive: replies take the direct
        # route, and a node drops a connection of which it sees one direction.
        return dict(self._pod_ranges().values()) if self.node_count > 1 else {pods: address}

    def _pod_ranges(self) -> dict[str, tuple[str, str]]:
        """Node name → the range of its pods, and its address."""
        listed = json.loads(self._kubectl("get", "nodes", "--output", "json"))["items"]
        return {
            it["metadata"]["name"]: (
                it["spec"]["podCIDR"],
                next(a["address"] for a in it["status"]["addresses"] if a["type"] == "InternalIP"),
            )
            for it in listed
        }

    def route(self, pods: str, via: str | None) -> None:
        hop = docker_engine.hop(self.engine)
        if hop is not None and via == docker_engine.host_address(self.engine):
            # This machine is behind the engine's namespace, which is the nodes' gateway.
            native_network.batch([f"route replace {pods} via {via}"], namespace=hop.namespace)
            via = self.inside("ip", "route", "show", "default").split()[2]
        way = (pods, "via", via) if via is not None else ("unreachable", pods)
        for node in self.nodes:
            self.inside("ip", "route", "replace", *way, node=node)

    def join_nodes(self) -> None:
        """Adds routes to the pods of the other nodes to each node, and exempts that traffic from
        source NAT. The published image has kindnetd, which does the same.
        """
        known = self._pod_ranges()
        for node, (own, _) in known.items():
            for other, (theirs, address) in known.items():
                if other != node:
                    way = (theirs, "via", address)
                    self.inside("ip", "route", "replace", *way, node=node)
                    unchanged = ("POSTROUTING", "-s", own, "-d", theirs, "-j", "ACCEPT")
                    self._set_rule(node, "nat", unchanged, wanted=True)

    def load(self, archive: Path) -> None:
        command: list[str | Path] = [
            self.program,
            "load",
            "image-archive",
            archive,
            "--name",
            self.cluster,
        ]
        run(command, env=self.engine.environment, timeout=_LOAD_TIMEOUT)

    def serve_metrics(self, say: Progress) -> None:
        if not self._has_service(METRICS):
            folder = go_build.programs(go_recipes.add_ons(), self.cache, say)
            program = self._install(folder / METRICS)
            self._create_service(
                METRICS, metrics_server.command(program, _ADMIN, f"/var/lib/{METRICS}")
            )
            self._create(metrics_server.objects(self._address()))
        self.start(METRICS)
        deadline = time.monotonic() + _METRICS_TIMEOUT
        while not self._kubectl("get", "--raw", _METRICS_API, check=False):
            if time.monotonic() > deadline:
                log = self.inside("journalctl", "-u", METRICS, "-n", "20", "--no-pager")
                raise StartFailed(f"{self.cluster}: {METRICS} does not answer:\n{log}")
            time.sleep(POLL)

    def provision_volumes(self, provisioner: Provisioner, say: Progress) -> None:
        if provisioner is Provisioner.LOCAL_PATH and self._kubectl(
            *("get", "deployments", "--namespace", provisioners.LOCAL_PATH_NAMESPACE),
            *("--output", "name"),
        ):
            return  # The published node image has it.
        if not self._has_service(provisioner):
            folder = go_build.programs(go_recipes.add_ons(), self.cache, say)
            program = self._install(folder / provisioner)
            node = self.nodes[-1]  # With workers, the control plane's node runs no pods.
            words = provisioners.command(provisioner, program, _ADMIN, _VOLUMES, node)
            self._create_service(provisioner, words)
            self._create(provisioners.objects(provisioner))
        self.start(provisioner)

    def control_snapshots(self, say: Progress) -> None:
        if not self._has_service(SNAPSHOT_CONTROLLER):
            folder = go_build.programs(go_recipes.snapshot_controller(), self.cache, say)
            program = self._install(folder / SNAPSHOT_CONTROLLER)
            self._create_service(SNAPSHOT_CONTROLLER, snapshot_controller.command(program, _ADMIN))
        self.start(SNAPSHOT_CONTROLLER)

    def run_csi(self, part: CsiPart, say: Progress) -> None:
        if not self._has_service(part):
            folder = go_build.programs(csi_driver.recipe(part), self.cache, say)
            program = self._install(folder / part)
            place = csi_driver.Place(Path(_ADMIN), _CSI, _PLUGINS, self.node)
            self._create_service(part, csi_driver.command(part, program, place))
            if part is CsiPart.DRIVER:
                self._create([csi_driver.csi_driver_object()])
        self.start(part)

    def remove(self, component: str) -> None:
        if self._has_service(component):
            self.stop(component, grace=10)
            self.inside("rm", _unit(component))
            self.inside("systemctl", "daemon-reload")

    def _has_service(self, name: str) -> bool:
        return self._succeeds("test", "-e", _unit(name))

    def _install(self, program: Path) -> str:
        """Copies a program to the control plane's node; returns its path there."""
        path = f"/usr/local/bin/{program.name}"
        self.engine.docker("cp", program, f"{self.node}:{path}")
        return path

    def _create_service(self, name: str, command: Sequence[str | Path]) -> None:
        start = " ".join(shlex.quote(str(word)) for word in command)
        unit = f"[Service]\nExecStart={start}\nRestart=on-failure\n"
        self.inside("sh", "-c", f"cat >{_unit(name)}", text=unit)
        self.inside("systemctl", "daemon-reload")

    def _create(self, objects: Sequence[tuple[str, dict[str, Any]]]) -> None:
        for path, body in objects:
            self._kubectl("create", "--raw", path, "-f", "-", text=json.dumps(body))

    def inside(
        self, *argv: str, check: bool = True, text: str | None = None, node: str | None = None
    ) -> str:
        """Runs a command in a node, by default the control plane's; returns its standard output."""
        interactive = () if text is None else ("--interactive",)
        command = ("exec", *interactive, node or self.node, *argv)
        return self.engine.docker(*command, check=check, input=text).stdout

    def _kubectl(self, *argv: str, check: bool = True, text: str | None = None) -> str:
        command: list[str | Path] = [*self.kubectl, *argv]
        return run(command, check=check, input=text).stdout

    def _succeeds(self, *argv: str, node: str | None = None) -> bool:
        command = ("exec", node or self.node, *argv)
        return self.engine.docker(*command, check=False).returncode == 0

    def _services(self) -> tuple[str, ...]:
        return (
            *_SERVICES,
            *filter(self._has_service, (METRICS, *Provisioner, SNAPSHOT_CONTROLLER, *CsiPart)),
        )

    def _active(self, service: str) -> bool:
        state = self.inside("systemctl", "is-active", service, check=False).strip()
        return state in {"active", "reloading"}

    def _address(self, node: str | None = None) -> str:
        return self.inside("hostname", "--ip-address", node=node).split()[0]

    def _pids(self, component: str) -> list[str]:
        return self.inside("pgrep", "-x", component[:_COMM], check=False).split()

    def _signal(self, component: str, name: str) -> None:
        self.inside("pkill", f"-{name}", "-x", component[:_COMM], check=False)

    def _wait_gone(self, component: str, grace: float) -> None:
        started = time.monotonic()
        while pids := self._pids(component):
            waited = time.monotonic() - started
            if waited > grace:
                self._signal(component, "KILL")
            if waited > grace + _GONE_TIMEOUT:
                raise StartFailed(
                    f"{component} does not end: process {', '.join(pids)}",
                    where=self.node,
                    next_step="take the clusters down",
                )
            time.sleep(POLL)
