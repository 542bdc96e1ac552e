"""Reachability of the remote."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bridge.election import remote_reachability
from bridge.election.remote_reachability import RemoteReachability
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from tests.bridge.two_clusters import Clusters


class Side:
    """The client of an informer."""

    def __init__(self, side: str) -> None:
        self.side = side


class Failing:
    """The state of an informer."""

    def __init__(self, side: str, *, seconds: float | None) -> None:
        self.client = Side(side)
        self.failing_since = None
        if seconds is not None:
            self.failing_since = asyncio.get_running_loop().time() - seconds


def watched(remote: KubeClient, *informers: Failing) -> RemoteReachability:
    return RemoteReachability(remote, [cast("Informer", it) for it in informers])


@pytest.mark.parametrize(
    ("side", "seconds", "lost"),
    [
        ("remote", None, False),
        ("remote", remote_reachability.LOST_SECONDS - 5, False),
        ("remote", remote_reachability.LOST_SECONDS + 5, True),
        ("home", remote_reachability.LOST_SECONDS + 5, False),
    ],
)
async def test_remote_is_lost_after_failing_watches(
    two: Clusters, side: str, seconds: float | None, lost: bool
) -> None:
    async with KubeClient(await load(two.settings.remote, side="remote")) as remote:
        found = watched(remote, Failing("remote", seconds=None), Failing(side, seconds=seconds))
        assert found.is_lost() is lost
        assert await found.is_reachable() is not lost, (
            "what is lost is not there, though it answers"
        )


async def test_remote_is_reachable_while_it_responds(two: Clusters) -> None:
    async with KubeClient(await load(two.settings.remote, side="remote")) as remote:
        found = watched(remote)
        assert await found.is_reachable()
        two.remote.token = "another"
        assert not await found.is_reachable()
        await two.remote.stop()
        assert not await found.is_reachable()
