"""The fake API server injects the faults of a test, and no others."""

from __future__ import annotations

import pytest

from sync.kube import api_errors
from sync.kube.api_resources import CONFIG_MAPS, PODS
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map


async def test_fault_hits_matching_requests_a_number_of_times(
    api: FakeApi, client: KubeClient
) -> None:
    fault = api.fail(Fault(method="POST", path="*/configmaps", code=500, times=2))
    await client.list(CONFIG_MAPS)
    for _ in range(2):
        with pytest.raises(api_errors.ServerError):
            await client.create(CONFIG_MAPS, config_map("a"), namespace="default")
    await client.create(CONFIG_MAPS, config_map("a"), namespace="default")
    assert fault.hits == 2


async def test_fault_with_predicate_hits_until_lifted(api: FakeApi, client: KubeClient) -> None:
    fault = api.fail(
        Fault(code=403, when=lambda e: bool(e.body) and "x" in e.body["data"], times=None)
    )
    await client.create(CONFIG_MAPS, config_map("a"), namespace="default")
    for _ in range(2):
        with pytest.raises(api_errors.Forbidden, match="made to fail"):
            await client.create(CONFIG_MAPS, config_map("b", data={"x": ""}), namespace="default")
    api.heal(fault)
    await client.create(CONFIG_MAPS, config_map("b", data={"x": ""}), namespace="default")


async def test_faults_distinguish_watches_from_lists(api: FakeApi, client: KubeClient) -> None:
    api.fail(Fault(code=410, watch=True, times=None))
    await client.list(PODS)
    with pytest.raises(api_errors.Gone):
        async with client.stream(PODS.path(), query={"watch": "true"}):
            pytest.fail("it was refused")
    api.heal()
    async with client.stream(PODS.path(), query={"watch": "true"}):
        pass
