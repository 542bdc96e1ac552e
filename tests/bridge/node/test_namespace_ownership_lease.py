"""The record of remote namespaces in a Lease at home."""

from __future__ import annotations

from bridge.node import namespace_ownership_lease
from bridge.node.lease_namespace import NAMESPACE
from bridge.node.namespace_ownership_lease import NAME, NamespaceRecord
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.namespaces import namespace_ownership
from tests.fakeapi import FakeApi


async def test_read_returns_own_and_other_nodes_entries(api: FakeApi, client: KubeClient) -> None:
    first, second = NamespaceRecord(client, "a"), NamespaceRecord(client, "b." + "c" * 80)
    assert (await first.read()).own is None
    await first.write(["1", "2"])
    await second.write([])
    assert (await first.read()).own == frozenset({"1", "2"})
    assert (await first.read()).others == frozenset()
    found = await second.read()
    assert (found.own, found.others) == (frozenset(), frozenset({"1", "2"}))
    assert len(api.objects(LEASES)) == 1


async def test_deleted_lease_is_recreated(api: FakeApi, client: KubeClient) -> None:
    record = NamespaceRecord(client, "a")
    await record.write(["1"])
    api.remove(LEASES, NAME, NAMESPACE)
    await record.write(["1", "2"])
    assert (await record.read()).own == frozenset({"1", "2"})


async def test_write_to_existing_lease_is_one_request(api: FakeApi, client: KubeClient) -> None:
    record = NamespaceRecord(client, "a")
    await record.write(["1"])
    api.clear_log()
    await record.write(["2"])
    assert [entry.method for entry in api.writes()] == ["PATCH"]


async def test_lease_is_deleted_with_last_entry(api: FakeApi, client: KubeClient) -> None:
    for node in ("a", "b"):
        await NamespaceRecord(client, node).write(["1"])
    await namespace_ownership_lease.remove_record(client, "a", [])
    assert (await NamespaceRecord(client, "a").read()).own is None
    assert await namespace_ownership_lease.recorded_namespaces(client, "b") == {"1"}
    await namespace_ownership_lease.remove_record(client, "b", [])
    assert api.objects(LEASES) == []
    await namespace_ownership_lease.remove_record(client, "b", [])


async def test_entries_of_kept_namespaces_stay(api: FakeApi, client: KubeClient) -> None:
    stays = {"metadata": {"name": "stays", "uid": "1"}}
    goes = {"metadata": {"name": "goes", "uid": "2", "deletionTimestamp": "2030-01-01T00:00:00Z"}}
    own = namespace_ownership.still_existing(
        namespace_ownership.entries([stays, goes]), [stays, goes]
    )
    assert own == namespace_ownership.entries([stays])
    await NamespaceRecord(client, "a").write([*own, "other"])
    await namespace_ownership_lease.remove_record(client, "a", own)
    assert await namespace_ownership_lease.recorded_namespaces(client, "a") == set(own)
