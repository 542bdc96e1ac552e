"""Servers that refuse or are busy, on a real socket: less is asked, and all of it ends."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from sync.base.clock import now
from sync.kube.api_resources import CONFIG_MAPS, LEASES
from sync.kube.client import KubeClient
from sync.kube.request_limiter import FLOW, HOLD, LEAST, STEP, urgent
from sync.kube.transport import MAX_CONNECTIONS
from tests.fakeapi import FakeApi
from tests.objects import config_map

PATH = CONFIG_MAPS.path(namespace="default")


class Server:
    """Makes ConfigMaps, ``at_once`` at a time, each in ``seconds``; what is beyond waits, or is
    refused."""

    def __init__(self, api: FakeApi, *, at_once: int, seconds: float, refuses: bool) -> None:
        self.at_once, self.seconds, self.refuses = at_once, seconds, refuses
        self.busy = self.here = self.refused = 0
        self.most = 0
        """How many requests were here at once."""
        self._free = asyncio.Condition()
        api.route("POST", PATH, self._make)

    async def _make(self, _: web.Request) -> web.Response:
        if self.refuses and self.busy >= self.at_once:
            self.refused += 1
            return web.Response(status=429, headers={"Retry-After": "0"}, body=b"{}")
        self.here += 1
        self.most = max(self.most, self.here)
        async with self._free:
            await self._free.wait_for(lambda: self.busy < self.at_once)
            self.busy += 1
        await asyncio.sleep(self.seconds)
        async with self._free:
            self.busy -= 1
            self._free.notify()
        self.here -= 1
        return web.Response(body=orjson.dumps(config_map("a")), content_type="application/json")


async def crowd(client: KubeClient, number: int, namespace: str = "crowd") -> None:
    """So many requests at once; returns when each has its answer."""

    async def one() -> None:
        FLOW.set(namespace)
        await client.create(CONFIG_MAPS, config_map("a"), namespace="default")

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(one())


async def test_throttling_lowers_the_limit_and_every_request_ends(
    api: FakeApi, client: KubeClient
) -> None:
    server = Server(api, at_once=4, seconds=0.01, refuses=True)
    await crowd(client, 150)
    assert server.refused > 0
    # Each of 150 was refused about once a second without a limit: most of them many times.
    assert server.refused < 150
    assert LEAST <= client.limiter.limit < MAX_CONNECTIONS
    await asyncio.sleep(HOLD)
    server.at_once = 100
    async with asyncio.timeout(60):
        while client.limiter.limit < MAX_CONNECTIONS:
            await crowd(client, 100)
            await asyncio.sleep(STEP)


async def test_urgent_request_bypasses_thousands(api: FakeApi, client: KubeClient) -> None:
    Server(api, at_once=1, seconds=0.05, refuses=False)
    task = asyncio.create_task(crowd(client, 1000))
    await asyncio.sleep(0.2)

    began = now()
    with urgent():
        await client.list(LEASES, namespace="kube-node-lease")
    assert now() - began < 0.05, "it stood behind 50 s of requests"
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert client.limiter.in_flight == client.limiter.waiting == 0
