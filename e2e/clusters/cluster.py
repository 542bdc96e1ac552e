"""What a run is asked for, and what a running cluster offers.

`Settings` belong to a set of clusters, `ClusterSpec` to one of them; both are checked when they
are made. A `Cluster` is a handle: it holds no process and no connection, so it can be made again
at any time from what is recorded (`e2e.clusters.find`), and dropped without effect.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol

from e2e.clusters.errors import InvalidRequest
from e2e.clusters.run_command import run
from e2e.clusters.versions import DEFAULT_KUBERNETES, KubernetesVersion

DEFAULT_NAMES = ("home", "remote")
DEFAULT_PREFIX = "cb"

# The kernel's limit for an interface name is 15 bytes; "PREFIX-v0" and "PREFIX-br" must fit, and
# a short prefix keeps socket paths below their limit of 107 bytes too.
_PREFIX = re.compile(r"[a-z][a-z0-9]{0,8}")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")

_NODES = re.compile(r"(real|simulated)(?:=(\d+))?")

# The longest path below a cluster's folder is a containerd socket; see _PREFIX for the limit.
LONGEST_STATE_DIR = 60

#: Each node has 254 addresses of its cluster's for pods (`e2e.clusters.addresses`).
MAX_REAL_NODES = 16

# Sixteen sets of clusters, each with 65536 addresses, in a corner that few networks use.
DEFAULT_NETWORK = IPv4Network("10.208.0.0/12")


class Backend(StrEnum):
    """Who runs the clusters."""

    AUTO = "auto"
    KIND = "kind"
    NATIVE = "native"


class Nodes(StrEnum):
    """What the nodes are: a kubelet with containers, or KWOK's pretence of any number."""

    REAL = "real"
    SIMULATED = "simulated"


def parse_nodes(text: str, count: int) -> tuple[Nodes, int]:
    """Read `real`, `simulated` or `simulated=N`; `count` is what --node-count says.

    :raises InvalidRequest: it is none of these.
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
    """One cluster that is wanted."""

    name: str
    nodes: Nodes = Nodes.REAL
    node_count: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name!r} is no name for a cluster",
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
        """Whether it has more real nodes than one: a control plane, and workers."""
        return self.nodes is Nodes.REAL and self.node_count > 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What a set of clusters shares. Two sets stand side by side when their prefixes differ."""

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
    """Of kind's nodes: `auto`, `stock`, `local` (see `e2e.clusters.node_image`), or a name."""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidRequest(
                f"{self.prefix!r} is no prefix",
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
        """Where these clusters keep everything; `down` of the last one removes it."""
        return self.state_root.absolute() / self.prefix

    def folder(self, name: str) -> Path:
        """Where one cluster keeps everything."""
        return self.state / name

    def kubeconfig(self, name: str) -> Path:
        """A cluster's kubeconfig file."""
        return self.folder(name) / "kubeconfig"


# Told one line at a time what goes on; the command line prints it.
Progress = Callable[[str], None]


class Control(Protocol):
    """What a backend can do to a running cluster; tests of faults use it through `Cluster`."""

    def components(self) -> dict[str, bool]:
        """Every component's name, and whether it runs."""

    def pid(self, component: str) -> int | None:
        """The process of a component on this machine, if it runs as one."""

    def stop(self, component: str, *, grace: float) -> None:
        """End one component, and kill it after `grace` seconds."""

    def start(self, component: str) -> None:
        """Start one component again, as it was."""

    def suspend(self, component: str, *, suspended: bool) -> None:
        """Freeze one component, or let it go on."""

    def connect(self, *, connected: bool) -> None:
        """Cut the cluster off from host and other clusters, or end that."""

    def ways(self, pods: str, address: str) -> dict[str, str]:
        """Where others send what is for the pods of this cluster: range → a node's address.

        `pods` are all of its ranges in one, `address` its control plane's.
        """

    def route(self, pods: str, via: str | None) -> None:
        """Have a way to other pods through that node, or know that there is none, on each node."""

    def load(self, archive: Path) -> None:
        """Import a Docker or OCI image archive into each node."""

    def serve_metrics(self, say: Progress) -> None:
        """Have a metrics-server answer for `metrics.k8s.io`; built if it is not in the cache."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    `host_address` is this machine's own address as the cluster sees it: a server that listens
    there can be dialled from the API server and from pods. `context` is the only context of
    `kubeconfig`, and equals `name`. `audit_log` has a line of JSON for each request that was
    answered (audit.k8s.io/v1 Event), where the backend keeps one. Of `node_names`, the control
    plane's is the last where there are several: it takes no pods then.
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

    @property
    def context(self) -> str:
        """The context's name in the kubeconfig."""
        return self.name

    def kubectl(
        self,
        *args: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout: float | None = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run this version's kubectl against the cluster.

        :raises CommandFailed: it ended with an error and `check` is set.
        """
        command: Sequence[str | Path] = [
            self.kubectl_path,
            f"--kubeconfig={self.kubeconfig}",
            *args,
        ]
        return run(command, check=check, input=input, timeout=timeout)

    def components(self) -> dict[str, bool]:
        """Every component of the cluster, and whether it runs."""
        return self.control.components()

    def component_pid(self, name: str) -> int | None:
        """The process of a component on this machine; None where it has none, as within kind."""
        return self.control.pid(name)

    def stop_component(self, name: str, *, grace: float = 10.0) -> None:
        """End a component, such as `kube-apiserver`; what it had stored stays.

        It is asked to end, and killed after `grace` seconds: at once with 0, as in a crash.
        """
        self.control.stop(name, grace=grace)

    def start_component(self, name: str) -> None:
        """Start a stopped component with the arguments it had; does not wait until it is ready."""
        self.control.start(name)

    def suspend_component(self, name: str) -> None:
        """Let a component hang without ending it."""
        self.control.suspend(name, suspended=True)

    def resume_component(self, name: str) -> None:
        """End `suspend_component`."""
        self.control.suspend(name, suspended=False)

    def freeze_network(self) -> None:
        """Cut the cluster off: packets from and to the host and other clusters are lost."""
        self.control.connect(connected=False)

    def thaw_network(self) -> None:
        """End `freeze_network`."""
        self.control.connect(connected=True)

    def route_pods(self, other: Cluster, *, routed: bool) -> None:
        """Have this cluster know a way to the other one's pods, or none."""
        for pods, via in other.control.ways(other.pod_cidr, other.node_ip).items():
            self.control.route(pods, via if routed else None)

    def load_images(self, archive: Path) -> None:
        """Import a Docker or OCI image archive into each node."""
        self.control.load(archive)

    def serve_metrics(self, say: Progress) -> None:
        """Have a metrics-server answer for `metrics.k8s.io`: the component `metrics-server`.

        :raises InvalidRequest: the backend has none.
        """
        self.control.serve_metrics(say)


def silent(_: str) -> None:
    """A `Progress` that says nothing."""
