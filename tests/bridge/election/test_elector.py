"""Several candidates for one node's election, with different clocks and a slow or unreachable home.

Time is virtual. Home has one Lease, which each candidate reaches over its own link. A candidate
whose link has watches sees each change at once, which is the worst case; others see only the
responses to their requests.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.election import election_lease
from bridge.election.election_lease import LEASE_SECONDS, RENEW_DEADLINE, RENEW_SECONDS, Candidate
from bridge.election.elector import (
    REQUEST_LEASE_SECONDS,
    RETRY_SECONDS,
    LeaderElector,
    LeadershipLost,
    NodeLeft,
)
from bridge.election.remote_reachability import RemoteReachability
from sync.base.safe_callbacks import Callbacks
from sync.kube.api_errors import AlreadyExists, Conflict, KubeError, NotFound, Unreachable
from sync.kube.api_server import RequestMetrics
from sync.kube.client import KubeClient, Page
from sync.kube.leader_write_fence import Fence
from sync.kube.response_limits import ResponseLimits
from tests.fakeapi.patching import merge
from tests.virtual_time_loop import VirtualLoop, run_virtual
from translators.object_accessors import Object

#: An annotation that records keep on the Lease.
RECORD = "cluster-bridge.io/some-record"
#: Seconds within which a successor acquires the Lease of a killed leader.
TAKEOVER = LEASE_SECONDS + 0.5


class Home:
    """The Lease, as an API server keeps it."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.watches: list[asyncio.Queue[Object]] = []
        """The events of each open watch that were not received yet."""
        self.version = 0

    @property
    def holder(self) -> str:
        return election_lease.parse_lease(self.lease).holder if self.lease is not None else ""

    @property
    def notes(self) -> Mapping[str, str]:
        return election_lease.parse_lease(self.lease).records if self.lease is not None else {}

    def change(self, patch: Object) -> None:
        """Patches the Lease as another client."""
        assert self.lease is not None
        self.store(merge(self.lease, patch))

    def request(self, method: str, body: Object | None) -> Object:
        if method == "POST":
            if self.lease is not None:
                raise AlreadyExists("there", code=409, side="home", what=method)
            body = copy.deepcopy(body) or {}
            body["metadata"]["uid"] = f"uid-{self.version + 1}"
            return self.store(body)
        if self.lease is None:
            raise NotFound("gone", code=404, side="home", what=method)
        if method == "GET":
            return copy.deepcopy(self.lease)
        assert body is not None
        for field in ("uid", "resourceVersion"):
            if body["metadata"][field] != self.lease["metadata"][field]:
                raise Conflict("another", code=409, side="home", what=method)
        return self.store(merge(self.lease, body))

    def store(self, lease: Object) -> Object:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        for events in self.watches:
            events.put_nowait({"type": "MODIFIED", "object": copy.deepcopy(lease)})
        return copy.deepcopy(lease)


class Link:
    """One candidate's connection to home; replaces a `KubeClient`."""

    side = "home"

    def __init__(self, home: Home) -> None:
        self._home = home
        self.cut = False
        self.slow = 0.005
        self.late = 0.0
        """Seconds that answers take beside that."""
        self.refused: KubeError | None = None
        """The answer to every PATCH, of a webhook for example."""
        self.patches = 0
        self.answers = True
        """Whether responses arrive; the server processes the requests in any case."""
        self.watches = False
        """Whether watches work."""
        self.credentials = SimpleNamespace(renewed=Callbacks("credentials read again"))
        self.metrics = RequestMetrics()
        self.limits = ResponseLimits("home")

    async def request(self, method: str, path: str, *, body: Object | None, **_: Any) -> Object:
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/cluster-bridge/leases")
        if self.cut:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.slow / 2)
        try:
            if method == "PATCH":
                self.patches += 1
                if self.refused is not None:
                    raise self.refused
            return self._home.request(method, body)
        finally:
            await asyncio.sleep(self.slow / 2 + self.late if self.answers else 3600)

    def checked(self, _: object, obj: Object, __: str) -> Object:
        return obj

    async def list_page(self, *_: object, **__: object) -> tuple[Page, str]:
        if not self.watches:
            raise Unreachable("no watch here", side="home")
        await self._pass_cut()
        lease = self._home.lease
        items = [] if lease is None else [copy.deepcopy(lease)]
        return Page(items, str(self._home.version)), ""

    @asynccontextmanager
    async def stream(
        self, _: str, *, query: Mapping[str, str], **__: object
    ) -> AsyncIterator[SimpleNamespace]:
        events: asyncio.Queue[Object] = asyncio.Queue()
        if self._home.lease is not None and query["resourceVersion"] != str(self._home.version):
            events.put_nowait({"type": "MODIFIED", "object": copy.deepcopy(self._home.lease)})

        async def readany() -> bytes:
            event = await events.get()
            await self._pass_cut()
            return json.dumps(event).encode() + b"\n"

        self._home.watches.append(events)
        try:
            yield SimpleNamespace(content=SimpleNamespace(readany=readany))
        finally:
            if events in self._home.watches:
                self._home.watches.remove(events)

    def map_read_errors(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def _pass_cut(self) -> None:
        while self.cut:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.1)


class FakeReachability(RemoteReachability):
    """The reachability of the remote from one candidate."""

    def __init__(self) -> None:
        self.lost = False
        self.answers = True
        self.requests = 0

    def is_lost(self) -> bool:
        return self.lost

    async def is_reachable(self) -> bool:
        self.requests += 1
        await asyncio.sleep(0.01)
        return self.answers and not self.lost


class Bridge:
    """One candidate: it stands by, serves, and stands by again. Its clock is ``ahead`` of the
    others', and its process can be suspended."""

    def __init__(self, home: Home, name: str, *, ahead: float = 0.0) -> None:
        self.name = name
        self.link = Link(home)
        self.way = FakeReachability()
        self.reports: list[str] = []
        self.fence = Fence(clock=self.clock)
        self.lives = 0
        self.lost: list[str] = []
        self._ahead = ahead
        self.election = LeaderElector(
            cast("KubeClient", self.link),
            "virtual",
            candidate=Candidate(f"{name}_id", name),
            notify=self.reports.append,
            clock=self.clock,
        )
        self.task: asyncio.Task[None] | None = None

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self._ahead

    def start(self, *, watches: bool = False) -> Bridge:
        self.link.watches = watches
        self.task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while True:
            self.lives += 1
            self.fence = Fence(clock=self.clock)
            while self.way.lost:  # noqa: ASYNC110  # its caches do not fill
                await asyncio.sleep(0.1)
            try:
                await self.election.acquire(self.fence, reachability=self.way)
                await self.election.renew_until_lost(self.fence, reachability=self.way)
            except LeadershipLost as lost:
                self.lost.append(str(lost))
                self.fence.close()
                await self.election.release()

    def kill(self) -> None:
        """Stops like SIGKILL: the candidate does not release its Lease."""
        assert self.task is not None
        self.task.cancel()
        self.fence.close()

    async def stop(self) -> None:
        """Stops like SIGINT."""
        self.kill()
        await self.election.release()


def on_virtual_time(test: Callable[[Home], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            try:
                await test(Home())
            finally:
                rest = asyncio.all_tasks() - {asyncio.current_task()}
                for task in rest:
                    task.cancel()
                ended = await asyncio.gather(*rest, return_exceptions=True)
            for error in ended:
                if not isinstance(error, asyncio.CancelledError | NodeLeft | None):
                    raise error

        run_virtual(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until(true: Callable[[], bool], *, within: float) -> float:
    """Waits until the condition is true; returns the seconds that it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.01)
    return loop.time() - started


def now() -> float:
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_single_candidate_leads_at_once(home: Home) -> None:
    alone = Bridge(home, "alone")
    await alone.election.observe(node_exists=False)
    alone.start()
    await until(lambda: alone.fence.is_open, within=0.1)
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert alone.fence.is_open
    assert (alone.election.is_leader, alone.election.transitions, alone.reports) == (True, 1, [])
    assert alone.election.standby_reason == ""


@on_virtual_time
async def test_lease_is_renewed_at_its_interval(home: Home) -> None:
    bridge = Bridge(home, "alone").start()
    await until(lambda: bridge.fence.is_open, within=TAKEOVER)
    before = home.version
    await asyncio.sleep(100 * RENEW_SECONDS)
    assert 99 <= home.version - before <= 101


@on_virtual_time
async def test_renewal_delay_is_measured(home: Home) -> None:
    bridge = Bridge(home, "alone").start()
    await until(lambda: bridge.fence.is_open, within=TAKEOVER)
    await asyncio.sleep(10 * RENEW_SECONDS)
    lag = bridge.election.renewal_delay
    assert 9 <= sum(lag.counts) <= 11
    assert lag.total == pytest.approx(0, abs=0.001)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.hold(RENEW_SECONDS + 0.5)
    await asyncio.sleep(0.01)
    assert 0.5 <= lag.total <= RENEW_SECONDS + 0.5


@on_virtual_time
async def test_record_survives_restart_and_lease_deletion(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    before = asyncio.get_running_loop().time()
    await one.election.records.write(RECORD, "first", now=True)
    assert asyncio.get_running_loop().time() - before < 0.1
    await one.election.records.write(RECORD, "second")
    assert asyncio.get_running_loop().time() - before < 2 * RENEW_SECONDS
    home.lease = None
    await until(lambda: home.holder == "one_id", within=2 * RENEW_SECONDS)
    assert home.notes == {RECORD: "second"}
    other = Bridge(home, "other").start()
    await asyncio.sleep(2 * RENEW_SECONDS)
    one.kill()
    await until(lambda: other.fence.is_open, within=2 * TAKEOVER)
    assert other.election.records.all == {RECORD: "second"}


@on_virtual_time
async def test_restored_lease_can_end_its_holder(home: Home) -> None:
    bridge = Bridge(home, "alone").start()
    await until(lambda: bridge.fence.is_open, within=TAKEOVER)
    seen = []

    def changed(notes: Mapping[str, str]) -> None:
        seen.append(dict(notes))
        raise LeadershipLost("restored")

    bridge.election.on_records_changed = changed
    saved = copy.deepcopy(home.lease)
    await bridge.election.records.write(RECORD, "later")
    fence = bridge.fence
    assert saved is not None
    home.store(saved)
    await until(lambda: bool(bridge.lost), within=2 * RENEW_SECONDS)
    assert (seen, fence.is_open, bridge.lost) == ([{}], False, ["restored"])


@on_virtual_time
async def test_lease_deleted_while_held_is_recreated(home: Home) -> None:
    bridge = Bridge(home, "alone").start()
    await until(lambda: bridge.fence.is_open, within=TAKEOVER)
    home.lease = None
    await until(lambda: home.holder == "alone_id", within=2 * RENEW_SECONDS)
    assert (bridge.fence.is_open, bridge.lives) == (True, 1)


async def _two(home: Home, *, ahead: float = 0.0) -> tuple[Bridge, Bridge]:
    """A leader and a standby."""
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    other = Bridge(home, "other", ahead=ahead).start()
    await until(
        lambda: any("standing by" in line for line in other.reports), within=2 * LEASE_SECONDS
    )
    return one, other


@on_virtual_time
async def test_second_candidate_stands_by_and_reports_leader(home: Home) -> None:
    _, other = await _two(home)
    await asyncio.sleep(60)
    assert other.reports == [
        "home: node virtual: waiting for the lease of one, which ends in 4 s unless it is renewed",
        "home: node virtual is served by one; standing by",
    ]
    assert not other.fence.is_open
    assert "served by one" in other.election.standby_reason


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0], ids=["behind", "same", "ahead"])
def test_crashed_leader_is_succeeded_despite_clock_skew(ahead: float) -> None:
    async def test(home: Home) -> None:
        one, other = await _two(home, ahead=ahead)
        one.kill()
        took = await until(lambda: other.fence.is_open, within=TAKEOVER)
        assert took > LEASE_SECONDS - RENEW_SECONDS - 0.5
        assert other.election.transitions == 1
        assert home.lease is not None
        assert home.lease["spec"]["leaseTransitions"] == 1

    on_virtual_time(test)()


@on_virtual_time
async def test_released_lease_is_taken_at_once(home: Home) -> None:
    one, other = await _two(home)
    await one.stop()
    assert home.holder == ""
    await until(lambda: other.fence.is_open, within=TAKEOVER)


@on_virtual_time
async def test_watching_candidate_takes_a_released_lease_at_once(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    other = Bridge(home, "other").start(watches=True)
    await asyncio.sleep(2 * LEASE_SECONDS)
    await one.stop()
    await until(lambda: other.fence.is_open, within=0.1)


@on_virtual_time
async def test_release_after_renewal_with_lost_response(home: Home) -> None:
    """The renewal is cancelled after the server has processed it and before its response."""
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    one.link.slow = 0.4
    version = home.version
    await until(lambda: home.version > version, within=2 * RENEW_SECONDS)
    await one.stop()
    assert home.holder == ""


@on_virtual_time
async def test_one_of_several_candidates_wins(home: Home) -> None:
    several = [Bridge(home, f"b{number}").start() for number in range(5)]
    for _ in range(3):
        await until(lambda: any(it.fence.is_open for it in several), within=2 * TAKEOVER)
        assert [it.fence.is_open for it in several].count(True) == 1
        leader = next(it for it in several if it.fence.is_open)
        leader.kill()
        several.remove(leader)


@on_virtual_time
async def test_partitioned_leader_stops_before_successor_writes(home: Home) -> None:
    one, other = await _two(home)
    fence = one.fence
    one.link.cut = True
    await until(lambda: not one.fence.is_open, within=RENEW_DEADLINE + 0.1)
    shut = now()
    await until(lambda: other.fence.is_open, within=TAKEOVER)
    assert now() - shut > 0.5
    one.link.cut = False
    await until(lambda: bool(one.lost), within=15)
    assert "held by other" in one.lost[0]
    assert not fence.is_open
    await asyncio.sleep(30)
    assert (one.lives, one.election.is_leader, one.fence.is_open) == (2, False, False)
    assert other.fence.is_open


@on_virtual_time
async def test_lease_of_successor_is_not_renewed_after_partition(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    fence, reports = one.fence, list[bool]()
    fence.on_change(reports.append)
    one.link.cut = True
    await asyncio.sleep(60)
    assert reports == [False]
    one.link.cut = False
    await until(lambda: fence.is_open, within=15)
    assert (one.lives, one.lost, reports) == (1, [], [False, True])


@on_virtual_time
async def test_renewal_with_lost_response_is_recognised(home: Home) -> None:
    one, other = await _two(home)
    one.link.answers = False
    version = home.version
    await until(lambda: home.version > version, within=2 * RENEW_SECONDS)
    one.link.answers = True
    await asyncio.sleep(20)
    assert (one.lives, one.fence.is_open, other.fence.is_open) == (1, True, False)


@on_virtual_time
async def test_conflict_without_a_change_is_not_repeated_without_delay(home: Home) -> None:
    bridge = Bridge(home, "alone").start()
    await until(lambda: bridge.fence.is_open, within=TAKEOVER)
    bridge.link.refused = Conflict("a webhook", code=409, side="home", what="PATCH")
    before = bridge.link.patches
    await asyncio.sleep(RENEW_SECONDS + 10)
    assert bridge.link.patches - before <= 10 / RETRY_SECONDS + 1
    assert not bridge.fence.is_open
    bridge.link.refused = None
    await until(lambda: bridge.fence.is_open, within=1)


@on_virtual_time
async def test_slow_responses_keep_lease(home: Home) -> None:
    one, other = await _two(home)
    one.link.slow = 0.9
    for _ in range(300):
        await asyncio.sleep(0.1)
        assert one.fence.is_open
    assert not other.fence.is_open


@on_virtual_time
async def test_late_response_does_not_extend_fence(home: Home) -> None:
    """The fence counts from the renewal's request, because the other candidate may have seen the
    renewal since then."""
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    other = Bridge(home, "other").start(watches=True)
    for one.link.late in (0.9, 1.7):
        await asyncio.sleep(20)
    assert not other.fence.is_open
    version = home.version
    await until(lambda: home.version > version, within=5)
    renewed = now()
    await until(lambda: one.fence.is_open, within=3)
    one.link.answers = False
    home.watches.clear()
    await until(lambda: not one.fence.is_open, within=2 * LEASE_SECONDS)
    assert now() - renewed < RENEW_DEADLINE + 0.1


@on_virtual_time
async def test_slow_home_suffices(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    one.link.slow = 2.5
    opened = 0
    for _ in range(600):
        await asyncio.sleep(0.1)
        opened += one.fence.is_open
    assert opened > 60
    assert one.lives == 1


@on_virtual_time
async def test_lease_taken_manually_is_lost(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    fence = one.fence
    home.change({"spec": {"holderIdentity": "third_1"}, "metadata": {"annotations": None}})
    await until(lambda: bool(one.lost), within=2 * RENEW_SECONDS)
    assert "held by third" in one.lost[0]
    assert not fence.is_open
    # No candidate renews it.
    await until(lambda: one.fence.is_open, within=2 * TAKEOVER)
    assert one.election.transitions == 2


@on_virtual_time
async def test_lease_deleted_while_holder_is_partitioned_is_lost(home: Home) -> None:
    one = Bridge(home, "one").start()
    await until(lambda: one.fence.is_open, within=TAKEOVER)
    one.link.cut = True
    await until(lambda: not one.fence.is_open, within=RENEW_DEADLINE + 0.1)
    home.lease, one.link.cut = None, False
    await until(lambda: bool(one.lost), within=15)
    assert "deleted" in one.lost[0]
    await until(lambda: one.fence.is_open, within=2 * TAKEOVER)


@on_virtual_time
async def test_leave_ends_leader_and_standbys(home: Home) -> None:
    one, other = await _two(home)
    assert home.lease is not None
    patch = election_lease.leave_patch(
        election_lease.parse_lease(home.lease), Candidate("leave_1", "there (pid 9)")
    )
    home.request("PATCH", patch)
    for bridge in (one, other):
        assert bridge.task is not None
        with pytest.raises(NodeLeft, match=r"bridge leave` on there \(pid 9\)"):
            await asyncio.wait_for(bridge.task, 2 * TAKEOVER)
        assert not bridge.fence.is_open
        assert not bridge.election.is_leader


@on_virtual_time
async def test_candidate_after_killed_leave_waits_and_leads(home: Home) -> None:
    first = Bridge(home, "first").start()
    await until(lambda: first.fence.is_open, within=TAKEOVER)
    await first.stop()
    assert home.lease is not None
    home.request(
        "PATCH",
        election_lease.leave_patch(election_lease.parse_lease(home.lease), Candidate("l_1", "l")),
    )
    later = Bridge(home, "later").start()
    await until(lambda: later.fence.is_open, within=TAKEOVER)
    assert not election_lease.parse_lease(home.lease or {}).leaving


@on_virtual_time
async def test_leader_without_remote_yields_to_candidate_with_remote(home: Home) -> None:
    first = Bridge(home, "first").start()
    await until(lambda: first.fence.is_open, within=TAKEOVER)
    second = Bridge(home, "second").start(watches=True)
    await asyncio.sleep(20)
    assert second.way.requests == 0, "no request while the remote is reachable"
    first.way.lost = True
    await until(lambda: second.fence.is_open, within=3 * TAKEOVER)
    assert not first.fence.is_open
    assert "gives node virtual to that one" in first.lost[0]
    assert "it asks for the lease" in second.reports[-1]
    record = election_lease.parse_lease(home.lease or {})
    assert (record.remote_lost, record.requested_by, record.holder) == (False, "", "second_id")
    await asyncio.sleep(20)
    assert second.fence.is_open, "and stays there"
    second.way.lost, first.way.lost = True, False
    await until(lambda: first.fence.is_open, within=3 * TAKEOVER)


@on_virtual_time
async def test_leader_stays_when_no_candidate_reaches_remote(home: Home) -> None:
    first = Bridge(home, "first").start()
    await until(lambda: first.fence.is_open, within=TAKEOVER)
    second = Bridge(home, "second").start(watches=True)
    first.way.lost, second.way.answers = True, False
    for _ in range(300):
        await asyncio.sleep(0.1)
        assert first.fence.is_open
    assert second.way.requests <= 30 / REQUEST_LEASE_SECONDS + 1, "at most one request per interval"
    assert not first.lost
    first.way.lost = False
    await asyncio.sleep(RENEW_SECONDS + 1)
    assert not election_lease.parse_lease(home.lease or {}).remote_lost, (
        "it reports that the remote is reachable again"
    )


@on_virtual_time
async def test_requested_leader_that_reaches_remote_again_stays(home: Home) -> None:
    first = Bridge(home, "first").start()
    await until(lambda: first.fence.is_open, within=TAKEOVER)
    home.change({"metadata": {"annotations": {election_lease.ANNOTATION_REQUESTED_BY: "another"}}})
    await asyncio.sleep(2 * RENEW_SECONDS)
    assert first.fence.is_open
    assert not election_lease.parse_lease(home.lease or {}).requested_by


@pytest.mark.parametrize("seed", range(12))
def test_two_never_write_at_once(seed: int) -> None:
    """Random partitions, lost or late responses, kills, stops and deletions."""

    async def test(home: Home) -> None:
        rng = random.Random(seed)
        bridges = [
            Bridge(home, f"b{number}", ahead=rng.uniform(-1e6, 1e6)).start(watches=number > 0)
            for number in range(3)
        ]
        led: Counter[str] = Counter()
        for step in range(3000):
            await asyncio.sleep(0.1)
            leaders = [it for it in bridges if it.fence.is_open]
            assert len(leaders) <= 1, f"step {step}"
            led.update(it.name for it in leaders)
            if step % 20 == 0:
                await _something(home, bridges, rng)
        assert led.total() > 600
        assert len(led) > 1

    on_virtual_time(test)()


async def _something(home: Home, bridges: list[Bridge], rng: random.Random) -> None:
    bridge = rng.choice(bridges)
    link = bridge.link
    link.cut, link.slow, link.late, link.answers = False, 0.005, 0.0, True
    bridge.way.lost = False
    match rng.randrange(11):
        case 0 | 1:
            link.cut = True
        case 2:
            link.slow = rng.uniform(0.1, 3)
        case 3:
            link.answers = False
        case 7 | 8:
            bridge.way.lost = True
        case 6:
            link.late = rng.uniform(0.1, 3)
        case 4:
            bridge.kill()
            bridges[bridges.index(bridge)] = Bridge(home, f"n{rng.random()}").start(watches=True)
        case 5:
            await asyncio.wait([asyncio.ensure_future(bridge.stop())], timeout=3)
            bridges[bridges.index(bridge)] = Bridge(home, f"n{rng.random()}").start(watches=True)
        case _:
            pass
