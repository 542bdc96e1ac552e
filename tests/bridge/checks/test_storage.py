"""Whether a join provisions volumes, and the checks of StorageClasses and retained data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.checks import storage
from bridge.checks.check_context import CheckContext, ClusterConnectivity
from bridge.checks.findings import Severity
from bridge.clusters.storage_selection import SelectedStorage, select_storage
from bridge.node import join_record
from sync.kube.api_resources import (
    CSI_STORAGE_CAPACITIES,
    NAMESPACES,
    PERSISTENT_VOLUMES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Object,
)
from tests.bridge.two_clusters import Clusters
from tests.conftest import ClientFor
from tests.fakeapi import Fault
from tests.objects import pod
from translators.ownership_labels import LABEL_HOME, LABEL_NODE, LABEL_REMOTE
from translators.storage.identifiers import DRIVER
from translators.virtual_node_identity import home_id_from_uid

_MANIFEST = Path(__file__).parents[3] / "manifests" / "storage-class.yaml"
_RECORDED = {
    "metadata": {
        "name": "virtual",
        "labels": {LABEL_REMOTE: "remote-id"},
        "annotations": {join_record.ANNOTATION_OPTIONS: '{"storage":"provision"}'},
    }
}


async def _select(
    two: Clusters, client_for: ClientFor, node: Object | None = None, **changes: Any
) -> SelectedStorage:
    async def registered() -> Object | None:
        return node

    return await select_storage(
        two.but(**{"storage": "auto", **changes}),
        registered_node=registered,
        home=await client_for(two.home, "home"),
        remote=await client_for(two.remote, "remote"),
    )


def _may_not(resource: str) -> Any:
    """Allows all but this resource."""

    def authorize(spec: Object) -> bool:
        return bool(spec["resourceAttributes"].get("resource") != resource)

    return authorize


async def test_auto_provisions_with_all_permissions(two: Clusters, client_for: ClientFor) -> None:
    assert (await _select(two, client_for)).mode == "provision"


@pytest.mark.parametrize("side", ["home", "remote"])
async def test_auto_does_not_provision_without_a_permission(
    two: Clusters, client_for: ClientFor, side: str
) -> None:
    getattr(two, side).api.authorize = _may_not("persistentvolumeclaims")
    selected = await _select(two, client_for)
    assert selected.mode == "none"
    assert "persistentvolumeclaims" in selected.reason


@pytest.mark.parametrize("storage", ["auto", "provision"])
async def test_group_that_is_not_served_means_no_snapshots(
    two: Clusters, client_for: ClientFor, storage: str
) -> None:
    async def not_served(_: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    for api in (two.home, two.remote):
        api.route("GET", f"/apis/{VOLUME_SNAPSHOTS.api_version}", not_served)
    assert not (await _select(two, client_for, storage=storage)).snapshots


@pytest.mark.parametrize("storage", ["auto", "provision"])
async def test_snapshots_need_resources_of_both_sides(
    two: Clusters, client_for: ClientFor, storage: str
) -> None:
    two.home.register(VOLUME_SNAPSHOT_CONTENTS)
    assert not (await _select(two, client_for, storage=storage)).snapshots
    two.remote.register(VOLUME_SNAPSHOTS)
    assert (await _select(two, client_for, storage=storage)).snapshots


@pytest.mark.parametrize("side", ["home", "remote"])
async def test_snapshots_are_optional(two: Clusters, client_for: ClientFor, side: str) -> None:
    """Without their permissions volumes are provisioned nevertheless."""
    two.home.register(VOLUME_SNAPSHOT_CONTENTS)
    two.remote.register(VOLUME_SNAPSHOTS)
    getattr(two, side).api.authorize = _may_not("volumesnapshots")
    selected = await _select(two, client_for)
    assert (selected.mode, selected.snapshots) == ("provision", False)
    assert "volumesnapshots" in selected.no_snapshots


@pytest.mark.parametrize("is_joined", [False, True])
async def test_check_states_whether_snapshots_are_available(
    two: Clusters, client_for: ClientFor, *, is_joined: bool
) -> None:
    async def found() -> str:
        context = await _context(two, client_for, two.but(storage="provision"))
        node = _RECORDED if is_joined else None
        (finding,) = await storage.check_provisioning(replace(context, node=node))
        assert finding.severity is Severity.OK
        return finding.found

    name = "volumesnapshotcontents.v1.snapshot.storage.k8s.io"
    assert f"takes no VolumeSnapshots: home does not serve {name}" in await found()
    two.home.register(VOLUME_SNAPSHOT_CONTENTS)
    assert "takes no VolumeSnapshots: remote does not serve" in await found()
    two.remote.register(VOLUME_SNAPSHOTS)
    assert (await found()).endswith("takes VolumeSnapshots")
    two.remote.api.authorize = _may_not("volumesnapshots")
    assert "takes no VolumeSnapshots: the credentials may not" in await found()


async def test_named_mode_is_not_reviewed(two: Clusters, client_for: ClientFor) -> None:
    assert await _select(two, client_for, storage="none") == SelectedStorage("none", "by --storage")
    assert not two.home.log


def _put_volume(two: Clusters, remote_id: str) -> None:
    csi = {"driver": DRIVER, "volumeHandle": f"{remote_id}/shop/data"}
    two.home.put(PERSISTENT_VOLUMES.manifest({"name": remote_id}, spec={"csi": csi}))


async def test_lost_permission_is_an_error_for_node_with_volumes(
    two: Clusters, client_for: ClientFor
) -> None:
    _put_volume(two, "remote-id")
    two.remote.api.authorize = _may_not("persistentvolumeclaims")
    message = r"may no longer .*persistentvolumeclaims.*--storage none"
    with pytest.raises(PreflightError, match=message):
        await _select(two, client_for, _RECORDED)


async def test_lost_permission_to_list_volumes_is_an_error(
    two: Clusters, client_for: ClientFor
) -> None:
    two.home.api.authorize = _may_not("persistentvolumes")
    two.home.fail(Fault(code=403, when=lambda it: it.path == PERSISTENT_VOLUMES.path()))
    with pytest.raises(PreflightError, match=r"may no longer .*persistentvolumes"):
        await _select(two, client_for, _RECORDED)


async def test_lost_permission_of_node_without_volumes_ends_provisioning(
    two: Clusters, client_for: ClientFor
) -> None:
    """Volumes of another remote stay out of it."""
    _put_volume(two, "other-id")
    two.remote.api.authorize = _may_not("persistentvolumeclaims")
    assert (await _select(two, client_for, _RECORDED)).mode == "none"


async def _context(two: Clusters, client_for: ClientFor, settings: JoinSettings) -> CheckContext:
    return CheckContext(
        settings,
        "virtual",
        ClusterConnectivity("home", await client_for(two.home, "home")),
        ClusterConnectivity("remote", await client_for(two.remote, "remote")),
    )


async def _classes(two: Clusters, client_for: ClientFor) -> tuple[Severity, str]:
    context = await _context(two, client_for, two.but(storage="provision"))
    (finding,) = await storage.check_classes(context)
    return finding.severity, finding.found


def _manifest() -> tuple[Object, Object]:
    """A StorageClass and the CSIDriver."""
    made, driver = yaml.safe_load_all(_MANIFEST.read_text("utf-8"))
    return made, driver


def _apply(two: Clusters, **fields: Any) -> None:
    made, driver = _manifest()
    two.home.put({**made, **fields})
    two.home.put(driver)


def _remote_class(two: Clusters, *, default: bool = True) -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    two.remote.put(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "fast", "annotations": annotations},
            "provisioner": "example.com/disk",
        }
    )


async def test_usable_class_is_ok(two: Clusters, client_for: ClientFor) -> None:
    _apply(two)
    _remote_class(two)
    assert await _classes(two, client_for) == (
        Severity.OK,
        "StorageClasses with volumes in the remote: burst",
    )


async def test_home_without_class_is_reported(two: Clusters, client_for: ClientFor) -> None:
    severity, text = await _classes(two, client_for)
    assert (severity, "no StorageClass" in text) == (Severity.INFO, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "the remote has no default StorageClass"),
        ({"parameters": {"remoteStorageClass": "tape"}}, "the remote has no StorageClass tape"),
    ],
)
async def test_missing_remote_class_is_a_warning(
    two: Clusters, client_for: ClientFor, options: Any, problem: str
) -> None:
    _apply(two, **options)
    _remote_class(two, default=False)
    severity, text = await _classes(two, client_for)
    assert (severity, problem in text) == (Severity.WARNING, True)


async def test_immediate_class_and_missing_driver_are_warnings(
    two: Clusters, client_for: ClientFor
) -> None:
    made, _ = _manifest()
    two.home.put({**made, "volumeBindingMode": "Immediate"})
    _remote_class(two)
    severity, text = await _classes(two, client_for)
    assert severity is Severity.WARNING
    assert "no remote is selected" in text
    assert "no CSIDriver" in text


async def test_nothing_is_checked_without_provisioning(
    two: Clusters, client_for: ClientFor
) -> None:
    context = await _context(two, client_for, two.settings)
    assert await storage.check_classes(context) == []
    assert await storage.check_retained_data(context) == []
    assert await storage.check_missing_data(context) == []


async def test_volume_without_persistent_volume_is_reported(
    two: Clusters, client_for: ClientFor
) -> None:
    context = await _context(two, client_for, two.but(storage="provision"))
    home_id = home_id_from_uid(await context.home_uid())
    two.remote.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data-0123",
                "namespace": "default",
                "labels": {LABEL_HOME: home_id},
                "annotations": {
                    "cluster-bridge.io/home-namespace": "shop",
                    "cluster-bridge.io/home-name": "data",
                    "cluster-bridge.io/home-uid": "u",
                },
            },
            "spec": {},
        }
    )
    (finding,) = await storage.check_retained_data(context)
    assert finding.severity is Severity.INFO
    assert "default/data-0123" in finding.found


async def test_class_that_retains_at_home_alone_is_named(
    two: Clusters, client_for: ClientFor
) -> None:
    _apply(two, reclaimPolicy="Retain")
    _remote_class(two)
    context = await _context(two, client_for, two.but(storage="provision"))
    usable, finding = await storage.check_classes(context)
    assert (usable.severity, finding.severity) == (Severity.OK, Severity.INFO)
    assert "burst (fast in the remote)" in finding.found


async def _joined(two: Clusters, client_for: ClientFor) -> CheckContext:
    """The context of a node that provisions volumes."""
    context = await _context(two, client_for, two.but(storage="provision"))
    return replace(context, node=_RECORDED)


async def test_class_without_capacity_is_a_warning(two: Clusters, client_for: ClientFor) -> None:
    _apply(two)
    _remote_class(two)
    context = await _joined(two, client_for)
    two.home.put(NAMESPACES.manifest({"name": "cluster-bridge"}))
    meta: Object = {"name": "c", "namespace": "cluster-bridge", "labels": {LABEL_NODE: "virtual"}}
    for capacity, severity in (("0", Severity.WARNING), ("5Gi", Severity.OK)):
        two.home.put(
            CSI_STORAGE_CAPACITIES.manifest(meta, storageClassName="burst", capacity=capacity)
        )
        (finding,) = await storage.check_classes(context)
        assert finding.severity is severity
        assert ("no capacity left for StorageClass burst" in finding.found) == (capacity == "0")


def _put_bound_volume(two: Clusters, remote_id: str, *, phase: str = "Bound") -> None:
    spec = {
        "csi": {"driver": DRIVER, "volumeHandle": f"{remote_id}/default/data-0123"},
        "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
    }
    two.home.put(PERSISTENT_VOLUMES.manifest({"name": "pvc-u"}, spec=spec, status={"phase": phase}))


async def test_volume_without_data_is_a_warning(two: Clusters, client_for: ClientFor) -> None:
    context = await _joined(two, client_for)
    (fine,) = await storage.check_missing_data(context)
    assert fine.severity is Severity.OK
    _put_bound_volume(two, await context.remote_id())
    (finding,) = await storage.check_missing_data(context)
    assert finding.severity is Severity.WARNING
    assert "shop/data: PersistentVolumeClaim default/data-0123 does not exist" in finding.found


async def test_pod_with_foreign_volume_is_a_warning(two: Clusters, client_for: ClientFor) -> None:
    context = await _joined(two, client_for)
    waiting = pod("db", "shop", node="virtual")
    waiting["status"] = {"reason": "VolumeNotInRemote", "message": "it is on a disk of home"}
    two.home.put(waiting)
    two.home.put(pod("web", "shop", node="virtual"))
    (finding,) = await storage.check_missing_data(context)
    assert finding.severity is Severity.WARNING
    assert "shop/db: it is on a disk of home" in finding.found
    assert "web" not in finding.found


async def test_released_volume_is_reported(two: Clusters, client_for: ClientFor) -> None:
    context = await _joined(two, client_for)
    _put_bound_volume(two, await context.remote_id(), phase="Released")
    (finding,) = await storage.check_retained_data(context)
    assert finding.severity is Severity.INFO
    assert "pvc-u (default/data-0123)" in finding.found
