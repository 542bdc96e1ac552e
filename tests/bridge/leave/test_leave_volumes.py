"""A virtual node does not leave while volumes of home have their data in its remote, and deletes no
volume when it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.leave.leave_summary import volumes_error
from bridge.node import node_object
from sync.kube.api_resources import (
    CSI_STORAGE_CAPACITIES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    VOLUME_SNAPSHOT_CONTENTS,
)
from tests.bridge.leave.test_leave_procedure import World, _cluster
from tests.bridge.two_clusters import Clusters
from tests.objects import node
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_NODE
from translators.virtual_node_identity import home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def world(two: Clusters) -> World:
    """A joined node with a volume."""
    made = World(two)
    remote_id = home_id_from_uid(_cluster(two.remote))
    two.home.put(_volume("pvc-1", f"{remote_id}/{REMOTE_NAMESPACE}/data-0123"))
    two.home.put(_volume("pvc-2", "another/default/data"))
    two.remote.put(
        made.ours(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data-0123", "namespace": REMOTE_NAMESPACE},
                "spec": {},
            }
        )
    )
    two.home.put(NAMESPACES.manifest({"name": "cluster-bridge"}))
    labels = {LABEL_NODE: NODE}
    meta = {"name": "c", "namespace": "cluster-bridge", "labels": labels}
    two.home.put(CSI_STORAGE_CAPACITIES.manifest(meta, storageClassName="burst"))
    two.home.clear_log()
    two.remote.clear_log()
    return made


def _volume(name: str, handle: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "claimRef": {"namespace": "shop", "name": "db"},
            "csi": {"driver": "volumes.cluster-bridge.io", "volumeHandle": handle},
        },
    }


async def test_leave_refuses_and_lists_the_volumes(world: World) -> None:
    message = await world.refused()
    assert "pvc-1 (shop/db)" in message
    assert "pvc-2" not in message
    assert "--keep-volumes" in message


async def test_leave_refuses_while_snapshots_are_in_remote(world: World) -> None:
    home = world.two.home
    home.register(VOLUME_SNAPSHOT_CONTENTS)
    handle = f"{home_id_from_uid(_cluster(world.two.remote))}/{REMOTE_NAMESPACE}/data-0123"
    home.remove(PERSISTENT_VOLUMES, "pvc-1")
    home.put(
        VOLUME_SNAPSHOT_CONTENTS.manifest(
            {"name": "snapcontent-1"},
            spec={
                "driver": "volumes.cluster-bridge.io",
                "source": {"volumeHandle": handle},
                "volumeSnapshotRef": {"namespace": "shop", "name": "friday", "uid": "u"},
            },
        )
    )
    assert "VolumeSnapshots shop/friday" in await world.refused()


async def test_kept_volumes_and_their_data_are_untouched(world: World) -> None:
    assert await world.leave(replace(world.settings, keep_volumes=True))
    two = world.two
    assert two.home.find(NODES, NODE) is None
    assert two.home.objects(CSI_STORAGE_CAPACITIES) == []
    assert len(two.home.objects(PERSISTENT_VOLUMES)) == 2
    assert two.remote.find(PERSISTENT_VOLUME_CLAIMS, "data-0123", REMOTE_NAMESPACE)
    assert two.remote.find(NAMESPACES, REMOTE_NAMESPACE)
    assert any("PersistentVolumes pvc-1 (shop/db)" in str(line) for line in world.notified)


async def test_other_virtual_node_of_the_remote_serves_the_volumes(world: World) -> None:
    labels = {node_object.LABEL_REMOTE: home_id_from_uid(_cluster(world.two.remote))}
    other = node("other")
    other["metadata"]["labels"] = labels
    world.two.home.put(other)
    assert await world.leave()
    assert len(world.two.home.objects(PERSISTENT_VOLUMES)) == 2


def test_error_counts_many_volumes() -> None:
    message = volumes_error("burst", [_volume(f"pvc-{number}", "") for number in range(30)])
    assert "10 more" in message
