"""Provisioners of PersistentVolumes in a cluster: processes beside its other components.

Volumes are directories of the node below one folder, which is removed with the cluster. A
provisioner runs until then: without it, no volume would be deleted. It serves no StorageClass by
itself; `e2e.storage_classes` creates them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import API_SERVER, Provisioner
from e2e.clusters.image_archives import BUSYBOX
from e2e.clusters.native_site import Site

COMPONENTS = tuple(Provisioner)

#: Names of the provisioners in StorageClasses. Without a slash, a CSIDriver may have the name: only
#: then schedulers respect capacities.
DRIVERS = {
    Provisioner.LOCAL_PATH: "rancher.io/local-path",
    Provisioner.HOSTPATH: "hostpath.test.cluster-bridge.io",
}

START_TIMEOUT = 60.0

LOCAL_PATH_NAMESPACE = "local-path-storage"
_ACCOUNT = "helper"
_CONFIG = "local-path-config"

Json = dict[str, Any]


def start(site: Site, provisioner: Provisioner, programs: Path) -> None:
    """Starts a provisioner in a native cluster unless it runs.

    :raises StartFailed: the API server did not accept an object in time.
    """
    api = site.api
    for path, body in objects(provisioner):
        made = functools.partial(api.create_if_absent, path, body)
        site.wait(f"POST {path} was accepted", made, (API_SERVER,), START_TIMEOUT)
    api.close()
    if provisioner in site.supervisor.names():
        site.supervisor.start_again(provisioner)
        return
    kubeconfig = site.settings.kubeconfig(site.spec.name)
    folder, node = site.folder / "volumes", site.node_names[0]
    site.supervisor.start(
        provisioner, command(provisioner, programs / provisioner, kubeconfig, folder, node)
    )


def command(
    provisioner: Provisioner,
    program: str | Path,
    kubeconfig: str | Path,
    folder: str | Path,
    node: str,
) -> list[str | Path]:
    """The command line of a provisioner.

    `folder` is that of the volumes on the node, `node` the node of volumes for which the scheduler
    selects none.
    """
    flags: list[str | Path] = [f"--kubeconfig={kubeconfig}"]
    driver = DRIVERS[provisioner]
    if provisioner is Provisioner.HOSTPATH:
        return [program, *flags, f"--provisioner={driver}", f"--folder={folder}", f"--node={node}"]
    paths = {"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [str(folder)]}
    return [
        *(program, "start", *flags),
        # Not the name of a file, so the configuration itself.
        f"--config={json.dumps({'nodePathMap': [paths]}, separators=(',', ':'))}",
        f"--provisioner-name={driver}",
        f"--namespace={LOCAL_PATH_NAMESPACE}",
        f"--configmap-name={_CONFIG}",
        f"--service-account-name={_ACCOUNT}",
    ]


def objects(provisioner: Provisioner) -> list[tuple[str, Json]]:
    """The API objects that a provisioner needs: (path to post to, object)."""
    if provisioner is Provisioner.HOSTPATH:
        # No kubelet plugin has this name: the scheduler reads the object, volumes are hostPath.
        spec = {"attachRequired": False, "podInfoOnMount": False, "storageCapacity": True}
        driver = {"metadata": {"name": DRIVERS[provisioner]}, "spec": spec}
        return [("/apis/storage.k8s.io/v1/csidrivers", driver)]
    core = f"/api/v1/namespaces/{LOCAL_PATH_NAMESPACE}"
    config = {
        "helperPod.yaml": json.dumps(_helper_pod()),
        # Upstream's scripts.
        "setup": '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n',
        "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
    }
    return [
        ("/api/v1/namespaces", {"metadata": {"name": LOCAL_PATH_NAMESPACE}}),
        (f"{core}/serviceaccounts", {"metadata": {"name": _ACCOUNT}}),
        (f"{core}/configmaps", {"metadata": {"name": _CONFIG}, "data": config}),
    ]


def _helper_pod() -> Json:
    """The pod that local-path-provisioner completes and runs to create or delete a directory."""
    container = {"name": "helper-pod", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "helper-pod"},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }
