"""Clusters in Docker, by `kind`: containers are their nodes, one of each unless more are asked for.

The Docker engine is the one that answers, or a private one (`e2e.clusters.docker_engine`); the
node image is the published one, or one composed here (`e2e.clusters.node_image`). The program is
taken from PATH, or built once. All clusters are on kind's own Docker network, so their nodes reach
each other; routes to each other's pods are added in the nodes, and on this machine
(`e2e.clusters.kind_routes`). A kubeconfig names the node's address, which is the same from this
machine and from the other cluster.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from e2e.clusters import (
    docker_engine,
    go_build,
    go_recipes,
    image_archives,
    kind_routes,
    native_network,
    native_node,
    node_image,
    system_packages,
)
from e2e.clusters.addresses import Plan, free_index, free_slot
from e2e.clusters.cgroups import hierarchies
from e2e.clusters.cluster import Backend, Cluster, ClusterSpec, Progress, Settings
from e2e.clusters.cluster_record import (
    Record,
    forget,
    forget_set,
    read_all,
    read_slot,
    slots,
    write_slot,
)
from e2e.clusters.docker_engine import Engine
from e2e.clusters.errors import ClusterError, CommandFailed, StartFailed
from e2e.clusters.kind_config import AUDIT_POLICY_FILE, cluster_config, named_after
from e2e.clusters.kind_control import KindControl
from e2e.clusters.native_control_plane import AUDIT_LOG, AUDIT_POLICY
from e2e.clusters.node_image import NodeImage
from e2e.clusters.run_command import run

_CREATE_TIMEOUT = 300.0
_SETTLE_TIMEOUT = 120.0
# Docker removes a node within seconds, except in the case that `thaw` describes.
_DELETE_TIMEOUT = 60.0
_DELETE_TRIES = 3

_AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class _Tools:
    """Programs that clusters of one version are made with."""

    kind: Path
    images: Path


def available() -> bool:
    """Whether a Docker engine answers."""
    return docker_engine.available()


def up(settings: Settings, specs: Sequence[ClusterSpec], say: Progress) -> dict[str, Cluster]:
    """Starts these clusters. The caller holds the set's lock.

    :raises InvalidRequest: a running cluster differs from its specification.
    :raises ClusterError: kind or Docker failed.
    """
    tools = _provision(settings, say)
    with docker_engine.used():
        engine = docker_engine.ensure(settings.cache, say)
        image = node_image.choose(engine, settings, say)
        if os.geteuid() == 0:
            native_node.allow_watchers(say)
        for spec in specs:
            _ensure_cluster(engine, tools, settings, spec, image=image, say=say)
        clusters = {spec.name: find(settings, read_all(settings)[spec.name]) for spec in specs}
        _connect_all(settings)
        for cluster in clusters.values():
            routes = cluster.control.pod_routes(cluster.pod_cidr, cluster.node_ip)
            kind_routes.add(routes, docker_engine.hop(engine), cluster.name, say)
    return clusters


def down(settings: Settings, names: Iterable[str], say: Progress) -> None:
    """Deletes these clusters, and the private engine with the last cluster of all sets.

    The caller holds the set's lock.
    """
    program = _program(settings, say)
    with docker_engine.used():
        engine = docker_engine.ensure(settings.cache, say)
        for name in names:
            say(f"{name}: removing")
            _delete(engine, program, settings, name)
    if not read_all(settings):
        forget_set(settings)
    docker_engine.release(engine, say)


def find(settings: Settings, record: Record) -> Cluster:
    """The handle of a recorded cluster.

    :raises StartFailed: its engine does not answer, or has no such container.
    """
    engine = docker_engine.find()
    name = _kind_name(settings, record.name)
    kubeconfig, kubectl = settings.kubeconfig(record.name), _kubectl(settings, record)
    control = KindControl(
        program=_program(settings, lambda _: None),
        engine=engine or Engine(""),
        cluster=name,
        cache=settings.cache,
        kubectl=(kubectl, f"--kubeconfig={kubeconfig}"),
        node_count=record.node_count,
    )
    address = None if engine is None else _address(engine, control.node)
    if engine is None or address is None:
        raise StartFailed(
            f"{record.name} no longer exists",
            where=f"Docker container {control.node}",
            next_step="`python -m e2e.clusters down` removes its remains",
        )
    log = settings.folder(record.name) / _AUDIT / AUDIT_LOG
    plan = _plan(settings, record)
    return Cluster(
        name=record.name,
        backend=Backend.KIND,
        kubernetes=record.runs or record.kubernetes,
        kubeconfig=kubeconfig,
        server=_server(address.node),
        node_ip=address.node,
        node_names=(*control.nodes[1:], control.node),
        pod_cidr=str(plan.pods),
        service_cidr=str(plan.services),
        host_address=docker_engine.host_address(engine) or address.gateway,
        kubectl_path=kubectl,
        control=control,
        audit_log=log if log.exists() else None,
    )


# -- creation ------------------------------------------------------------------------------


def _provision(settings: Settings, say: Progress) -> _Tools:
    if os.geteuid() == 0:
        system_packages.ensure(system_packages.TEST_IMAGES, say)
    programs = _programs(settings, say)
    archive = image_archives.archive_of_test_images(settings.cache, programs, say)
    return _Tools(_program(settings, say), archive)


def _programs(settings: Settings, say: Progress) -> Path:
    """The folder of kubectl and agnhost: that of all components if it was built."""
    whole = go_recipes.kubernetes(settings.kubernetes)
    built = (settings.cache / "bin" / whole.folder).exists()
    recipe = whole if built else go_recipes.tools(settings.kubernetes)
    return go_build.programs(recipe, settings.cache, say)


def _program(settings: Settings, say: Progress) -> Path:
    found = shutil.which("kind")
    return (
        Path(found) if found else go_build.programs(go_recipes.kind(), settings.cache, say) / "kind"
    )


def _kubectl(settings: Settings, record: Record) -> Path:
    own = replace(settings, kubernetes=record.requested_version)
    return _programs(own, lambda _: None) / "kubectl"


def _ensure_cluster(
    engine: Engine,
    tools: _Tools,
    settings: Settings,
    spec: ClusterSpec,
    *,
    image: NodeImage,
    say: Progress,
) -> None:
    """Starts one cluster; removes the remains of an interrupted start first."""
    records = read_all(settings)
    record = records.get(spec.name)
    if record is not None:
        there = _address(engine, f"{_kind_name(settings, spec.name)}-control-plane")
        if record.ready and record.this_boot and there is not None:
            record.require_same(settings, spec)
            return
        say(f"{spec.name}: removing the remains of an interrupted start")
        _delete(engine, tools.kind, settings, spec.name)
        del records[spec.name]
    _ensure_slot(settings)
    index = free_index(it.index for it in records.values())
    record = Record.new(settings, spec, Backend.KIND, index)
    record = replace(record, runs=str(image.kubernetes))
    record.write(settings)
    say(f"{spec.name}: creating from {image.name}")
    _create(engine, tools, settings, record, image)
    replace(record, ready=True).write(settings)


def _ensure_slot(settings: Settings) -> None:
    """Gives the set addresses for pods and Services that no other set uses."""
    if read_slot(settings) is not None:
        return
    with go_build.locked(settings.state_root / ".addresses.lock"):
        taken = slots(settings)
        if shutil.which("ip") is not None:
            taken += native_network.networks_in_use()
        write_slot(settings, free_slot(settings.network, taken))


def _plan(settings: Settings, record: Record) -> Plan:
    slot = read_slot(settings)
    assert slot is not None  # written before the record
    return Plan(slot, record.index)


def _create(
    engine: Engine, tools: _Tools, settings: Settings, record: Record, image: NodeImage
) -> None:
    folder = settings.folder(record.name)
    audit = _audit_folder(folder) if os.geteuid() == 0 else None
    config = cluster_config(
        _plan(settings, record),
        image.kubernetes,
        audit=audit,
        cgroup_v1=any("pids" in tree.options for tree in hierarchies()),
        node_count=record.node_count,
    )
    kubeconfig, name = settings.kubeconfig(record.name), _kind_name(settings, record.name)
    command: list[str | Path] = [tools.kind, "create", "cluster", "--name", name, "--config", "-"]
    command += ["--image", image.name, "--wait", "120s", "--kubeconfig", kubeconfig]
    document = yaml.safe_dump(config)
    run(command, input=document, env=engine.environment, timeout=_CREATE_TIMEOUT)
    address = _address(engine, f"{name}-control-plane")
    if address is None:
        raise StartFailed("kind created no node", where=name)
    renamed = named_after(kubeconfig.read_text(), record.name, _server(address.node))
    kubeconfig.write_text(renamed)
    cluster = find(settings, record)
    if record.node_count > 1:
        assert isinstance(cluster.control, KindControl)
        cluster.control.join_nodes()
    cluster.load_images(tools.images)
    # As with the native backend: a pod can be created, and names resolve.
    for what in ("create", "serviceaccount/default"), ("available", "deployment/coredns"):
        _wait(cluster, *what)


def _wait(cluster: Cluster, condition: str, what: str) -> None:
    namespace = "kube-system" if what.startswith("deployment/") else "default"
    wanted = "create" if condition == "create" else f"condition={condition}"
    timeout = f"--timeout={_SETTLE_TIMEOUT:.0f}s"
    command = ("wait", what, f"--for={wanted}", timeout, "--namespace", namespace)
    cluster.kubectl(*command, timeout=_SETTLE_TIMEOUT + 10)


def _audit_folder(folder: Path) -> Path:
    audit = folder / _AUDIT
    audit.mkdir(parents=True)
    (audit / AUDIT_POLICY_FILE).write_text(AUDIT_POLICY)
    return audit


@dataclass(frozen=True, slots=True)
class _Address:
    node: str
    gateway: str


def _address(engine: Engine, container: str) -> _Address | None:
    """The addresses of a running node; None if it does not run."""
    inspected = engine.docker("inspect", container, check=False)
    if inspected.returncode != 0:
        return None
    found = json.loads(inspected.stdout)[0]
    address = found["NetworkSettings"]["Networks"].get(docker_engine.NETWORK)
    if not found["State"]["Running"] or address is None:
        return None
    return _Address(address["IPAddress"], address["Gateway"])


def _server(address: str) -> str:
    return f"https://{address}:6443"


def _kind_name(settings: Settings, name: str) -> str:
    return f"{settings.prefix}-{name}"


def _connect_all(settings: Settings) -> None:
    """Adds routes between all clusters of the set."""
    clusters = [find(settings, it) for it in read_all(settings).values() if it.ready]
    for one in clusters:
        for other in clusters:
            if one.name != other.name:
                one.route_pods(other, routed=True)


# -- removal ----------------------------------------------------------------------------


def _delete(engine: Engine, program: Path, settings: Settings, name: str) -> None:
    cluster = _kind_name(settings, name)
    command: list[str | Path] = [program, "delete", "cluster", "--name", cluster]
    command += ["--kubeconfig", settings.kubeconfig(name)]
    mine = ("--filter", f"label=io.x-k8s.kind.cluster={cluster}")
    nodes = engine.docker("ps", "--all", "--quiet", "--no-trunc", *mine).stdout.split()
    for left in reversed(range(_DELETE_TRIES)):
        try:
            run(command, env=engine.environment, timeout=_DELETE_TIMEOUT)
            break
        except CommandFailed as error:
            if not left:
                raise ClusterError(
                    f"{name} cannot be removed: {error.what}",
                    where=f"Docker containers of {cluster}",
                    next_step="find its processes that do not end, then run `down` again",
                ) from error
            for node in nodes:
                thaw(node)
    kind_routes.remove(_plan(settings, read_all(settings)[name]).pods, docker_engine.hop(engine))
    forget(settings, name)


def thaw(container: str) -> None:
    """Thaws the frozen processes of a killed node: a process in a frozen cgroup cannot be killed.

    On cgroup version 1, runc in the node may have frozen one when the node was killed.
    """
    for tree in hierarchies():
        if container and "freezer" in tree.options:
            for own in tree.path.glob(f"*/{container}"):
                for state in own.rglob("freezer.state"):
                    state.write_text("THAWED")
