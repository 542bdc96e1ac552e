"""The snapshot controller in a cluster: a process beside the other components.

It creates a VolumeSnapshotContent for each VolumeSnapshot, copies the status back, and deletes
both. It ends by itself without the CustomResourceDefinitions of VolumeSnapshots, so
`e2e.volume_snapshots` starts it after them, and removes it before them.
"""

from __future__ import annotations

from pathlib import Path

from e2e.clusters.cluster import SNAPSHOT_CONTROLLER
from e2e.clusters.native_site import Site

COMPONENTS = (SNAPSHOT_CONTROLLER,)


def start(site: Site, folder: Path) -> None:
    """Starts the snapshot controller in a native cluster unless it runs."""
    if SNAPSHOT_CONTROLLER in site.supervisor.names():
        site.supervisor.start_again(SNAPSHOT_CONTROLLER)
        return
    kubeconfig = site.settings.kubeconfig(site.spec.name)
    program = folder / SNAPSHOT_CONTROLLER
    site.supervisor.start(SNAPSHOT_CONTROLLER, command(program, kubeconfig))


def command(program: str | Path, kubeconfig: str | Path) -> list[str | Path]:
    """Its command line; the default rate, 5 requests per second, and waits of minutes between two
    attempts would delay tests."""
    rate = ("--kube-api-qps=50", "--kube-api-burst=100", "--retry-interval-max=5s")
    return [program, f"--kubeconfig={kubeconfig}", *rate]
