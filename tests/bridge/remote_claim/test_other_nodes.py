"""A cloned home that joins under another node name does not get the original's volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.base.join_settings import StorageChoice
from bridge.election.election_lease import election_lease_name
from bridge.node import lease_namespace
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.remote_claim import other_nodes
from sync.kube.api_resources import LEASES, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS
from tests.bridge.remote_claim.test_claim_keeper import cloned, lease_of, refused, renewed
from tests.bridge.running_join import running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE
from translators.ownership_labels import USED_BY_DOMAIN, owner_labels
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")

DRILL = "drill"


def _with_volume(two: Clusters) -> Clusters:
    """Clusters whose bridge provisions volumes, with the remote PVC of one of them."""
    meta = {"name": "data", "namespace": REMOTE_NAMESPACE, "labels": _labels(two)}
    two.remote.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec={}))
    return Clusters(two.home, two.remote, two.but(storage="provision"))


def _labels(two: Clusters) -> dict[str, str]:
    uid = str(two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"])
    return owner_labels(Identity(home_id_from_uid(uid), "h", NODE))


async def test_clone_under_another_node_name_is_rejected_while_original_runs(
    two: Clusters, tmp_path: Path
) -> None:
    two = _with_volume(two)
    async with running_join(two):
        async with cloned(two, tmp_path) as other:
            await renewed(two)
            other.home.clear_log()
            run = start_join(other.but(name=DRILL))
            message = await refused(run)
            assert f"serves node {NODE}" in message
            assert "join with --storage none" in message
            assert not other.home.find(NODES, DRILL)
        await renewed(two)


async def test_clone_that_may_not_read_its_record_is_rejected(
    two: Clusters, tmp_path: Path
) -> None:
    two = _with_volume(two)
    async with running_join(two), cloned(two, tmp_path) as other:
        path = f"*/leases/{election_lease_name(NODE)}"
        other.home.fail(Fault("GET", path, code=403, times=None))
        message = await refused(start_join(other.but(name=DRILL)))
        assert "`bridge rbac home` prints what to grant" in message


async def test_clone_without_storage_joins(two: Clusters, tmp_path: Path) -> None:
    two = _with_volume(two)
    async with running_join(two), cloned(two, tmp_path) as other:
        await renewed(two)
        async with running_join(other, other.but(name=DRILL, storage="none")):
            pass


@pytest.mark.parametrize("storage", ["none", "provision"])
async def test_original_is_rejected_only_next_to_a_clone_with_storage(
    two: Clusters, tmp_path: Path, storage: StorageChoice
) -> None:
    """The clone's pods use the namespaces of the original, and its bridge started before."""
    two = _with_volume(two)
    _record_use(two, DRILL)
    async with (
        cloned(two, tmp_path) as other,
        running_join(other, other.but(name=DRILL, storage=storage)),
    ):
        if storage == "provision":
            assert f"serves node {DRILL}" in await refused(start_join(two.settings))
            return
        async with running_join(two):
            await renewed(two)


def _record_use(two: Clusters, node: str) -> None:
    """Records that the node has pods in a remote namespace of the home cluster."""
    annotations = {f"{USED_BY_DOMAIN}/{node}": ""}
    meta = {"name": REMOTE_NAMESPACE, "labels": _labels(two), "annotations": annotations}
    two.remote.put(NAMESPACES.manifest(meta))


async def test_claim_that_is_not_renewed_is_no_obstacle(two: Clusters, tmp_path: Path) -> None:
    """As of a node that was removed by force, and whose record no longer exists."""
    two = _with_volume(two)
    async with running_join(two):
        await renewed(two)
    async with cloned(two, tmp_path) as other:
        other.home.remove(LEASES, election_lease_name(NODE), lease_namespace.NAMESPACE)
        lease = two.remote.get(LEASES, lease_of(two), LEASE_NAMESPACE)
        held = {"spec": {"holderIdentity": "killed"}}
        two.remote.update(LEASES, lease["metadata"]["name"], held, LEASE_NAMESPACE)
        async with running_join(other, other.but(name=DRILL)):
            pass


async def test_second_node_of_one_home_joins_without_waiting(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_nodes, "OBSERVE_SECONDS", 3600.0)
    two = _with_volume(two)
    async with running_join(two):
        await renewed(two)
        async with running_join(two, two.but(name=DRILL)):
            await renewed(two)
