"""VolumeSnapshots: taken in the remote, shown at home, restored, and deleted by home's policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from e2e.clusters.cluster import Cluster
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import hostpath
from e2e.volume_snapshots import SnapshotController, defined, snapshot_class
from e2e.workload_manifests import volume_claim


@pytest.fixture(scope="module")
def _snapshots_defined(clusters: dict[str, Cluster]) -> Iterator[None]:
    """Both clusters serve VolumeSnapshots before the bridge joins."""
    with ExitStack() as stack:
        for cluster in clusters.values():
            stack.enter_context(defined(cluster, settings_from_environment()))
        yield


pytestmark = pytest.mark.usefixtures("_snapshots_defined", "provisioners")


@pytest.fixture
def storage(bridged: Bridged) -> Iterator[ProvisionedStorage]:
    """A virtual node; afterwards the test's volumes are deleted."""
    bridged.wait_until_schedulable()
    made = ProvisionedStorage(bridged)
    yield made
    made.clear()


def test_snapshot_is_taken_restored_and_deleted(storage: ProvisionedStorage) -> None:
    """The restored volume has the data of the time of the snapshot."""
    bridged = storage.bridged
    snapshots = SnapshotController(storage.home, bridged.namespace)

    def in_remote() -> list[Json]:
        return get(storage.remote, "volumesnapshots", namespace=bridged.remote_namespace)

    with (
        hostpath(storage.remote, default=True),
        storage.home_class("burst") as name,
        snapshot_class(storage.home, f"burst-{bridged.node}") as of_class,
    ):
        bridged.apply(volume_claim("data", name, "8Mi"))
        script = "echo before > /data/file; sleep 3600"
        bridged.apply(storage.node_pod("writes", "data", script))
        storage.wait_until_ready("writes")
        wait_for(lambda: storage.read("writes") == "before\n", "the pod has written")
        snapshots.create("friday", "data", of_class)
        status = snapshots.share_status("friday")
        assert status["restoreSize"] == 8 << 20
        assert status["creationTime"] > 0
        (remote,) = in_remote()
        assert status["snapshotHandle"].endswith(
            f"/{bridged.remote_namespace}/{remote['metadata']['name']}"
        )
        bridged.kubectl("exec", "writes", "--", "sh", "-c", "echo after > /data/file")

        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "friday"}
        bridged.apply(volume_claim("restored", name, "8Mi", dataSource=source))
        bridged.apply(storage.node_pod("reads", "restored"))
        storage.wait_until_ready("reads")
        assert storage.read("reads") == "before\n"
        assert storage.read("writes") == "after\n"

        snapshots.delete("friday")
        assert not in_remote()
