"""The namespace of the bridges' Leases at home."""

from __future__ import annotations

import asyncio

import pytest

from bridge.node import lease_namespace
from bridge.node.lease_namespace import LeaseNamespaceMissing, create_with_namespace
from sync.kube.api_errors import NamespaceTerminating
from sync.kube.api_resources import LEASES, NAMESPACES, Object
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault

LEASE = LEASES.manifest({"name": "one"})


async def create(client: KubeClient) -> Object:
    return await create_with_namespace(
        client, lambda: client.create(LEASES, LEASE, namespace=lease_namespace.NAMESPACE)
    )


async def test_first_lease_creates_the_namespace(api: FakeApi, client: KubeClient) -> None:
    await create(client)
    assert lease_namespace.was_created_by_join(api.get(NAMESPACES, lease_namespace.NAMESPACE))
    assert api.find(LEASES, "one", lease_namespace.NAMESPACE)


async def test_existing_namespace_is_left_as_it_is(api: FakeApi, client: KubeClient) -> None:
    api.put(NAMESPACES.manifest({"name": lease_namespace.NAMESPACE}))
    await create(client)
    assert [it.path for it in api.writes()] == [LEASES.path(namespace=lease_namespace.NAMESPACE)]
    found = api.get(NAMESPACES, lease_namespace.NAMESPACE)
    assert not lease_namespace.was_created_by_join(found)


async def test_missing_permission_for_the_namespace_is_an_error_with_the_command(
    api: FakeApi, client: KubeClient
) -> None:
    api.fail(Fault("POST", NAMESPACES.path(), code=403))
    with pytest.raises(LeaseNamespaceMissing, match="kubectl create namespace cluster-bridge"):
        await create(client)


async def test_namespace_that_a_leave_removes_is_awaited_and_created_again(
    api: FakeApi, client: KubeClient
) -> None:
    ends = NAMESPACES.manifest({"name": lease_namespace.NAMESPACE, "finalizers": ["a.b/c"]})
    api.put(ends)
    api.delete(NAMESPACES, lease_namespace.NAMESPACE)
    waits = asyncio.create_task(create(client))
    await asyncio.sleep(0.1)
    assert not waits.done()
    api.remove(NAMESPACES, lease_namespace.NAMESPACE)
    await waits
    assert lease_namespace.was_created_by_join(api.get(NAMESPACES, lease_namespace.NAMESPACE))


async def test_namespace_that_does_not_end_is_an_error(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_namespace, "TERMINATION_SECONDS", 0.0)
    api.put(NAMESPACES.manifest({"name": lease_namespace.NAMESPACE, "finalizers": ["a.b/c"]}))
    api.delete(NAMESPACES, lease_namespace.NAMESPACE)
    with pytest.raises(NamespaceTerminating):
        await create(client)
