"""Settings and specifications of clusters, and the handle of a running cluster.

`Settings` apply to a set of clusters, `ClusterSpec` to one cluster; both validate themselves. A
`Cluster` is a handle without process or connection: `e2e.clusters.find` can re-create it at any
time from the record. Only what `restart_api_clients` would do is forgotten with a handle.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol

from e2e.clusters.errors import CommandFailed, InvalidRequest, StartFailed
from e2e.clusters.run_command import run
from e2e.clusters.versions import DEFAULT_KUBERNETES, KubernetesVersion

DEFAULT_NAMES = ("home", "remote")
DEFAULT_PREFIX = "cb"

# The kernel's limit for an interface name is 15 bytes; "PREFIX-v0" and "PREFIX-br" must fit. A~
# short prefix also keeps socket paths below their limit of 107 bytes too.
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,8}")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")

_NODES = re.compile(r"(real|simulated)(?:=(\d+))?")

# The longest path below a cluster's folder is a containerd socket; see _PREFIX for the limit.
LONGEST_STATE_DIR = 60


class Provisioner(StrEnum):
    """The name of a provisioner of PersistentVolumes, and of its component.

    `LOCAL_PATH` is rancher's, as in many small clusters: WaitForFirstConsumer and ReadWriteOnce
    only, no expansion, no capacity; pods create and delete its volumes. `HOSTPATH` is the tests'
    own, which supports all of these, and fails on request (`programs/hostpath_provisioner`).
    """

    LOCAL_PATH = "local-path-provisioner"
    HOSTPATH = "hostpath-provisioner"


class CsiPart(StrEnum):
    """A component of the tests' own CSI driver, in the order of their start; see
    `e2e.clusters.csi_driver`. All but the first are Kubernetes' sidecars."""

    DRIVER = "csi-driver"
    PROVISIONER = "csi-provisioner"
    ATTACHER = "csi-attacher"
    SNAPSHOTTER = "csi-snapshotter"


API_SERVER = "kube-apiserver"
#: Limit in seconds of a kubectl command without a timeout of its own.
KUBECTL_SECONDS = 60.0
#: How much longer than its own timeout a kubectl command may take: it reports what it waited for.
_REPORT_SECONDS = 15.0
_KUBECTL_TIMEOUT = re.compile(r"--timeout=(\d+)(s|m)")
#: Seconds until an API server that was started again is ready; 3 to 10 on an idle machine.
API_SERVER_SECONDS = 120.0
SNAPSHOT_CONTROLLER = "snapshot-controller"
#: Components that watch the API server, in the order of their start.
_API_CLIENTS = (
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "kwok",
    *Provisioner,
    SNAPSHOT_CONTROLLER,
    CsiPart.PROVISIONER,
    CsiPart.ATTACHER,
    CsiPart.SNAPSHOTTER,
)

#: A node can use 254 of its cluster's addresses for pods (`e2e.clusters.addresses`).
MAX_REAL_NODES = 16

# Sixteen sets of clusters, each with 65536 addresses, in a range that few networks use.
DEFAULT_NETWORK = IPv4Network("10.208.0.0/12")


class Backend(StrEnum):
    """The software that runs the clusters."""

    AUTO = "auto"
    KIND = "kind"
    NATIVE = "native"


class Nodes(StrEnum):
    """The kind of nodes: real ones with kubelet and containers, or ones simulated by KWOK."""

    REAL = "real"
    SIMULATED = "simulated"


def parse_nodes(text: str, count: int) -> tuple[Nodes, int]:
    """Parses `real`, `simulated` or `simulated=N`; `count` is the value of --node-count.

    :raises InvalidRequest: the text is none of these.
    """
    found = _NODES.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"no such nodes: {text!r}",
            where="--nodes",
            next_step="take real, simulated, or simulated=N",
        )
    return Nodes(found[1]), int(found[2]) if found[2] else count


def _default_folder(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "cluster-bridge"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The specification of one cluster."""

    name: str
    nodes: Nodes = Nodes.REAL
    node_count: int = 1
    dns: bool = True
    """Whether pods can resolve names; a native cluster without saves the build of CoreDNS."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name!r} is not a valid cluster name",
                next_step="take lower-case letters, digits and dashes, at most 20",
            )
        if self.node_count < 1 or (self.nodes is Nodes.REAL and self.node_count > MAX_REAL_NODES):
            raise InvalidRequest(
                f"{self.name} cannot have {self.node_count} {self.nodes} nodes",
                where="--node-count",
                next_step=f"up to {MAX_REAL_NODES} real nodes, or any number of simulated ones",
            )

    @property
    def several_real(self) -> bool:
        """Whether it has several real nodes: a control plane and workers."""
        return self.nodes is Nodes.REAL and self.node_count > 1


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a set of clusters. Sets with different prefixes coexist."""

    prefix: str = DEFAULT_PREFIX
    backend: Backend = Backend.AUTO
    kubernetes: KubernetesVersion = field(
        default_factory=lambda: KubernetesVersion.parse(DEFAULT_KUBERNETES)
    )
    network: IPv4Network = DEFAULT_NETWORK
    state_root: Path = field(
        default_factory=lambda: _default_folder("XDG_STATE_HOME", ".local/state")
    )
    cache: Path = field(default_factory=lambda: _default_folder("XDG_CACHE_HOME", ".cache"))
    node_image: str = "auto"
    """Image of kind's nodes: `auto`, `stock`, `local` (see `e2e.clusters.node_image`) or a name."""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidRequest(
                f"{self.prefix!r} is not a valid prefix",
                where="--prefix",
                next_step="take a lower-case letter and up to 8 letters or digits",
            )
        if len(str(self.state)) > LONGEST_STATE_DIR:
            raise InvalidRequest(
                f"{self.state} is too long for the sockets below it",
                where="--state-dir",
                next_step=f"take a folder of at most {LONGEST_STATE_DIR} characters",
            )
        if self.network.prefixlen > 16:
            raise InvalidRequest(
                f"{self.network} is too small", where="--network", next_step="take a /16 or larger"
            )

    @property
    def state(self) -> Path:
        """The folder of the set; `down` of the last cluster removes it."""
        return self.state_root.absolute() / self.prefix

    def folder(self, name: str) -> Path:
        """The folder of one cluster."""
        return self.state / name

    def kubeconfig(self, name: str) -> Path:
        """A cluster's kubeconfig file."""
        return self.folder(name) / "kubeconfig"


# Receives one line of progress at a time; the command line prints it.
Progress = Callable[[str], None]


class Control(Protocol):
    """Operations of a backend on a running cluster; tests use them through `Cluster`."""

    def components(self) -> dict[str, bool]:
        """Component name → whether it runs."""

    def pid(self, component: str) -> int | None:
        """The process of a component on this machine, if it runs as one."""

    def stop(self, component: str, *, grace: float) -> None:
        """Terminates a component, and kills it after `grace` seconds."""

    def start(self, component: str) -> None:
        """Starts a stopped component with its previous arguments."""

    def suspend(self, component: str, *, suspended: bool) -> None:
        """Suspends (SIGSTOP) or resumes a component."""

    def restart_ended(self) -> dict[str, str]:
        """Starts each component that has ended, unless the backend does so by itself; component →
        the last lines of its log."""

    def connect(self, *, connected: bool) -> None:
        """Disconnects the cluster from host and other clusters, or reconnects it."""

    def pod_routes(self, pods: str, address: str) -> dict[str, str]:
        """Routes to the pods of this cluster: range → a node's address.

        `pods` is the range of all its pods, `address` that of its control plane.
        """

    def route(self, pods: str, via: str | None) -> None:
        """Routes `pods` through that node on each node; None makes them unreachable."""

    def load(self, archive: Path) -> None:
        """Imports a Docker or OCI image archive into each node."""

    def serve_metrics(self, say: Progress) -> None:
        """Runs a metrics-server for `metrics.k8s.io`; builds it if the cache has none."""

    def provision_volumes(self, provisioner: Provisioner, say: Progress) -> None:
        """Runs a provisioner of PersistentVolumes; builds it if the cache has none."""

    def control_snapshots(self, say: Progress) -> None:
        """Runs a snapshot controller; builds it if the cache has none."""

    def run_csi(self, part: CsiPart, say: Progress) -> None:
        """Runs a part of the tests' CSI driver; builds it if the cache has none."""

    def remove(self, component: str) -> None:
        """Stops a component that was added to the cluster, and forgets it."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    `host_address` is this machine's address in the cluster's network: the API server and pods can
    dial a server that listens there. `context` is the only context of `kubeconfig`, and equals
    `name`. `audit_log` has a line of JSON for each answered request (audit.k8s.io/v1 Event), if the
    backend keeps one. With several `node_names`, the last is the control plane's, which takes no
    pods.
    """

    name: str
    backend: Backend
    kubernetes: str
    kubeconfig: Path
    server: str
    node_ip: str
    node_names: tuple[str, ...]
    pod_cidr: str
    service_cidr: str
    host_address: str
    kubectl_path: Path
    control: Control = field(repr=False, compare=False)
    audit_log: Path | None = None
    _interrupted: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def context(self) -> str:
        """The context's name in the kubeconfig."""
        return self.name

    def kubectl(
        self,
        *args: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl of the cluster's version.

        `timeout` defaults to that of kubectl (`--timeout=90s`) and some seconds, in which kubectl
        reports what it waited for; without either, to `KUBECTL_SECONDS`.

        :raises CommandFailed: it ended with an error and `check` is set, or it timed out.
        """
        command: Sequence[str | Path] = [
            self.kubectl_path,
            f"--kubeconfig={self.kubeconfig}",
            *args,
        ]
        return run(command, check=check, input=input, timeout=timeout or _kubectl_seconds(args))

    def components(self) -> dict[str, bool]:
        """Component name → whether it runs."""
        return self.control.components()

    def component_pid(self, name: str) -> int | None:
        """The process of a component on this machine; None if it has none, as with kind."""
        return self.control.pid(name)

    def stop_component(self, name: str, *, grace: float = 10.0) -> None:
        """Stops a component, such as `kube-apiserver`; its stored data stays.

        It is terminated, and killed after `grace` seconds: at once with 0, as in a crash.
        """
        self._interrupted.add(name)
        self.control.stop(name, grace=grace)

    def start_component(self, name: str) -> None:
        """Starts a stopped component with its previous arguments; does not wait for readiness."""
        self.control.start(name)

    def start_api_server(self) -> None:
        """Starts a stopped API server, and returns when it is ready.

        It is started again if it ends before. A kubelet does so for the static pods of a control
        plane: kube-apiserver ends itself when a step of its start takes too long, as on a machine
        under load (`PostStartHook … failed`, kubernetes/kubernetes#130377 and #82067).

        :raises StartFailed: it is not ready in `API_SERVER_SECONDS`.
        """
        deadline = time.monotonic() + API_SERVER_SECONDS
        self.start_component(API_SERVER)
        while not self._is_ready():
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{self.name}: the API server is not ready in {API_SERVER_SECONDS:g} s",
                    where=self.server,
                )
            if not self.components()[API_SERVER]:
                self.start_component(API_SERVER)
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            answer = self.kubectl("get", "--raw=/readyz", check=False, timeout=20)
        except CommandFailed:  # It accepts the connection and does not answer.
            return False
        return answer.stdout == "ok"

    def suspend_component(self, name: str) -> None:
        """Suspends a component, so that it hangs without ending."""
        self._interrupted.add(name)
        self.control.suspend(name, suspended=True)

    def resume_component(self, name: str) -> None:
        """Ends `suspend_component`."""
        self.control.suspend(name, suspended=False)

    def restart_api_clients(self) -> None:
        """Restarts the clients of an API server that was stopped or suspended since the last call.

        Each of their watches is retried after a pause that grows to 30 s and doubles at random
        (client-go's reflector). After 40 s without an API server, 70 to 90 s passed until
        kube-scheduler bound a pod; after a restart, one.
        """
        if API_SERVER in self._interrupted:
            self._interrupted.clear()
            known = self.components()
            for name in filter(known.__contains__, _API_CLIENTS):
                self.control.stop(name, grace=10)
                self.control.start(name)

    def restart_ended(self) -> dict[str, str]:
        """Starts each component that has ended, as systemd and the kubelet of a control plane's
        node do; returns the last lines of its log by component.

        kube-controller-manager, for one, ends itself when its API server is not healthy within
        10 s of its start (`WaitForAPIServer` in k8s.io/controller-manager).
        """
        return self.control.restart_ended()

    def freeze_network(self) -> None:
        """Disconnects the cluster: packets from and to the host and other clusters are lost."""
        self.control.connect(connected=False)

    def thaw_network(self) -> None:
        """End `freeze_network`."""
        self.control.connect(connected=True)

    def route_pods(self, other: Cluster, *, routed: bool) -> None:
        """Adds (or removes) this cluster's routes to the other cluster's pods."""
        for pods, via in other.control.pod_routes(other.pod_cidr, other.node_ip).items():
            self.control.route(pods, via if routed else None)

    def load_images(self, archive: Path) -> None:
        """Imports a Docker or OCI image archive into each node."""
        self.control.load(archive)

    def serve_metrics(self, say: Progress) -> None:
        """Runs a metrics-server for `metrics.k8s.io`: the component `metrics-server`.

        :raises InvalidRequest: the backend does not support it.
        """
        self.control.serve_metrics(say)

    def provision_volumes(self, provisioner: Provisioner, say: Progress) -> None:
        """Runs a provisioner of PersistentVolumes as a component, until the cluster is removed.

        :raises StartFailed: the cluster did not accept the provisioner's objects.
        """
        self.control.provision_volumes(provisioner, say)

    def control_snapshots(self, say: Progress) -> None:
        """Runs the snapshot controller, the component `SNAPSHOT_CONTROLLER`, in a cluster that
        serves VolumeSnapshots."""
        self.control.control_snapshots(say)

    def run_csi(self, part: CsiPart, say: Progress) -> None:
        """Runs a part of the tests' CSI driver as a component, until the cluster or the component
        is removed. `CsiPart.SNAPSHOTTER` needs a cluster that serves VolumeSnapshots.

        :raises StartFailed: the cluster did not accept the CSIDriver.
        """
        self.control.run_csi(part, say)

    def remove_component(self, name: str) -> None:
        """Stops a component that was added to the cluster, such as `SNAPSHOT_CONTROLLER`, and
        forgets it: `restart_ended` does not start it."""
        self.control.remove(name)


def _kubectl_seconds(args: Sequence[str]) -> float:
    """The limit of a kubectl command with these arguments."""
    found = [match for arg in args if (match := _KUBECTL_TIMEOUT.fullmatch(arg))]
    own = max((int(match[1]) * (60 if match[2] == "m" else 1) for match in found), default=0)
    return max(KUBECTL_SECONDS, own + _REPORT_SECONDS)


def silent(_: str) -> None:
    """A `Progress` that discards its lines."""
