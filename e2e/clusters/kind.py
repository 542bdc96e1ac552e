"""Clusters in Docker, by `kind`: one container is the node of each cluster.

The version is the one that kind has published a node image for, of the minor release that is
asked for. The program is taken from PATH, or built once; kubectl is taken from PATH. All clusters
are on kind's own Docker network, so their nodes reach each other; routes to each other's pods are
added in the nodes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from e2e.clusters import build, recipes
from e2e.clusters.addresses import Plan, free_index
from e2e.clusters.errors import ClusterError, InvalidRequest, MissingTool
from e2e.clusters.model import Backend, Cluster, ClusterSpec, Progress, Settings
from e2e.clusters.record import Record, forget, read_all
from e2e.clusters.shell import run
from e2e.clusters.versions import KubernetesVersion

# kind's name for its Docker network, and the end of its node's name.
_NETWORK = "kind"
_NODE_SUFFIX = "-control-plane"

# A pull of the node image is part of it.
_CREATE_TIMEOUT = 900.0

_MANIFESTS = "/etc/kubernetes/manifests"
_STOPPED = "/etc/kubernetes/stopped"
_STATIC = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_SERVICES = ("kubelet", "containerd")


def available() -> bool:
    """Whether a Docker engine answers."""
    if shutil.which("docker") is None:
        return False
    try:
        return run(["docker", "info"], check=False, timeout=10).returncode == 0
    except ClusterError:
        return False


@dataclass(frozen=True, slots=True)
class KindControl:
    """See `e2e.clusters.model.Control`; a static pod is stopped by moving its manifest away."""

    program: Path
    cluster: str

    @property
    def node(self) -> str:
        """The node's container."""
        return f"{self.cluster}{_NODE_SUFFIX}"

    def components(self) -> dict[str, bool]:
        there = self._inside("ls", _MANIFESTS).split()
        static = {name: f"{name}.yaml" in there for name in _STATIC}
        return static | {
            name: self._inside("systemctl", "is-active", name, check=False).strip() == "active"
            for name in _SERVICES
        }

    def pid(self, component: str) -> int | None:
        del component  # it is a process of a container's
        return None

    def stop(self, component: str, *, grace: float) -> None:
        # The kubelet and systemd have periods of grace of their own.
        if component in _STATIC:
            self._inside("mkdir", "-p", _STOPPED)
            self._inside("mv", f"{_MANIFESTS}/{component}.yaml", _STOPPED)
        else:
            self._inside("systemctl", "stop", component)

    def start(self, component: str) -> None:
        if component in _STATIC:
            self._inside("mv", f"{_STOPPED}/{component}.yaml", _MANIFESTS)
        else:
            self._inside("systemctl", "start", component)

    def suspend(self, component: str, *, suspended: bool) -> None:
        signal = "-STOP" if suspended else "-CONT"
        self._inside("pkill", signal, "-x", component[:15])

    def connect(self, *, connected: bool) -> None:
        self._inside("ip", "link", "set", "eth0", "up" if connected else "down")

    def route(self, pods: str, via: str | None) -> None:
        way = [pods, "via", via] if via is not None else ["unreachable", pods]
        self._inside("ip", "route", "replace", *way)

    def load(self, archive: Path) -> None:
        run([self.program, "load", "image-archive", archive, "--name", self.cluster])

    def serve_metrics(self, say: Progress) -> None:
        raise InvalidRequest(
            "these clusters have no metrics-server", next_step="take --backend native"
        )

    def _inside(self, *argv: str, check: bool = True) -> str:
        return run(["docker", "exec", self.node, *argv], check=check).stdout


def up(settings: Settings, specs: Sequence[ClusterSpec], say: Progress) -> dict[str, Cluster]:
    """Have these clusters up. The caller holds the set's lock.

    :raises CommandFailed: kind or Docker said no.
    """
    program = _program(settings, say)
    _kubectl()
    for spec in specs:
        records = read_all(settings)
        record = records.get(spec.name)
        if record is not None and record.ready:
            record.require_same(settings, spec)
            continue
        if record is not None:
            say(f"{spec.name}: removing what an interrupted start left")
            _delete(program, settings, spec.name)
        index = free_index(r.index for r in records.values() if r.name != spec.name)
        record = Record.new(settings, spec, Backend.KIND, index)
        record.write(settings)
        say(f"{spec.name}: creating")
        _create(program, settings, record)
        replace(record, ready=True).write(settings)
    clusters = {spec.name: find(settings, read_all(settings)[spec.name]) for spec in specs}
    _connect_all(settings)
    return clusters


def down(settings: Settings, names: Iterable[str], say: Progress) -> None:
    """Delete these clusters. The caller holds the set's lock."""
    program = _program(settings, say)
    for name in names:
        say(f"{name}: removing")
        _delete(program, settings, name)
    if not read_all(settings):
        shutil.rmtree(settings.state, ignore_errors=True)


def find(settings: Settings, record: Record) -> Cluster:
    """The handle of a recorded cluster."""
    control = KindControl(_program(settings, lambda _: None), _kind_name(settings, record.name))
    found = json.loads(run(["docker", "inspect", control.node]).stdout)[0]
    address = found["NetworkSettings"]["Networks"][_NETWORK]
    kubeconfig = settings.kubeconfig(record.name)
    config = yaml.safe_load(kubeconfig.read_text())
    plan = Plan(settings.network, record.index)
    return Cluster(
        name=record.name,
        backend=Backend.KIND,
        kubernetes=KubernetesVersion.parse(record.kubernetes).kind_node,
        kubeconfig=kubeconfig,
        server=config["clusters"][0]["cluster"]["server"],
        node_ip=address["IPAddress"],
        node_names=(control.node,),
        pod_cidr=str(plan.pods),
        service_cidr=str(plan.services),
        host_address=address["Gateway"],
        kubectl_path=_kubectl(),
        control=control,
    )


def _program(settings: Settings, say: Progress) -> Path:
    found = shutil.which("kind")
    return Path(found) if found else build.programs(recipes.kind(), settings.cache, say) / "kind"


def _kubectl() -> Path:
    found = shutil.which("kubectl")
    if found is None:
        raise MissingTool(
            "kubectl is not installed", next_step="install it, or take --backend native"
        )
    return Path(found)


def _kind_name(settings: Settings, name: str) -> str:
    return f"{settings.prefix}-{name}"


def _create(program: Path, settings: Settings, record: Record) -> None:
    plan = Plan(settings.network, record.index)
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": str(plan.pods), "serviceSubnet": str(plan.services)},
    }
    if settings.kubernetes.minor in (34, 35):
        # As natively: see MUTATING_POLICIES in `control_plane`.
        config["featureGates"] = {"MutatingAdmissionPolicy": True}
        config["runtimeConfig"] = {"admissionregistration.k8s.io/v1beta1": "true"}
    kubeconfig = settings.kubeconfig(record.name)
    name = _kind_name(settings, record.name)
    command: list[str | Path] = [program, "create", "cluster", "--name", name, "--config", "-"]
    command += ["--image", f"kindest/node:{settings.kubernetes.kind_node}"]
    command += ["--wait", "120s", "--kubeconfig", kubeconfig]
    run(command, input=yaml.safe_dump(config), timeout=_CREATE_TIMEOUT)
    kubeconfig.write_text(named_after(kubeconfig.read_text(), record.name))


def _delete(program: Path, settings: Settings, name: str) -> None:
    kubeconfig = settings.kubeconfig(name)
    cluster = _kind_name(settings, name)
    run([program, "delete", "cluster", "--name", cluster, "--kubeconfig", kubeconfig])
    forget(settings, name)


def _connect_all(settings: Settings) -> None:
    clusters = [find(settings, r) for r in read_all(settings).values() if r.ready]
    for one in clusters:
        for other in clusters:
            if one.name != other.name:
                route = ["ip", "route", "replace", other.pod_cidr, "via", other.node_ip]
                run(["docker", "exec", one.node_names[0], *route])


def named_after(kubeconfig: str, name: str) -> str:
    """A kubeconfig of kind, with cluster, context and user called after our cluster.

    :raises InvalidRequest: it is not a kubeconfig with one context.
    """
    config = yaml.safe_load(kubeconfig)
    if not isinstance(config, dict) or len(config.get("contexts") or []) != 1:
        raise InvalidRequest("not a kubeconfig with one context", where=name)
    user = f"kubernetes-admin-{name}"
    config["clusters"][0]["name"] = name
    config["users"][0]["name"] = user
    config["contexts"][0] = {"name": name, "context": {"cluster": name, "user": user}}
    config["current-context"] = name
    return str(yaml.safe_dump(config, sort_keys=False))
