"""Fixtures for every test that talks to an API server: fake ones, and clients of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from sync.kube.api_errors import Side
from sync.kube.client import KubeClient
from tests.fakeapi import Authority, FakeApi, client_config_for


class ClientFor(Protocol):
    """The type of the fixture `client_for`."""

    def __call__(self, server: FakeApi, side: Side = "remote") -> Awaitable[KubeClient]: ...


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """One API server, plain http, that lets everybody in."""
    async with FakeApi() as server:
        yield server


@pytest.fixture
async def home_api() -> AsyncIterator[FakeApi]:
    """The API server of the home cluster."""
    async with FakeApi() as server:
        yield server


@pytest.fixture
async def remote_api() -> AsyncIterator[FakeApi]:
    """The API server of the remote cluster."""
    async with FakeApi() as server:
        yield server


@pytest.fixture
async def client_for() -> AsyncIterator[ClientFor]:
    """Entered clients of plain http servers, without a kubeconfig file (see `access_to`)."""
    async with AsyncExitStack() as stack:

        async def make(server: FakeApi, side: Side = "remote") -> KubeClient:
            return await stack.enter_async_context(KubeClient(client_config_for(server, side)))

        yield make


@pytest.fixture
async def client(api: FakeApi, client_for: ClientFor) -> KubeClient:
    """A client of `api`."""
    return await client_for(api)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority for the whole run; keys take a moment to make."""
    return Authority(tmp_path_factory.mktemp("authority"))
