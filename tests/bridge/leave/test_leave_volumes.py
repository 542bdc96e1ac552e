"""A virtual node does not leave while volumes of home have their data in its remote. When it does,
it deletes no volume, and of the remote's PVCs only unfinished ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.leave.leave_summary import volumes_error
from bridge.node import join_record, node_object
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
from tests.fakeapi import Fault
from tests.objects import node, pod
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE
from tests.translators.patch_formats import apply_merge_patch
from translators.object_accessors import Object
from translators.ownership_labels import ANNOTATION_HOME_NAME, ANNOTATION_HOME_UID, LABEL_NODE
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONER,
    ANNOTATION_SELECTED_NODE,
    ANNOTATION_UNFINISHED,
    DRIVER,
    selected_node,
)
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity, home_id_from_uid

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


def _record_ids(world: World, name: str, *remote_ids: str) -> None:
    """The Node records a join with prepared namespaces, which identify the remote too."""
    policy = Policy(Identity("h", "h", name), "10.0.0.1", remote_namespaces=("a",))
    record = join_record.encode_policy(policy, remote_ids=remote_ids)
    annotations = {join_record.ANNOTATION_OPTIONS: record}
    world.two.home.update(NODES, name, {"metadata": {"annotations": annotations}})


@pytest.mark.parametrize("prepared", [NODE, "other"])
async def test_node_of_another_remote_is_no_reason_to_leave(world: World, prepared: str) -> None:
    """Prepared namespaces identify a remote under several IDs; none of them is shared here."""
    other = node("other")
    other["metadata"]["labels"] = {node_object.LABEL_REMOTE: "elsewhere"}
    world.two.home.put(other)
    own_id = home_id_from_uid(_cluster(world.two.remote))
    _record_ids(world, prepared, own_id if prepared == NODE else "elsewhere")
    world.two.home.clear_log()
    assert "pvc-1 (shop/db)" in await world.refused()


async def test_node_of_the_remote_under_another_id_cannot_use_the_volumes(world: World) -> None:
    """The affinity of a PersistentVolume names one ID, as on the Node's label."""
    other = node("other")
    other["metadata"]["labels"] = {node_object.LABEL_REMOTE: "of-a-namespace"}
    world.two.home.put(other)
    _record_ids(world, "other", home_id_from_uid(_cluster(world.two.remote)))
    world.two.home.clear_log()
    assert "pvc-1 (shop/db)" in await world.refused()


def _pending(world: World, name: str, node: str = NODE, **changes: Object) -> None:
    """A PVC in the home cluster that the bridge is to provision on the node."""
    annotations = {ANNOTATION_SELECTED_NODE: node, ANNOTATION_PROVISIONER: DRIVER}
    meta = {"name": name, "namespace": "shop", "annotations": annotations}
    made = PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec={})
    world.two.home.put(apply_merge_patch(made, changes))


@pytest.mark.parametrize("has_node", [True, False])
async def test_unbound_claims_are_released_for_other_nodes(empty: World, *, has_node: bool) -> None:
    """The scheduler considers no other node while the annotation names one that was deleted."""
    _pending(empty, "waits")
    _pending(empty, "bound", spec={"volumeName": "pvc-9"})
    _pending(empty, "of-other-node", "other")
    other = {ANNOTATION_PROVISIONER: "example.com/disk"}
    _pending(empty, "of-other-driver", metadata={"annotations": other})
    if not has_node:
        empty.two.home.remove(NODES, NODE)
    remote = replace(empty.two.settings.remote, context="remote-context")
    assert await empty.leave(replace(empty.settings, remote=remote))
    claims = empty.two.home.objects(PERSISTENT_VOLUME_CLAIMS, "shop")
    selected = {claim["metadata"]["name"]: selected_node(claim) for claim in claims}
    assert selected == {
        "waits": "",
        "bound": NODE,
        "of-other-node": "other",
        "of-other-driver": NODE,
    }
    lines = [line for line in empty.confirmations[0] if "PersistentVolumeClaim shop/" in line]
    assert len(lines) == 1
    assert "PersistentVolumeClaim shop/waits" in lines[0]


async def test_claims_that_may_not_be_changed_are_reported(empty: World) -> None:
    _pending(empty, "waits")
    path = "*/persistentvolumeclaims/waits"
    empty.two.home.fail(Fault("PATCH", path, code=403, times=None))
    assert await empty.leave()
    assert sum("PersistentVolumeClaim shop/waits" in str(line) for line in empty.notified) == 1
    assert empty.two.home.find(NODES, NODE) is None


def test_error_counts_many_volumes() -> None:
    message = volumes_error("burst", [_volume(f"pvc-{number}", "") for number in range(30)])
    assert "10 more" in message


def _unfinished(world: World, name: str = "new-0123", *, node: str = NODE) -> Object:
    """A remote PVC that the bridge was provisioning when it was stopped."""
    made = world.ours(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": REMOTE_NAMESPACE},
            "spec": {},
        },
        node=node,
    )
    made["metadata"]["annotations"][ANNOTATION_UNFINISHED] = "true"
    made["metadata"]["annotations"] |= {ANNOTATION_HOME_NAME: "new", ANNOTATION_HOME_UID: "7"}
    return world.two.remote.put(made)


@pytest.fixture
def empty(world: World) -> World:
    """A joined node without a volume in its remote."""
    world.two.home.remove(PERSISTENT_VOLUMES, "pvc-1")
    world.two.remote.remove(PERSISTENT_VOLUME_CLAIMS, "data-0123", REMOTE_NAMESPACE)
    return world


def _claim(world: World, name: str = "new-0123") -> Object | None:
    return world.two.remote.find(PERSISTENT_VOLUME_CLAIMS, name, REMOTE_NAMESPACE)


async def test_unfinished_claim_and_its_empty_namespace_are_deleted(empty: World) -> None:
    made = _unfinished(empty)
    assert await empty.leave()
    assert _claim(empty) is None
    assert empty.two.remote.find(NAMESPACES, REMOTE_NAMESPACE) is None
    (request,) = empty.two.remote.requests("DELETE", "*/persistentvolumeclaims/new-0123")
    assert request.body["preconditions"] == {
        "uid": made["metadata"]["uid"],
        "resourceVersion": made["metadata"]["resourceVersion"],
    }
    line = f"remote: PersistentVolumeClaim {REMOTE_NAMESPACE}/new-0123, which has no data yet"
    assert line in empty.confirmations[0]


async def test_claims_with_data_stay_beside_an_unfinished_one(world: World) -> None:
    _unfinished(world)
    assert await world.leave(replace(world.settings, keep_volumes=True))
    assert _claim(world) is None
    assert _claim(world, "data-0123")
    assert world.two.remote.find(NAMESPACES, REMOTE_NAMESPACE)


def _with_volume_at_home(world: World) -> None:
    world.two.home.put(_volume("pvc-7", "elsewhere/a/b"))


def _mounted_in_remote(world: World) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "new-0123"}}
    made = pod("other", REMOTE_NAMESPACE)
    made["spec"]["volumes"] = [volume]
    world.two.remote.put(made)


def _selected_for_another_node(world: World) -> None:
    annotations = {ANNOTATION_SELECTED_NODE: "other"}
    meta = {"name": "new", "namespace": "default", "annotations": annotations}
    made = world.two.home.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec={}))
    _annotate(world, ANNOTATION_HOME_UID, made["metadata"]["uid"])


def _not_annotated(world: World) -> None:
    _annotate(world, ANNOTATION_HOME_NAME, None)


def _annotate(world: World, key: str, value: str | None) -> None:
    world.two.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        "new-0123",
        {"metadata": {"annotations": {key: value}}},
        REMOTE_NAMESPACE,
    )


def _unreadable(world: World) -> None:
    world.two.home.fail(Fault("GET", "*/persistentvolumes", code=403, times=None))


def _in_another_namespace_than_the_mapped_one(world: World) -> None:
    """As restored from a backup of the remote."""
    policy = Policy(Identity("h", "home", NODE, "{namespace}-elsewhere"), "10.0.0.1")
    annotations = {join_record.ANNOTATION_OPTIONS: join_record.encode_policy(policy)}
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": annotations}})


@pytest.mark.parametrize(
    "arrange",
    [
        _in_another_namespace_than_the_mapped_one,
        _with_volume_at_home,
        _mounted_in_remote,
        _selected_for_another_node,
        _not_annotated,
        _unreadable,
    ],
)
async def test_unfinished_claim_that_may_be_in_use_stays(
    empty: World, arrange: Callable[[World], None]
) -> None:
    _unfinished(empty)
    arrange(empty)
    assert await empty.leave()
    assert _claim(empty)
    assert not empty.two.remote.requests("DELETE", "*/persistentvolumeclaims/*")


async def test_credential_without_storage_reads_no_claims(empty: World) -> None:
    """The remote's audit log has no forbidden request of a leave."""
    _unfinished(empty)
    claims = PERSISTENT_VOLUME_CLAIMS.plural
    empty.two.remote.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != claims
    assert await empty.leave()
    assert _claim(empty)
    assert not empty.two.remote.requests("GET", f"/api/v1/{claims}")


async def test_claim_that_is_finished_meanwhile_stays(empty: World) -> None:
    _unfinished(empty)

    def finish(_: list[str]) -> bool:
        _annotate(empty, ANNOTATION_UNFINISHED, None)
        return True

    assert await empty.leave(agree=finish)
    assert _claim(empty)


async def test_unfinished_claim_of_sibling_node_stays(empty: World) -> None:
    labels = {node_object.LABEL_REMOTE: home_id_from_uid(_cluster(empty.two.remote))}
    other = node("other")
    other["metadata"]["labels"] = labels
    empty.two.home.put(other)
    _unfinished(empty, node="other")
    assert await empty.leave()
    assert _claim(empty)


async def test_changed_claim_is_not_deleted(empty: World) -> None:
    """The precondition fails: another writer changed the PVC after it was read."""
    _unfinished(empty)
    empty.two.remote.fail(Fault("DELETE", "*/persistentvolumeclaims/*", code=409))
    assert await empty.leave()
    assert len(empty.two.remote.requests("DELETE", "*/persistentvolumeclaims/*")) == 2
