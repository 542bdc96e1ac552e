"""The tests' own CSI driver in a cluster, with Kubernetes' sidecars: processes beside its other
components, on the node that runs pods.

Its volumes are attached before they are mounted, as disks of a cloud are. It serves no StorageClass
by itself (`e2e.storage_classes`). Volumes are directories below one folder, which is removed with
the cluster.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.clusters import go_recipes
from e2e.clusters.cluster import API_SERVER, CsiPart
from e2e.clusters.go_recipes import Recipe
from e2e.clusters.native_site import Site
from e2e.clusters.provisioners import START_TIMEOUT

COMPONENTS = tuple(CsiPart)

#: The name of the driver in StorageClasses and PersistentVolumes.
CSI_DRIVER_NAME = "csi.test.cluster-bridge.io"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the driver runs: its volumes and socket are in ``folder``, and the kubelet of ``node``
    finds drivers by sockets in ``registry``."""

    kubeconfig: Path
    folder: Path
    registry: Path
    node: str

    @property
    def socket(self) -> Path:
        return self.folder / "csi.sock"


def start(site: Site, part: CsiPart, programs: Path) -> None:
    """Starts a part in a native cluster unless it runs.

    :raises StartFailed: the API server did not accept an object in time.
    """
    place = Place(
        kubeconfig=site.settings.kubeconfig(site.spec.name),
        folder=site.folder / "csi",
        registry=site.folder / "kubelet" / "root" / "plugins_registry",
        node=site.node_names[0],
    )
    if part is CsiPart.DRIVER:
        api = site.api
        path, body = csi_driver_object()
        made = functools.partial(api.create_if_absent, path, body)
        site.wait(f"POST {path} was accepted", made, (API_SERVER,), START_TIMEOUT)
        api.close()
    if part in site.supervisor.names():
        site.supervisor.start_again(part)
    else:
        site.supervisor.start(part, command(part, programs / part, place))


def recipe(part: CsiPart) -> Recipe:
    """The build with the program of a part, which has its name."""
    if part is CsiPart.ATTACHER:
        return go_recipes.csi_attacher()
    return go_recipes.csi_driver()


def command(part: CsiPart, program: str | Path, place: Place) -> list[str | Path]:
    """The command line of a part."""
    if part is CsiPart.DRIVER:
        return [
            program,
            f"--name={CSI_DRIVER_NAME}",
            f"--socket={place.socket}",
            f"--folder={place.folder}",
            f"--registry={place.registry}",
            f"--node={place.node}",
        ]
    return [
        program,
        f"--kubeconfig={place.kubeconfig}",
        f"--csi-address={place.socket}",
        # The defaults, such as 5 requests per second, would delay tests.
        *("--kube-api-qps=50", "--kube-api-burst=100", "--retry-interval-max=5s"),
    ]


def csi_driver_object() -> tuple[str, Json]:
    """The CSIDriver: (path to post to, object)."""
    spec = {"attachRequired": True, "podInfoOnMount": False, "fsGroupPolicy": "File"}
    return "/apis/storage.k8s.io/v1/csidrivers", {
        "metadata": {"name": CSI_DRIVER_NAME},
        "spec": spec,
    }
