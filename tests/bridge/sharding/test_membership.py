"""The knowledge of one replica about the others, with and without home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from bridge.node.lease_namespace import NAMESPACE
from bridge.sharding import membership, membership_record
from bridge.sharding.membership import Membership
from bridge.sharding.membership_record import LEASE_SECONDS, RENEW_DEADLINE, Member
from sync.kube.api_resources import LEASES
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault

pytestmark = pytest.mark.usefixtures("soon")

OTHER = Member("other", {"east": "serving"})
PATH = LEASES.path(membership_record.NAME, namespace=NAMESPACE)


@dataclass
class Replica:
    """A replica whose clock the test sets. The other's record is written by the test."""

    two: Clusters
    now: float = 1000.0
    returns: int = 0
    descriptions: int = 0
    reports: list[str] = field(default_factory=list)
    renewal: int = 0
    membership: Membership = field(init=False)

    def __post_init__(self) -> None:
        self.membership = Membership(
            self.two.settings.home,
            "me",
            self._describe,
            notify=self.reports.append,
            on_change=lambda: None,
            on_return=self._returned,
            clock=lambda: self.now,
        )

    def _describe(self) -> Member:
        self.descriptions += 1
        return Member("me", {"east": "cold"})

    def _returned(self) -> None:
        self.returns += 1

    def others(self) -> set[str]:
        return set(self.membership.members()) - {"me"}

    def records(self) -> int:
        """How often this replica has written its record."""
        return sum(
            it.code == [200] and membership_record.PREFIX + "me" in str(it.body)
            for it in self.two.home.requests("PATCH", PATH)
        )

    async def meet_other(self) -> None:
        """Renews the other's record until this replica counts it as live."""
        while not self.others():
            self.renewal += 1
            text = membership_record.record_text(OTHER, renewal=self.renewal)
            patch = membership_record.patch({"other": text})
            self.two.home.update(LEASES, membership_record.NAME, patch, NAMESPACE)
            await asyncio.sleep(0.01)

    async def renew(self) -> None:
        """Lets this replica renew its record."""
        count = self.records()
        self.now += membership_record.RENEW_SECONDS
        await self.two.home.until(lambda: self.records() > count)
        # The next look begins after the response was handled.
        count = self.descriptions
        while self.descriptions == count:  # noqa: ASYNC110
            await asyncio.sleep(0.004)


@pytest.fixture
async def replica(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    """A replica that knows another one."""
    for name in ("TICK_SECONDS", "RETRY_SECONDS", "FORBIDDEN_SECONDS"):
        monkeypatch.setattr(membership, name, 0.01)
    made = Replica(two)
    task = asyncio.create_task(made.membership.run())
    try:
        await two.home.until(lambda: two.home.find(LEASES, membership_record.NAME, NAMESPACE))
        await made.meet_other()
        await made.renew()
        assert made.others() == {"other"}
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_other_that_no_longer_renews_is_gone_after_its_time(replica: Replica) -> None:
    ends = replica.now + LEASE_SECONDS
    while replica.now < ends:
        await replica.renew()
    assert replica.others() == set()


async def test_replica_without_home_never_takes_the_others_for_gone(replica: Replica) -> None:
    # The other's renewal is due: it was last seen just before this replica's.
    silence = replica.two.home.faults.add(Fault(times=None, code=503))
    ends = replica.now + 3 * LEASE_SECONDS
    while replica.now < ends:
        replica.now += 0.1
        assert replica.others() == {"other"}
    replica.two.home.faults.lift(silence)
    await replica.renew()
    assert replica.others() == {"other"}


async def test_return_of_home_is_reported_once(replica: Replica) -> None:
    before = replica.returns
    silence = replica.two.home.faults.add(Fault(times=None, code=503))
    replica.now += RENEW_DEADLINE + 1
    await replica.two.home.until(lambda: silence.hits > 1)
    assert replica.returns == before
    replica.two.home.faults.lift(silence)
    await replica.renew()
    await replica.renew()
    assert replica.returns == before + 1


async def test_replica_that_loses_the_permission_has_no_others(replica: Replica) -> None:
    replica.two.home.faults.add(Fault("PATCH", PATH, times=None, code=403))
    replica.now += membership_record.RENEW_SECONDS
    await replica.two.home.until(lambda: replica.reports)
    assert replica.others() == set()
