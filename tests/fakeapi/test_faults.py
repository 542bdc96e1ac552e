"""Faults meet what they are meant for, and no more."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from sync.kube import api_errors
from sync.kube.api_resources import CONFIG_MAPS, NODES, PODS
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


async def test_paused_requests_are_answered_later(api: FakeApi, client: KubeClient) -> None:
    api.pause()
    waiting = asyncio.create_task(client.list(NODES))
    await api.until(lambda: api.requests("GET"))
    assert not waiting.done()
    api.resume()
    await waiting


async def test_tokens(api: FakeApi, client: KubeClient) -> None:
    api.token = "good"
    with pytest.raises(api_errors.Unauthorized):
        await client.list(NODES)


async def test_custom_routes(api: FakeApi, client: KubeClient) -> None:
    async def logs(request: web.Request) -> web.Response:
        return web.Response(text=f"lines of {request.query['container']}")

    api.route("GET", "/api/v1/namespaces/*/pods/*/log", logs)
    path = PODS.path("p", namespace="default", subresource="log")
    async with client.stream(path, query={"container": "c"}) as response:
        assert await response.text() == "lines of c"
