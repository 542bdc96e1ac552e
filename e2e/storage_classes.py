"""StorageClasses with a real provisioner, for the duration of a block.

    with local_path(remote, default=True): ...
    with hostpath(remote, "slow", parameters={"provisionDelay": "5s"}) as name: ...

The provisioner itself runs until the cluster is removed, so that it deletes the volumes of a
namespace that a test deletes last. Tests use the fixture `provisioners` as well, which builds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from e2e.clusters.cluster import Cluster, CsiPart, Provisioner
from e2e.clusters.csi_driver import CSI_DRIVER_NAME
from e2e.clusters.provisioners import DRIVERS
from e2e.kubectl import Json
from translators.ownership_labels import LABEL_REMOTE

LOCAL_PATH = "local-path"
HOSTPATH = "hostpath"

WAIT = "WaitForFirstConsumer"
IMMEDIATE = "Immediate"

_SERVED = Path(__file__).parents[1] / "manifests" / "storage-class.yaml"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@contextmanager
def local_path(
    cluster: Cluster, name: str = LOCAL_PATH, *, default: bool = False, retain: bool = False
) -> Iterator[str]:
    """A class of local-path-provisioner, as in its manifest; yields the name."""
    cluster.provision_volumes(Provisioner.LOCAL_PATH, print)
    driver = DRIVERS[Provisioner.LOCAL_PATH]
    with _class(cluster, driver, name, default=default, retain=retain):
        yield name


@contextmanager
def hostpath(
    cluster: Cluster,
    name: str = HOSTPATH,
    *,
    binding: str = WAIT,
    default: bool = False,
    retain: bool = False,
    expandable: bool = True,
    parameters: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A class of the tests' own provisioner; yields the name.

    ``parameters`` are listed at the top of `clusters/programs/hostpath_provisioner/main.go`: errors
    and delays of provisioning and expansion, capacity, rounding.
    """
    fields = {"allowVolumeExpansion": expandable, "parameters": dict(parameters or {})}
    cluster.provision_volumes(Provisioner.HOSTPATH, print)
    driver = DRIVERS[Provisioner.HOSTPATH]
    with _class(cluster, driver, name, binding, fields, default=default, retain=retain):
        yield name


@contextmanager
def csi(
    cluster: Cluster, name: str = "csi", *, binding: str = WAIT, default: bool = False
) -> Iterator[str]:
    """A class of the tests' CSI driver, whose volumes are attached to nodes; yields the name."""
    for part in (CsiPart.DRIVER, CsiPart.PROVISIONER, CsiPart.ATTACHER):
        cluster.run_csi(part, print)
    with _class(cluster, CSI_DRIVER_NAME, name, binding, default=default, retain=False):
        yield name


@contextmanager
def served_class(
    home: Cluster,
    name: str,
    *,
    remote_class: str = "",
    remote_id: str = "",
    default: bool = False,
    retain: bool = False,
) -> Iterator[str]:
    """The class of manifests/storage-class.yaml, whose volumes are in the remote, by this name, and
    its CSIDriver; yields the name."""
    manifest, driver = yaml.safe_load_all(_SERVED.read_text(encoding="utf-8"))
    fields = {"allowVolumeExpansion": manifest["allowVolumeExpansion"]}
    if remote_class:
        fields["parameters"] = {"remoteStorageClass": remote_class}
    if remote_id:
        expressions = [{"key": LABEL_REMOTE, "values": [remote_id]}]
        fields["allowedTopologies"] = [{"matchLabelExpressions": expressions}]
    home.kubectl("apply", "-f", "-", input=json.dumps(driver))
    provisioner, binding = manifest["provisioner"], manifest["volumeBindingMode"]
    with _class(home, provisioner, name, binding, fields, default=default, retain=retain):
        yield name


@contextmanager
def _class(
    cluster: Cluster,
    driver: str,
    name: str,
    binding: str = WAIT,
    fields: Json | None = None,
    *,
    default: bool,
    retain: bool,
) -> Iterator[None]:
    manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": {DEFAULT_CLASS: json.dumps(default)}},
        "provisioner": driver,
        "volumeBindingMode": binding,
        "reclaimPolicy": "Retain" if retain else "Delete",
        **(fields or {}),
    }
    remove = ("delete", "storageclass", name, "--ignore-not-found")
    # An interrupted run may have left one, and most fields of a class are immutable.
    cluster.kubectl(*remove)
    cluster.kubectl("create", "-f", "-", input=json.dumps(manifest))
    try:
        yield
    finally:
        cluster.kubectl(*remove)
