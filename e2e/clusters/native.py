"""Clusters made of processes of this machine, each in its own network namespace.

`up` is level-triggered: it leaves a running cluster unchanged, restarts components that ended, and
removes every trace of a cluster whose start was interrupted (or that is older than the machine's
last boot) before it starts it again. `down` removes every trace too, and touches nothing that the
clusters did not create.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.clusters import (
    coredns,
    csi_driver,
    go_build,
    go_recipes,
    image_archives,
    kwok,
    metrics_server,
    native_control_plane,
    native_network,
    native_node,
    provisioners,
    snapshot_controller,
    system_packages,
)
from e2e.clusters.addresses import Plan, free_index, free_slot
from e2e.clusters.cluster import (
    API_SERVER,
    Backend,
    Cluster,
    ClusterSpec,
    CsiPart,
    Nodes,
    Progress,
    Provisioner,
    Settings,
)
from e2e.clusters.cluster_record import (
    Record,
    forget,
    forget_set,
    read_all,
    read_slot,
    slots,
    write_slot,
)
from e2e.clusters.errors import ClusterError, InvalidRequest
from e2e.clusters.mounts import unmount_below
from e2e.clusters.native_site import Site
from e2e.clusters.versions import KubernetesVersion

# Controllers create it at the start; pods need it.
_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs and images of clusters of one version."""

    kubernetes: Path
    etcd: Path
    coredns: Path | None
    kwok: Path | None
    images: Path | None


@dataclass(frozen=True, slots=True)
class NativeControl:
    """See `e2e.clusters.cluster.Control`."""

    site: Site

    def components(self) -> dict[str, bool]:
        supervisor = self.site.supervisor
        return {name: supervisor.running(name) for name in supervisor.names()}

    def pid(self, component: str) -> int | None:
        return self.site.supervisor.pid(component)

    def stop(self, component: str, *, grace: float) -> None:
        self.site.supervisor.stop(component, grace=grace)

    def start(self, component: str) -> None:
        self.site.supervisor.start_again(component)

    def suspend(self, component: str, *, suspended: bool) -> None:
        self.site.supervisor.suspend(component, suspended=suspended)

    def restart_ended(self) -> dict[str, str]:
        return self.site.supervisor.restart_ended()

    def connect(self, *, connected: bool) -> None:
        self.site.network.connect(connected=connected)

    def pod_routes(self, pods: str, address: str) -> dict[str, str]:
        return {pods: address}

    def route(self, pods: str, via: str | None) -> None:
        self.site.network.route(pods, via)

    def load(self, archive: Path) -> None:
        if self.site.spec.nodes is Nodes.SIMULATED:
            raise InvalidRequest("a simulated node has no images", where=self.site.spec.name)
        native_node.load(self.site, archive)

    def serve_metrics(self, say: Progress) -> None:
        folder = go_build.programs(go_recipes.add_ons(), self.site.settings.cache, say)
        metrics_server.start(self.site, folder)

    def provision_volumes(self, provisioner: Provisioner, say: Progress) -> None:
        folder = go_build.programs(go_recipes.add_ons(), self.site.settings.cache, say)
        provisioners.start(self.site, provisioner, folder)

    def control_snapshots(self, say: Progress) -> None:
        folder = go_build.programs(go_recipes.snapshot_controller(), self.site.settings.cache, say)
        snapshot_controller.start(self.site, folder)

    def run_csi(self, part: CsiPart, say: Progress) -> None:
        folder = go_build.programs(csi_driver.recipe(part), self.site.settings.cache, say)
        csi_driver.start(self.site, part, folder)

    def remove(self, component: str) -> None:
        self.site.supervisor.remove(component)


def provision(settings: Settings, specs: Sequence[ClusterSpec], say: Progress) -> Tools:
    """Installs packages and builds programs that the cache lacks, for one set at a time.

    :raises MissingTool: something is absent and cannot be installed.
    :raises BuildFailed: a program does not compile.
    """
    with go_build.locked(settings.cache / ".provision.lock"):
        return _provision(settings, specs, say)


def _provision(settings: Settings, specs: Sequence[ClusterSpec], say: Progress) -> Tools:
    real = any(spec.nodes is Nodes.REAL for spec in specs)
    resolving = any(spec.nodes is Nodes.REAL and spec.dns for spec in specs)
    simulated = any(spec.nodes is Nodes.SIMULATED for spec in specs)
    system_packages.ensure(system_packages.NETWORK + (system_packages.NODE if real else ()), say)
    cache = settings.cache
    kubernetes = go_build.programs(go_recipes.kubernetes(settings.kubernetes), cache, say)
    archive = None
    if real:
        system_packages.require_overlay()
        native_node.allow_watchers(say)
        archive = image_archives.archive_of_test_images(cache, kubernetes, say)
    return Tools(
        kubernetes=kubernetes,
        etcd=go_build.programs(go_recipes.etcd(), cache, say),
        coredns=go_build.programs(go_recipes.coredns(), cache, say) if resolving else None,
        kwok=go_build.programs(go_recipes.kwok(), cache, say) if simulated else None,
        images=archive,
    )


def up(settings: Settings, specs: Sequence[ClusterSpec], say: Progress) -> dict[str, Cluster]:
    """Starts these clusters side by side; returns when their nodes are Ready.

    The caller holds the set's lock.

    :raises InvalidRequest: a running cluster differs from its specification.
    :raises StartFailed: a component did not start; started components stay so that their logs can
        be read, and the next `up` or `down` removes them.
    """
    tools = provision(settings, specs, say)
    records = read_all(settings)
    for spec in specs:
        if spec.name in records and records[spec.name].ready:
            records[spec.name].require_same(settings, spec)
    for name, record in records.items():
        if name in {spec.name for spec in specs} and not (record.ready and record.this_boot):
            say(f"{name}: removing the remains of an interrupted start")
            _remove(_site(settings, record))
    sites = _place(settings, specs)
    fresh = [site for site in sites if not _ready(site)]
    for site in sites:
        if _ready(site):
            _restart_ended_components(site, say)
    for site in fresh:
        site.cgroups.create()
        site.network.create()
    _connect_all(settings)
    _in_parallel(fresh, lambda site: _start(site, tools, say))
    return {site.spec.name: handle(site) for site in sites}


def down(settings: Settings, names: Iterable[str], say: Progress) -> None:
    """Removes every trace of these clusters, and of the set with its last cluster.

    The caller holds the set's lock.
    """
    records = read_all(settings)
    sites = [_site(settings, records[name]) for name in names if name in records]
    for site in sites:
        say(f"{site.spec.name}: removing")
    _in_parallel(sites, _remove)
    slot = read_slot(settings)
    if slot is not None and not read_all(settings):
        native_network.delete_bridge(native_network.bridge_name(settings.prefix))
        forget_set(settings)


def find(settings: Settings, record: Record) -> Cluster:
    """The handle of a recorded cluster."""
    return handle(_site(settings, record))


def handle(site: Site) -> Cluster:
    """The handle of a cluster."""
    folder = go_recipes.kubernetes(site.settings.kubernetes).folder
    return Cluster(
        name=site.spec.name,
        backend=Backend.NATIVE,
        kubernetes=str(site.settings.kubernetes),
        kubeconfig=site.settings.kubeconfig(site.spec.name),
        server=site.server,
        node_ip=str(site.plan.node.ip),
        node_names=site.node_names,
        pod_cidr=str(site.plan.pods),
        service_cidr=str(site.plan.services),
        host_address=str(site.plan.host),
        kubectl_path=site.settings.cache / "bin" / folder / "kubectl",
        control=NativeControl(site),
        audit_log=site.folder / native_control_plane.AUDIT_LOG,
    )


def _site(settings: Settings, record: Record) -> Site:
    slot = read_slot(settings)
    if slot is None:
        raise InvalidRequest(
            f"the addresses of {record.name} are not recorded",
            where=str(settings.state),
            next_step="remove the folder, and the namespaces of these clusters (`ip netns`)",
        )
    own = replace(settings, kubernetes=KubernetesVersion.parse(record.kubernetes))
    return Site(own, record.spec, Plan(slot, record.index))


def _place(settings: Settings, specs: Sequence[ClusterSpec]) -> list[Site]:
    """Assigns addresses to the set and to each cluster, and records them."""
    with go_build.locked(native_network.ADDRESS_LOCK):
        slot = read_slot(settings)
        if slot is None:
            bridge = native_network.bridge_name(settings.prefix)
            if native_network.exists(bridge):
                raise InvalidRequest(
                    f"an interface {bridge} exists, which these clusters did not create",
                    where=f"--prefix {settings.prefix}",
                    next_step="use another prefix, or the --state-dir of its creation",
                )
            # Addresses of kind's clusters are not visible on this machine.
            taken = [*native_network.networks_in_use(), *slots(settings)]
            slot = free_slot(settings.network, taken)
            write_slot(settings, slot)
        # The address on the bridge marks the slot as used for other sets.
        native_network.create_bridge(native_network.bridge_name(settings.prefix), Plan(slot, 0))
    for spec in specs:
        records = read_all(settings)
        if spec.name not in records:
            index = free_index(record.index for record in records.values())
            Record.new(settings, spec, Backend.NATIVE, index).write(settings)
    records = read_all(settings)
    return [_site(settings, records[spec.name]) for spec in specs]


def _ready(site: Site) -> bool:
    return read_all(site.settings)[site.spec.name].ready


def _start(site: Site, tools: Tools, say: Progress) -> None:
    started = time.monotonic()
    name = site.spec.name
    native_control_plane.write_credentials(site)
    with ThreadPoolExecutor(1) as pool:
        runtime = None
        if tools.images is not None and site.spec.nodes is Nodes.REAL:
            runtime = pool.submit(
                native_node.start_containerd, site, image_archives.PAUSE, tools.images
            )
        native_control_plane.start(site, tools.kubernetes, tools.etcd)
        if runtime is not None:
            runtime.result()
    say(f"{name}: API server ready after {time.monotonic() - started:.1f} s")
    if site.spec.nodes is Nodes.REAL:
        native_node.start(site, tools.kubernetes)
        if site.spec.dns and tools.coredns is not None:
            coredns.start(site, tools.coredns)
    elif tools.kwok is not None:
        kwok.start(site, tools.kwok)
    _wait_for_nodes(site)
    api = site.api
    first = [native_control_plane.CONTROLLERS]
    site.wait("the default account", lambda: api.exists(_DEFAULT_ACCOUNT), first, 60)
    api.close()
    replace(read_all(site.settings)[name], ready=True).write(site.settings)
    say(f"{name}: {site.spec.node_count} node(s) Ready after {time.monotonic() - started:.1f} s")


def _restart_ended_components(site: Site, say: Progress) -> None:
    """Restarts ended components, in the order of their first start.

    :raises StartFailed: a component does not start again.
    """
    site.network.connect(connected=True)
    added = (metrics_server, provisioners, snapshot_controller, csi_driver)
    parts = (native_control_plane, native_node, coredns, kwok, *added)
    order = [component for part in parts for component in part.COMPONENTS]
    known = site.supervisor.names()
    ended = [name for name in order if name in known and not site.supervisor.running(name)]
    for component in ended:
        say(f"{site.spec.name}: {component} had ended, starting it again")
        site.supervisor.start_again(component)
        if component == API_SERVER:
            api = site.api
            site.wait("it was ready", api.ready, [component], native_control_plane.START_TIMEOUT)
            api.close()
    if ended:
        _wait_for_nodes(site)


def _wait_for_nodes(site: Site) -> None:
    if site.spec.nodes is Nodes.REAL:
        native_node.wait(site)
        if site.spec.dns:
            coredns.wait(site)
    else:
        kwok.wait(site)


def _connect_all(settings: Settings) -> None:
    """Adds routes between all clusters of the set."""
    networks = [_site(settings, record).network for record in read_all(settings).values()]
    there = [each for each in networks if each.path.exists()]
    for each in there:
        each.reach(there)


def _remove(site: Site) -> None:
    """Removes processes first, then mounts and networks they held, their files, and the folder."""
    site.cgroups.kill()
    unmount_below(site.folder)
    site.network.delete()
    native_node.clean(site)
    site.cgroups.remove()
    forget(site.settings, site.spec.name)


def _in_parallel(sites: Sequence[Site], work: Callable[[Site], None]) -> None:
    """Runs ``work`` for all sites; raises the first error after all have finished."""
    if not sites:
        return
    errors: list[ClusterError] = []
    with ThreadPoolExecutor(len(sites)) as pool:
        for future in [pool.submit(work, site) for site in sites]:
            try:
                future.result()
            except ClusterError as error:
                errors.append(error)
    if errors:
        raise errors[0]
