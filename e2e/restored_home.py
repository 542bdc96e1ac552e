"""A home cluster restored from a backup, running beside the original.

`saved` copies etcd's data like a snapshot of its disk. `restored` starts another etcd with such a
copy, and another API server for it with the original's certificates and keys: the same cluster in
its earlier state, at another port. Its controllers and its scheduler do not run.

Both processes run in the network namespace of the original's control plane, so this needs a cluster
of the native backend: kind keeps etcd and its data in a node's container.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import yaml

from e2e import background_process
from e2e.clusters.cluster import API_SERVER, Cluster
from e2e.clusters.native import NativeControl
from e2e.clusters.native_control_plane import ETCD, START_TIMEOUT
from e2e.clusters.native_site import Site
from e2e.clusters.startup_client import StartupClient
from e2e.kubectl import wait_for

#: Ports that the original does not use.
_ETCD_PORT, _PEER_PORT, _API_PORT = 2479, 2480, 7443


def saved(home: Cluster, folder: Path) -> Path:
    """Copies etcd's data into a new folder. etcd is suspended meanwhile, so the copy is the state
    after a crash."""
    home.suspend_component(ETCD)
    try:
        shutil.copytree(_site(home).folder / "etcd", folder)  # makes the folders above, too
    finally:
        home.resume_component(ETCD)
    return folder


@contextmanager
def restored(home: Cluster, data: Path, *others: Cluster) -> Iterator[list[Cluster]]:
    """The restored cluster while the block runs: a handle for ``home``, and one for each of
    ``others``, which are handles of the original with other kubeconfigs."""
    site, folder = _site(home), data.parent
    client, peer = f"http://127.0.0.1:{_ETCD_PORT}", f"http://127.0.0.1:{_PEER_PORT}"
    etcd = {
        "--data-dir": str(data),
        "--listen-client-urls": client,
        "--advertise-client-urls": client,
        "--listen-peer-urls": peer,
    }
    server = {
        "--etcd-servers": client,
        "--secure-port": str(_API_PORT),
        "--audit-log-path": str(folder / "restored-audit.log"),
        "--cert-dir": str(folder / "restored-certificates"),
    }
    with ExitStack() as stack:
        stack.enter_context(_running(site, ETCD, etcd, folder))
        stack.enter_context(_running(site, API_SERVER, server, folder))
        api = StartupClient(
            str(site.plan.node.ip), site.pki / "ca.crt", site.pair("admin"), port=_API_PORT
        )
        wait_for(api.ready, "the restored API server is ready", seconds=START_TIMEOUT)
        api.close()
        yield [_at_other_port(cluster, folder) for cluster in (home, *others)]


def _site(cluster: Cluster) -> Site:
    control = cluster.control
    assert isinstance(control, NativeControl), "only the native backend supports restoring a home"
    return control.site


@contextmanager
def _running(site: Site, name: str, changes: dict[str, str], folder: Path) -> Iterator[None]:
    """A component with the original's flags except ``changes``."""
    kept = [flag for flag in site.supervisor.command(name) if flag.partition("=")[0] not in changes]
    command = [*kept, *(f"{flag}={value}" for flag, value in changes.items())]
    inside = ["nsenter", f"--net={site.network.path}", "--"]
    with background_process.running([*inside, *command], folder / f"restored-{name}.log"):
        yield


def _at_other_port(cluster: Cluster, folder: Path) -> Cluster:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server = f"https://{cluster.node_ip}:{_API_PORT}"
    for each in config["clusters"]:
        each["cluster"]["server"] = server
    path = folder / f"restored-{cluster.kubeconfig.name}"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return replace(cluster, kubeconfig=path, server=server, audit_log=None)
