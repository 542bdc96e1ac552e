"""Checks of a remote whose credential has Roles in prepared namespaces alone, and how it is
identified."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Report, Severity
from bridge.clusters.cluster_reads_selection import missing_reads, select_cluster_reads
from bridge.node import join_record
from bridge.node.node_controller import NodeTaken
from bridge.node.node_object import LABEL_REMOTE
from bridge.rbac.permissions import (
    REMOTE_CLAIM,
    REMOTE_CLUSTER_READS,
    required_at_home,
    required_in_remote,
)
from sync.base.exception_summary import first_leaf
from sync.kube.api_resources import NAMESPACES, NODES, PERSISTENT_VOLUMES, Object
from tests.bridge.checks.report_queries import finding_of, findings_of
from tests.bridge.prepared_namespaces import granting, limit_to_roles, prepare, prepared
from tests.bridge.running_join import running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.conftest import ClientFor
from tests.sync.engine_harness import NODE
from translators.capacity.node_capacity import NO_LIMITS
from translators.translation_options import ClusterReads
from translators.virtual_node_identity import home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")


def quota(namespace: str, **hard: str) -> Object:
    meta = {"name": "q", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}


async def before_join(settings: JoinSettings) -> Report:
    return await check_runner.check_before_join(settings)


def identity_of(two: Clusters, namespace: str) -> str:
    """The remote's identity by a namespace."""
    return home_id_from_uid(str(two.remote.get(NAMESPACES, namespace)["metadata"]["uid"]))


def label(two: Clusters) -> str:
    return str(two.home.get(NODES, NODE)["metadata"]["labels"][LABEL_REMOTE])


async def end_of(settings: JoinSettings) -> BaseException:
    """The error with which a join ends by itself."""
    run = start_join(settings)
    try:
        await run.task
    except BaseException as error:  # noqa: BLE001  # the error is the result
        return first_leaf(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("the join ended without an error")


# -- what the credential may read ------------------------------------------------------------------


async def test_each_read_of_the_whole_remote_is_decided_alone(
    two: Clusters, client_for: ClientFor
) -> None:
    remote = await client_for(two.remote)
    assert await select_cluster_reads(remote, ()) == ClusterReads()
    assert two.remote.log == []
    for name, table in REMOTE_CLUSTER_READS.items():
        two.remote.api.authorize = granting(table)
        found = await select_cluster_reads(remote, ["a"])
        assert set(missing_reads(found)) == REMOTE_CLUSTER_READS.keys() - {name}


async def test_missing_reads_are_reported_with_what_takes_their_place(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    found = await before_join(settings)
    assert not found.failed, found.rows()
    texts = [it.found for it in findings_of(found, "BRG208")]
    assert len(texts) == len(REMOTE_CLUSTER_READS)
    assert "no list of all nodes: the capacity is that of --limits" in texts[0]
    assert {it.severity for it in findings_of(found, "BRG208")} == {Severity.INFO}
    assert finding_of(found, "BRG202").severity is Severity.OK
    assert finding_of(found, "BRG503").severity is Severity.OK
    assert "may not list the remote's nodes" in finding_of(found, "BRG501").found
    forbidden = [it.path for it in two.remote.log if it.code == [403]]
    assert forbidden == []


async def test_namespace_that_is_not_handed_over_is_reported(two: Clusters) -> None:
    settings = prepared(two, "a", remote_namespaces=("a", "b", "c"))
    two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}})
    found = findings_of(await before_join(settings), "BRG503")
    assert [it.severity for it in found] == [Severity.WARNING] * 2
    assert "kubectl annotate namespace b" in found[0].found
    assert "namespace c does not exist" in found[1].found


async def test_join_without_a_declared_capacity_names_the_options(two: Clusters) -> None:
    settings = prepared(two, "a", "b", limits=NO_LIMITS)
    two.remote.put(quota("a", **{"requests.cpu": "2"}))
    limit_to_roles(two, settings)
    error = await end_of(settings)
    assert isinstance(error, PreflightError)
    assert "the capacity is unknown (memory, pods)" in str(error)
    assert "join with --limits memory=AMOUNT,pods=AMOUNT, or set such quotas" in str(error)
    assert two.home.find(NODES, NODE) is None


async def test_quotas_declare_the_capacity_and_checks_find_it_on_the_node(two: Clusters) -> None:
    settings = prepared(two, "a", "b", limits=NO_LIMITS)
    for namespace in ("a", "b"):
        hard = {"requests.cpu": "2", "requests.memory": "4Gi", "pods": "10"}
        two.remote.put(quota(namespace, **hard))
    limit_to_roles(two, settings)
    async with running_join(two, settings):
        status = two.home.get(NODES, NODE)["status"]
        assert status["capacity"] == {"cpu": "4", "memory": "8Gi", "pods": "20"}
        assert status["nodeInfo"]["kubeletVersion"] == two.remote.api.version
        (pressure,) = (it for it in status["conditions"] if it["type"] == "MemoryPressure")
        assert (pressure["status"], pressure["reason"]) == ("False", "RemoteNodesUnknown")
        found = await check_runner.check_nodes(NodeCheckSettings(settings.home, NODE))
    assert finding_of(found, "BRG509").severity is Severity.INFO
    assert len(findings_of(found, "BRG208")) == len(REMOTE_CLUSTER_READS)
    assert finding_of(found, "BRG305").severity is Severity.OK
    assert finding_of(found, "BRG306").severity is Severity.OK


# -- which cluster it is ---------------------------------------------------------------------------


async def test_remote_keeps_its_identity_when_permissions_change(two: Clusters) -> None:
    settings = prepared(two, "b", "a")
    async with running_join(two, settings):
        assert label(two) == identity_of(two, "kube-system")
        record = join_record.remote_ids(two.home.get(NODES, NODE))
        assert record == tuple(identity_of(two, it) for it in ("kube-system", "a", "b"))
    # Removed, but for the claim, which a bridge must find.
    two.remote.api.authorize = granting((*required_in_remote(settings), *REMOTE_CLAIM))
    async with running_join(two, settings):
        assert label(two) == identity_of(two, "kube-system")


async def test_remote_is_known_by_any_prepared_namespace(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    async with running_join(two, settings):
        first = label(two)
        assert first == identity_of(two, "a")
    # Cluster-wide permissions are added, and a namespace is replaced.
    two.remote.heal()
    two.remote.api.authorize = lambda _: True
    two.remote.remove(NAMESPACES, "a")
    async with running_join(two, prepared(two, "a", "b", "c")):
        assert label(two) == first
    async with running_join(two, prepared(two, "c")):
        assert label(two) == first


def _put_volume(two: Clusters, remote_id: str) -> None:
    """A PersistentVolume in the home cluster, as left by `bridge leave --keep-volumes`."""
    csi = {"driver": "volumes.cluster-bridge.io", "volumeHandle": f"{remote_id}/b/data"}
    two.home.put(PERSISTENT_VOLUMES.manifest({"name": f"pvc-{remote_id}"}, spec={"csi": csi}))


async def test_join_after_a_leave_has_the_id_of_the_volumes(two: Clusters) -> None:
    """One prepared namespace more precedes the others by name."""
    settings = prepared(two, "b", storage="provision")
    _put_volume(two, "elsewhere")
    _put_volume(two, identity_of(two, "b"))
    limit_to_roles(two, settings)
    wider = prepared(two, "a", "b", storage="provision")
    limit_to_roles(two, wider)
    async with running_join(two, wider):
        assert label(two) == identity_of(two, "b")
    two.home.remove(NODES, NODE)
    async with running_join(two, replace(wider, storage="none")):
        assert label(two) != identity_of(two, "b")


async def test_join_with_the_whole_remote_has_the_id_of_the_volumes(two: Clusters) -> None:
    """Prepared namespaces identified the remote before; the next start finds it by the record."""
    prepared(two, "b")
    _put_volume(two, "elsewhere")
    _put_volume(two, identity_of(two, "b"))
    settings = two.but(storage="provision")
    for _ in range(2):
        async with running_join(two, settings):
            assert label(two) == identity_of(two, "b")
        two.remote.clear_log()
    lists = two.remote.requests("GET", "*/namespaces")
    assert not any("limit" in request.query for request in lists)


async def test_another_remote_is_rejected(two: Clusters) -> None:
    settings = prepared(two, "a")
    limit_to_roles(two, settings)
    async with running_join(two, settings):
        pass
    two.remote.remove(NAMESPACES, "a")
    error = await end_of(prepared(two, "a"))
    assert isinstance(error, NodeTaken)
    assert "stands for another remote cluster" in str(error)


async def test_home_as_its_own_remote_is_found_by_a_prepared_namespace(two: Clusters) -> None:
    settings = replace(prepared(two, "a"), remote=two.settings.home)
    prepare(replace(two, remote=two.home), "a")
    two.home.api.authorize = granting(
        (*required_in_remote(settings), *required_at_home(settings, "service-account"))
    )
    found = finding_of(await before_join(settings), "BRG109")
    assert found.severity is Severity.ERROR
