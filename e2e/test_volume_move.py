"""Volumes are copied and moved between home and the remote, through home's API server alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import service_accounts
from e2e.bridge_process import Bridge
from e2e.clusters import specs
from e2e.clusters.cluster import Provisioner
from e2e.clusters.pytest_fixture import running, settings_from_environment
from e2e.conftest import Bridged, joined, usual_options
from e2e.kubectl import get_one, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import local_path
from e2e.volume_transfers import WRITE, digest, node_of_home, run_volume, started
from e2e.workload_manifests import BUSYBOX, volume_claim

pytestmark = pytest.mark.usefixtures("provisioners", "home_provisioner")


def test_move_from_home_to_remote_and_back(storage: ProvisionedStorage) -> None:
    """The data, with all its metadata, is on the virtual node, and later at home again; each time
    the old data is in a second claim until that is deleted."""
    bridged = storage.bridged
    name, home_node = f"{bridged.namespace}/data", node_of_home(storage)
    options = ("--image", BUSYBOX, "--yes")
    with (
        local_path(storage.home, default=True) as near,
        local_path(storage.remote, default=True),
        storage.home_class("some") as far,
    ):
        bridged.apply(volume_claim("data", near, "64Mi"))
        before = digest(storage, "data", home_node, WRITE)
        uid = storage.claims()["data"]["metadata"]["uid"]

        there = ("--to", bridged.node, "--storage-class", far)
        planned = run_volume(storage, "move", name, *there, "--dry-run")
        assert (
            f"swap the volumes of both: {name} has its data on {bridged.node} (dry run)" in planned
        )
        assert storage.claims().keys() == {"data"}

        moved = run_volume(storage, "move", name, *there, *options)
        assert f"{name} has its data on {bridged.node}" in moved
        claims = storage.claims()
        assert claims["data"]["metadata"]["uid"] == uid
        assert storage.phases() == dict.fromkeys(claims, "Bound")
        assert digest(storage, "data", bridged.node) == before
        (old,) = claims.keys() - {"data"}
        assert digest(storage, old, home_node) == before
        bridged.kubectl("delete", "pvc", old, "--wait=true")

        back = ("--to", home_node, "--storage-class", near)
        run_volume(storage, "move", name, *back, *options, "--delete-old")
        assert digest(storage, "data", home_node) == before
        wait_for(lambda: not storage.remote_claims(), "the old data is deleted in the remote")
        assert storage.claims().keys() == {"data"}
        assert storage.claims()["data"]["metadata"]["uid"] == uid
        assert not bridged.home_pods()
        volume = get_one(storage.home, "pv", storage.claims()["data"]["spec"]["volumeName"])
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


@pytest.fixture
def second(
    request: pytest.FixtureRequest, storage: ProvisionedStorage, tmp_path: Path
) -> Iterator[Bridged]:
    """The virtual node of a second remote, which may use the namespace of the first's test."""
    first = storage.bridged
    node = f"{first.node}-2"
    with running(request, specs(["second"]), settings_from_environment()) as found:
        remote = found["second"]
        remote.provision_volumes(Provisioner.LOCAL_PATH, print)
        near = service_accounts.at_home(first.home, tmp_path, node)
        far = service_accounts.in_remote(remote, tmp_path)
        bridge = Bridge(near, far, tmp_path / "second.log", usual_options(node))
        try:
            with joined(bridge, node, home=first.home, remote=remote) as made:
                service_accounts.bind(first.home, node, first.namespace)
                yield made
        finally:
            print(bridge.log.read_text())
            service_accounts.take_away_at_home(first.home, node)


def test_move_between_two_remotes(storage: ProvisionedStorage, second: Bridged) -> None:
    """One StorageClass serves both remotes; the data goes through home."""
    bridged = storage.bridged
    with (
        local_path(storage.remote, default=True),
        local_path(second.remote, default=True),
        storage.home_class("some") as name,
    ):
        bridged.apply(volume_claim("data", name, "64Mi"))
        before = digest(storage, "data", bridged.node, WRITE)
        moved = ("--to", second.node, "--image", BUSYBOX, "--yes", "--delete-old")
        run_volume(storage, "move", f"{bridged.namespace}/data", *moved)
        assert digest(storage, "data", second.node) == before
        wait_for(lambda: not storage.remote_claims(), "the old data is deleted in the first remote")
        storage.clear()


def _killed(storage: ProvisionedStorage, log: Path, until: str, *args: str) -> None:
    """Runs `bridge volume`, and kills it when its output has ``until``."""
    with started(storage.home.kubeconfig, log, *args) as process:
        wait_for(lambda: until in log.read_text() or process.poll() is not None, until)
        assert process.poll() is None, log.read_text()


def test_refusal_interruption_and_cancel(storage: ProvisionedStorage, tmp_path: Path) -> None:
    """A claim in use is refused. A killed command leaves the data, and is run again or undone."""
    bridged = storage.bridged
    name, home_node = f"{bridged.namespace}/data", node_of_home(storage)
    with (
        local_path(storage.home, default=True) as near,
        local_path(storage.remote, default=True),
        storage.home_class("some") as far,
    ):
        options = ("--to", bridged.node, "--storage-class", far, "--image", BUSYBOX, "--yes")
        bridged.apply(volume_claim("data", near, "64Mi"))
        bridged.apply(storage.node_pod("writer", "data", nodeSelector={}, tolerations=[]))
        storage.wait_until_ready("writer")
        refused = run_volume(storage, "move", name, *options, succeeds=False)
        assert f"writer uses PersistentVolumeClaim {name}" in refused
        assert storage.claims().keys() == {"data"}
        bridged.kubectl("delete", "pod", "writer", "--wait=true")
        before = digest(storage, "data", home_node, WRITE)

        began = "transfer pods run"
        _killed(storage, tmp_path / "first.log", began, "move", name, *options)
        run_volume(storage, "cancel", name)
        assert storage.claims().keys() == {"data"}
        assert not bridged.home_pods()

        _killed(storage, tmp_path / "second.log", began, "move", name, *options)
        run_volume(storage, "move", name, *options, "--delete-old")
        assert digest(storage, "data", bridged.node) == before
        assert storage.claims().keys() == {"data"}
