"""Volumes with the mode Block: a pod on the virtual node writes to a device of the remote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.clusters.cluster import Cluster
from e2e.clusters.run_command import run
from e2e.kubectl import get_one, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.workload_manifests import shell, volume_claim

#: Bytes of the device: 8Mi.
SIZE = 8 << 20
#: Where the container has the device.
DEVICE = "/dev/data"


@contextmanager
def _loop_device(folder: Path) -> Iterator[tuple[str, Path]]:
    """A block device of this machine, which the remote's node has too, and the file behind it."""
    file = folder / "device"
    file.write_bytes(bytes(SIZE))
    device = run(["losetup", "--find", "--show", file]).stdout.strip()
    try:
        yield device, file
    finally:
        run(["losetup", "--detach", device])


@contextmanager
def _block_class(remote: Cluster, name: str, device: str) -> Iterator[str]:
    """A class of the remote with one PersistentVolume that an administrator created."""
    host = [remote.node_names[0]]
    on_host = {"key": "kubernetes.io/hostname", "operator": "In", "values": host}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "8Mi"},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "storageClassName": name,
            "local": {"path": device},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_host]}]}},
        },
    }
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    for manifest in (storage_class, volume):
        remote.kubectl("create", "-f", "-", input=json.dumps(manifest))
    try:
        yield name
    finally:
        remote.kubectl("delete", f"storageclass/{name}", f"pv/{name}", "--wait=false")


def test_pod_writes_to_block_device_of_remote(storage: ProvisionedStorage, tmp_path: Path) -> None:
    """The home PVC and both PersistentVolumes have the mode Block, with the remote's capacity, and
    the container has the device."""
    bridged = storage.bridged
    script = f"printf raw-bytes | dd of={DEVICE} conv=fsync,notrunc; sleep 3600"
    devices = [{"name": "data", "devicePath": DEVICE}]
    with (
        _loop_device(tmp_path) as (device, file),
        _block_class(storage.remote, f"raw-{bridged.node}", device) as there,
        storage.home_class("raw", remote_class=there) as name,
    ):
        bridged.apply(volume_claim("raw", name, "1Mi", volumeMode="Block"))
        main = shell("main", script, volumeDevices=devices)
        bridged.apply(storage.node_pod("writes", "raw", containers=[main]))
        storage.wait_until_ready("writes")
        wait_for(lambda: file.read_bytes()[:9] == b"raw-bytes", "the device has the bytes")
        (volume,) = storage.volumes()
        assert volume["spec"]["volumeMode"] == "Block"
        wait_for(
            lambda: storage.claims()["raw"]["status"]["capacity"]["storage"] == "8Mi",
            "home shows the capacity of the device",
        )
        bound = get_one(storage.remote, "pv", there)["spec"]["claimRef"]["name"]
        assert bound == storage.remote_claims()[0]["metadata"]["name"]
        # The device is free again before it is detached.
        storage.clear()
