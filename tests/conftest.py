"""Fixtures for every test that talks to an API server: fake ones, and clients of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest

from sync.kube.access import Access, KubeconfigRef
from sync.kube.client import KubeClient
from sync.kube.errors import Side
from tests.fakeapi import Authority, FakeApi


class ClientFor(Protocol):
    """What the fixture `client_for` gives."""

    def __call__(self, server: FakeApi, side: Side = "remote") -> Awaitable[KubeClient]: ...


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[FakeApi], Awaitable[FakeApi]]]:
    """Starts servers that the test made itself; they stop at its end."""
    async with AsyncExitStack() as stack:
        yield stack.enter_async_context


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
            return await stack.enter_async_context(KubeClient(access_to(server, side)))

        yield make


@pytest.fixture
async def client(api: FakeApi, client_for: ClientFor) -> KubeClient:
    """A client of `api`."""
    return await client_for(api)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority for the whole run; keys take a moment to make."""
    return Authority(tmp_path_factory.mktemp("authority"))


def access_to(server: FakeApi, side: Side = "remote") -> Access:
    """An Access made by hand: `access.load` needs a file and a quarter of a second for imports."""
    access = Access(KubeconfigRef(Path("none")), side=side)
    access.server = server.url
    access.context = "fake"
    return access
