"""Fixtures for `bridge status` and related commands."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bridge.status import status_endpoint
from sync.kube.client import KubeClient
from tests.bridge.running_join import RunningJoin, kubelet_api_client, running_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi.credentials import credentials_for
from tests.sync.engine_harness import NODE

#: Home's API server forwards requests below this path to the node's port.
PROXY = f"/api/v1/nodes/{NODE}/proxy"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the answer cache."""
    monkeypatch.setattr(status_endpoint, "CACHE_SECONDS", 0.0)


@pytest.fixture
async def home(two: Clusters) -> AsyncIterator[KubeClient]:
    """A user's client of home."""
    async with KubeClient(credentials_for(two.home, "home")) as client:
        yield client


@pytest.fixture
async def bridged(two: Clusters, soon: None) -> AsyncIterator[RunningJoin]:
    """A running join whose port home's API server reaches."""
    async with running_join(two) as run, kubelet_api_client(run) as session:

        async def passed_on(request: web.Request) -> web.Response:
            path = request.path.removeprefix(PROXY)
            async with session.get(path) as answer:
                body = await answer.read()
                assert CANARY not in body.decode()
                return web.Response(
                    status=answer.status, body=body, content_type=answer.content_type
                )

        two.home.route("GET", f"{PROXY}/*", passed_on)
        yield run
