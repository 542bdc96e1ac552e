"""Settings of the tests without clusters, and their fixtures: fake API servers and clients of them.

A test that leaves a child process fails, and the process is killed.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import hypothesis
import pytest

from e2e.clusters.processes import children, end, identify
from sync.kube.api_errors import Side
from sync.kube.client import KubeClient
from tests.fakeapi import Authority, FakeApi, credentials_for
from tests.virtual_time_loop import loop_factories

# Without a limit of wall-clock time for each example. With "ci", each run has the same examples.
hypothesis.settings.load_profile("ci")
hypothesis.settings.register_profile("random", derandomize=False)

_CHILDREN = pytest.StashKey[frozenset[int]]()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Virtual time, except for tests marked `real_time`."""
    return loop_factories(item)


def pytest_collection_finish() -> None:
    """Excludes the modules and tests, which live as long as the run, from garbage collections: with
    them, a full collection takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Remembers the processes of the test's fixtures, which the fixtures end."""
    item.stash[_CHILDREN] = children(os.getpid())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Kills the child processes that the test left, and fails the test for it."""
    result = yield
    before = item.stash.get(_CHILDREN, None)
    left = frozenset() if before is None else children(os.getpid()) - before
    running = [identity for pid in left if (identity := identify(pid)) is not None]
    commands = [Path(f"/proc/{identity.pid}/cmdline").read_bytes() for identity in running]
    for identity in running:
        end(identity, grace=0)
    assert not running, f"the test left child processes: {commands}"
    return result


class ClientFor(Protocol):
    """The type of the fixture `client_for`."""

    def __call__(self, server: FakeApi, side: Side = "remote") -> Awaitable[KubeClient]: ...


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """One API server, plain http, that lets everybody in."""
    async with FakeApi() as server:
        yield server


@pytest.fixture
async def tls_api(authority: Authority) -> AsyncIterator[FakeApi]:
    """One API server with TLS, which a kubeconfig's credential needs."""
    pair = authority.issue("tls-server", address="127.0.0.1")
    async with FakeApi(tls=authority.server_context(pair)) as server:
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
            return await stack.enter_async_context(KubeClient(credentials_for(server, side)))

        yield make


@pytest.fixture
async def client(api: FakeApi, client_for: ClientFor) -> KubeClient:
    """A client of `api`."""
    return await client_for(api)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority for the whole run; keys take a moment to make."""
    return Authority(tmp_path_factory.mktemp("authority"))
