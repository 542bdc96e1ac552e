"""Replicas of `bridge run` share remotes: real joins between fake API servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.app import run_several_joins
from bridge.base.join_settings import Part
from bridge.election import election_lease
from bridge.fleet import supervisor
from bridge.fleet.desired_state import FixedSource
from bridge.node.lease_namespace import NAMESPACE
from bridge.rbac import permissions
from bridge.sharding import membership, membership_record, recent_failures
from sync.kube.api_resources import LEASES, NODES
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.runtime.log_fields import NODE
from tests.bridge.cuttable_proxy import CuttableProxy
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Fault
from tests.fakeapi.kubeconfig import kubeconfig, write

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("soon"),
    pytest.mark.timeout(300),
]

#: Seconds for twenty joins, twice, on a machine that runs other tests.
LONG = 120.0


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the durations of all Leases, at their proportions. All API servers and replicas
    share this process, which other tests delay for a second."""
    for module in (election_lease, membership_record):
        monkeypatch.setattr(module, "LEASE_SECONDS", 5.0)
        monkeypatch.setattr(module, "RENEW_DEADLINE", 4.0)
        monkeypatch.setattr(module, "RENEW_SECONDS", 1.0)
    monkeypatch.setattr(membership, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(membership, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(membership, "SETTLE_SECONDS", 1.6)
    monkeypatch.setattr(recent_failures, "FIRST_SECONDS", 2.0)
    monkeypatch.setattr(recent_failures, "MAX_SECONDS", 8.0)
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.5)
    monkeypatch.setattr(supervisor, "RETRY_CAP", 2.0)


@dataclass
class Replica:
    """One `bridge run` in this process; it reaches home through a proxy."""

    name: str
    proxy: CuttableProxy
    parts: tuple[Part, ...]
    shares: bool = True
    messages: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        await run_several_joins.run_joins(
            FixedSource(self.parts),
            leave=self._leave,
            notify=lambda text: self.messages.append(f"{NODE.get()}: {text}"),
            stop=self.stop,
            shares=self.shares,
        )

    async def _leave(self, part: Part) -> None:
        self.messages.append(f"leave {part.label}")


class Fleet:
    """Replicas with the same remotes."""

    def __init__(self, two: Clusters, folder: Path, names: list[str]) -> None:
        self.two = two
        self.names = names
        self._folder = folder
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(
        self, name: str, *, shares: bool = True, without: Iterable[str] = ()
    ) -> Replica:
        """Starts a replica, which does not reach the remotes ``without``."""
        proxy = CuttableProxy(self.two.home.port)
        await self._stack.enter_async_context(proxy.listening())
        content = kubeconfig(proxy.url, user={"token": CANARY}, context="home-context")
        home = KubeconfigRef(write(self._folder / f"home-{name}.yaml", content))
        nowhere = KubeconfigRef(self._folder / "nowhere.yaml")
        parts = tuple(
            Part(
                it,
                self.two.but(name=it, home=home, **({"remote": nowhere} if it in without else {})),
            )
            for it in self.names
        )
        made = Replica(name, proxy, parts, shares)
        self._tasks.append(asyncio.create_task(made.run(), name=name))
        return made

    async def end(self) -> None:
        for it in self._tasks:
            it.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def served_by(self, replica: Replica) -> set[str]:
        """The Ready nodes whose kubelet API is that of the replica."""
        found = set()
        for node in self.two.home.objects(NODES):
            name, status = node["metadata"]["name"], node.get("status") or {}
            port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
            is_ready = any(
                it["type"] == "Ready" and it["status"] == "True"
                for it in status.get("conditions", [])
            )
            line = f"{name}: home: kubelet API listens on 127.0.0.1:{port}"
            if is_ready and line in replica.messages:
                found.add(name)
        return found

    async def until_divided(self, *replicas: Replica) -> None:
        """Waits until the replicas serve all nodes, each its fair share."""

        def are_divided() -> bool:
            served = [self.served_by(it) for it in replicas]
            most = -(-len(self.names) // len(replicas))
            return set().union(*served) == set(self.names) and all(len(it) <= most for it in served)

        # Not after each request of twenty joins: reading all nodes takes longer than one.
        async with asyncio.timeout(LONG):
            while not are_divided():  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@contextmanager
def failing_for_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Joins without home fail soon while the block runs, and time alone does not heal that."""
    with monkeypatch.context() as changed:
        changed.setattr(permissions, "REQUEST_SECONDS", 1.0)
        changed.setattr(recent_failures, "FIRST_SECONDS", 10 * LONG)
        yield


@pytest.fixture
async def fleet(two: Clusters, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Six remotes."""
    made = Fleet(two, tmp_path, [f"n-{number}" for number in range(6)])
    try:
        yield made
    finally:
        await made.end()


async def test_two_replicas_divide_the_remotes_and_have_nothing_of_the_others(
    fleet: Fleet,
) -> None:
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    assert len(fleet.served_by(first)) == len(fleet.served_by(second)) == 3
    assert "home: 2 replicas share 6 remotes; 3 of them run in this one" in str(first.messages)


async def test_new_replica_takes_its_share_while_every_node_is_served(fleet: Fleet) -> None:
    first = await fleet.start("a")
    await fleet.until_divided(first)
    for name in fleet.names:
        assert fleet.two.home.get(LEASES, election_lease.election_lease_name(name), NAMESPACE)
    second = await fleet.start("b")
    await fleet.until_divided(first, second)
    for name in fleet.served_by(second):
        lines = [it for it in first.messages if it.startswith(f"{name}: home: {name} runs in")]
        assert len(lines) == 1


async def test_replica_that_stops_hands_its_remotes_to_the_others(fleet: Fleet) -> None:
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    second.stop.set()
    await fleet.until_divided(first)


async def test_replica_that_home_does_not_hear_from_loses_its_remotes_and_gets_them_back(
    fleet: Fleet,
) -> None:
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    before = fleet.served_by(second)
    second.proxy.cut()
    await fleet.until_divided(first)
    second.proxy.heal()
    await fleet.until_divided(first, second)
    assert fleet.served_by(second) == before


async def test_remote_whose_join_fails_once_comes_back(fleet: Fleet) -> None:
    reviews = "*/selfsubjectaccessreviews"
    failure = fleet.two.home.faults.add(Fault("POST", reviews, code=500))
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    assert failure.hits


async def test_remote_whose_join_an_outage_of_home_ended_comes_back_with_home(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = await fleet.start("a")
    await fleet.until_divided(first)
    second = await fleet.start("b")
    await fleet.two.home.until(
        lambda: any(": remote: " in it for it in second.messages), timeout=LONG
    )
    second.proxy.cut()
    with failing_for_long(monkeypatch):
        await fleet.two.home.until(lambda: "no answer" in caplog.text, timeout=LONG)
        await asyncio.sleep(membership_record.RENEW_DEADLINE + 1)
    second.proxy.heal()
    await fleet.until_divided(first, second)


@pytest.mark.real_time  # several steps that follow one another in real time
async def test_replica_cut_off_while_it_registers_a_node_gets_that_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = LEASES.path(namespace="kube-node-lease")
    fleet.two.home.faults.add(Fault("POST", path, delay=LONG))
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    interrupted = fleet.two.home.requests("POST", path)[0].body["metadata"]["name"]
    if interrupted in fleet.served_by(first):
        first, second = second, first
    before = fleet.served_by(second)
    second.proxy.cut()
    with failing_for_long(monkeypatch):
        await fleet.until_divided(first)
        # Aborted when the lease is not renewed in time; the next attempt finds home silent.
        await fleet.two.home.until(
            lambda: caplog.text.count("cannot register it yet") > 1 or "no answer" in caplog.text,
            timeout=LONG,
        )
    second.proxy.heal()
    await fleet.until_divided(first, second)
    assert fleet.served_by(second) == before


async def test_remote_that_one_replica_does_not_reach_is_served_by_the_other(
    fleet: Fleet, tmp_path: Path
) -> None:
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    second.stop.set()
    await fleet.until_divided(first)
    third = await fleet.start("c", without=fleet.names[:2])
    await fleet.two.home.until(
        lambda: (
            fleet.served_by(first) | fleet.served_by(third) == set(fleet.names)
            and len(fleet.served_by(third)) > 0
        ),
        timeout=LONG,
    )
    assert set(fleet.names[:2]) <= fleet.served_by(first)


async def test_twenty_remotes_keep_their_nodes_when_a_replica_comes_and_one_is_lost(
    fleet: Fleet,
) -> None:
    fleet.names[:] = [f"n-{number}" for number in range(20)]
    first, second = await asyncio.gather(fleet.start("a"), fleet.start("b"))
    await fleet.until_divided(first, second)
    third = await fleet.start("c")
    await fleet.until_divided(first, second, third)
    assert min(len(fleet.served_by(it)) for it in (first, second, third)) >= 6
    second.proxy.cut()
    await fleet.until_divided(first, third)


async def test_without_the_permission_each_replica_serves_or_stands_by_for_all(
    fleet: Fleet,
) -> None:
    path = LEASES.path("shards", namespace=NAMESPACE)
    fleet.two.home.faults.add(Fault("PATCH", path, times=None, code=403))
    first = await fleet.start("a")
    await fleet.until_divided(first)
    assert "home: replicas do not share the remotes: " in str(first.messages)
    second = await fleet.start("b")
    await fleet.two.home.until(
        lambda: sum("standing by" in it for it in second.messages) == len(fleet.names)
    )


async def test_replicas_that_do_not_share_stand_by_for_all(fleet: Fleet) -> None:
    first = await fleet.start("a", shares=False)
    await fleet.until_divided(first)
    second = await fleet.start("b", shares=False)
    await fleet.two.home.until(
        lambda: sum("standing by" in it for it in second.messages) == len(fleet.names)
    )
    assert fleet.two.home.find(LEASES, "shards", NAMESPACE) is None
