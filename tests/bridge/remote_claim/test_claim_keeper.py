"""Two homes of one identity at one remote: one was restored from a backup, or cloned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bridge.base.command_error import PreflightError
from bridge.election import election_lease
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.node import lease_namespace
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.prune.remote_leftovers import PruneSettings, remove_leftovers
from bridge.remote_claim import claim_keeper, claim_record
from bridge.remote_claim.claim_keeper import ClaimRejected
from bridge.remote_claim.claim_record import Claim
from sync.base.exception_summary import first_leaf
from sync.kube.api_resources import LEASES, NAMESPACES, PODS
from tests.bridge.running_join import RunningJoin, running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")

ELECTION = election_lease.election_lease_name(NODE)


def lease_of(two: Clusters) -> str:
    """The claim's name."""
    uid = str(two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"])
    return claim_record.claim_lease_name(Identity(home_id_from_uid(uid), "h", NODE))


def claim_of(two: Clusters) -> Claim:
    return claim_record.parse_claim(two.remote.get(LEASES, lease_of(two), LEASE_NAMESPACE))


async def renewed(two: Clusters, times: int = 2) -> None:
    """Waits until the claim was renewed so often."""
    before = claim_of(two).sequence
    await two.remote.until(lambda: claim_of(two).sequence >= before + times)


@asynccontextmanager
async def cloned(two: Clusters, folder: Path) -> AsyncIterator[Clusters]:
    """Another home with all that this one has now, and the same remote."""
    async with FakeApi() as api:
        api.store.copy_state(two.home.store)
        content = kubeconfig(api.url, user={"token": "t"}, context="home-context")
        file = write(folder / "clone.yaml", content)
        settings = replace(two.settings, home=replace(two.settings.home, path=file))
        yield Clusters(api, two.remote, settings)


async def refused(run: RunningJoin) -> str:
    """The error that ends the join."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(120):
            await run.task
    found = caught.value.split(ClaimRejected)[0]
    assert found is not None
    return str(first_leaf(found))


async def running(two: Clusters, *names: str) -> dict[str, str]:
    """Makes pods that run in the remote; their UIDs there."""
    harness = EngineHarness(two.home, two.remote)
    for name in names:
        harness.pod(name)
        await two.remote.until(partial(harness.remote_pod, name))
        harness.report_running(name)
    return uids(two)


def uids(two: Clusters) -> dict[str, str]:
    return {
        it["metadata"]["name"]: it["metadata"]["uid"]
        for it in two.remote.objects(PODS, REMOTE_NAMESPACE)
    }


MALFORMED = b'{"metadata":{"name":"x","annotations":"oops"}}'


async def test_malformed_lease_does_not_end_the_bridge(two: Clusters) -> None:
    """The remote returns it to the first read, and then to each kind of request."""
    two.remote.fail(Fault("*", "*/leases*", raw=MALFORMED))
    acquired = two.remote.fail(Fault("POST", "*/leases", raw=MALFORMED))
    async with running_join(two):
        assert acquired.hits == 1
        read = two.remote.fail(Fault("GET", f"*/leases/{lease_of(two)}", raw=MALFORMED))
        written = two.remote.fail(Fault("PATCH", f"*/leases/{lease_of(two)}", raw=MALFORMED))
        await two.remote.until(lambda: (read.hits, written.hits) == (1, 1))
        await renewed(two)


async def test_restored_home_beside_original_changes_no_pod(two: Clusters, tmp_path: Path) -> None:
    async with running_join(two):
        await running(two, "old")
        async with cloned(two, tmp_path) as other:
            await renewed(two)
            before = await running(two, "new")
            other.home.clear_log()
            run = start_join(other.settings)
            message = await refused(run)
            assert "it was renewed after the state that this home is in" in message
            assert f"--take-over-claim {claim_of(two).id}" in message
            assert "restored from a backup" in message
            assert not any("is registered" in line for line in run.reports)
            written = [it.path for it in other.home.writes() if it.method != "POST"]
            assert [it for it in written if ELECTION not in it] == []
            await renewed(two)
        assert uids(two) == before
        await running(two, "newest")


async def test_recent_clone_is_rejected_by_next_renewal(
    two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record of the claim is up to date when it wins its own election: the claim is renewed
    less often than the Lease expires."""
    monkeypatch.setattr(claim_keeper, "RENEW_SECONDS", 8.0)
    monkeypatch.setattr(claim_keeper, "CLAIM_SECONDS", 24)
    monkeypatch.setattr(claim_keeper, "OBSERVE_SECONDS", 12.0)
    async with running_join(two):
        before = await running(two, "old")
        await renewed(two, 1)
        async with cloned(two, tmp_path) as other:
            run = start_join(other.settings)
            await run.wait_for_report("s to see whether that bridge still serves it")
            assert "renewed after" in await refused(run)
        assert uids(two) == before


@pytest.mark.parametrize("again", [False, True], ids=["stopped", "restarted and stopped"])
async def test_restored_home_is_rejected_after_original_stopped(
    two: Clusters, tmp_path: Path, again: bool
) -> None:
    """By the number of the claim, or by its id where it was acquired again since."""
    async with running_join(two):
        before = await running(two, "old")
        async with cloned(two, tmp_path) as other:
            await renewed(two)
    if again:
        async with running_join(two):
            pass
    assert claim_of(two).holder == ""
    async with other.home:  # serves again
        message = await refused(start_join(other.settings))
    assert ("has no record of the bridge" if again else "renewed after") in message
    assert uids(two) == before


async def test_rejected_home_does_not_take_claim_while_original_pauses(
    two: Clusters, tmp_path: Path
) -> None:
    async with running_join(two):
        async with cloned(two, tmp_path) as other:
            await renewed(two)
            before = await running(two, "new")
            await refused(start_join(other.settings))
            # An outdated claim would otherwise admit the join.
            mark = {claim_record.ANNOTATION_CLAIM: f"0 {claim_of(two).id}"}
            patch = {"metadata": {"annotations": mark}, "spec": {"holderIdentity": None}}
            two.remote.update(LEASES, lease_of(two), patch, LEASE_NAMESPACE)
            assert "has no record" in await refused(start_join(other.settings))
        assert uids(two) == before


async def test_taking_over_on_purpose_ends_the_original_and_works_once(
    two: Clusters, tmp_path: Path
) -> None:
    async with cloned(two, tmp_path) as other:
        original = start_join(two.settings)
        await original.wait_for_report("is registered")
        await running(two, "unknown")
        first = claim_of(two).id
        assert f"--take-over-claim {first}" in await refused(start_join(other.settings))
        taking = replace(other.settings, take_over_claim=first)
        run = start_join(taking)
        await run.wait_for_report(
            f"waiting {claim_keeper.CLAIM_SECONDS} s until that bridge can write no more"
        )
        message = await refused(original)
        assert "has no record of the bridge that holds it" in message
        await run.wait_for_report("is registered")
        await two.remote.until(
            lambda: two.remote.get(PODS, "unknown", REMOTE_NAMESPACE)["metadata"].get(
                "deletionTimestamp"
            )
        )
        await run.end()
        # The option that stays in a Deployment is of no effect on the next claim.
        async with running_join(other, taking):
            pass
        second = claim_of(two).id
        assert second != first
        assert f"--take-over-claim {second}" in await refused(
            start_join(two.but(take_over_claim=first))
        )


async def test_home_restored_under_its_bridge_ends_it(two: Clusters) -> None:
    """Restored in place: the pods that it does not know any more are not deleted."""
    run = start_join(two.settings)
    await run.wait_for_report("is registered")
    saved = two.home.get(LEASES, ELECTION, lease_namespace.NAMESPACE)["metadata"]["annotations"]
    before = await running(two, "new")
    await renewed(two)
    two.home.pause()
    await asyncio.sleep(election_lease.RENEW_DEADLINE + 0.1)
    two.home.update(
        LEASES, ELECTION, {"metadata": {"annotations": saved}}, lease_namespace.NAMESPACE
    )
    two.home.remove(PODS, "new", "default")
    two.home.resume()
    assert "the record of this home went back" in await refused(run)
    assert uids(two) == before


async def test_a_bridge_that_was_killed_is_followed_by_the_next_start(two: Clusters) -> None:
    first = start_join(two.settings)
    await first.wait_for_report("is registered")
    before = await running(two, "web")
    kept = two.remote.get(LEASES, lease_of(two), LEASE_NAMESPACE)
    at_home = two.home.get(LEASES, ELECTION, lease_namespace.NAMESPACE)
    await first.end()
    # As a bridge leaves both Leases that is killed.
    two.remote.update(LEASES, lease_of(two), {"spec": kept["spec"]}, LEASE_NAMESPACE)
    two.home.update(LEASES, ELECTION, {"spec": at_home["spec"]}, lease_namespace.NAMESPACE)
    async with running_join(two) as run:
        # It has observed the claim while it waited for the Lease.
        left = claim_keeper.OBSERVE_SECONDS - election_lease.LEASE_SECONDS
        assert any(f"waiting {left:.0f} s to see whether" in line for line in run.reports)
        assert uids(two) == before


async def test_a_claim_is_made_when_there_is_none_and_when_it_was_deleted(two: Clusters) -> None:
    async with running_join(two):
        made = claim_of(two)
        assert made.holder
        two.remote.remove(LEASES, lease_of(two), LEASE_NAMESPACE)
        await two.remote.until(lambda: two.remote.find(LEASES, lease_of(two), LEASE_NAMESPACE))
        assert claim_of(two).id == made.id
        await running(two, "web")
    assert claim_of(two).holder == ""


async def test_labels_set_on_claim_are_harmless(two: Clusters) -> None:
    async with running_join(two):
        for number in range(3):
            labels = {"labels": {"example.com/seen": str(number)}}
            two.remote.update(LEASES, lease_of(two), {"metadata": labels}, LEASE_NAMESPACE)
            await renewed(two)


async def test_remote_restored_from_backup_is_still_served(two: Clusters) -> None:
    async with running_join(two):
        saved = two.remote.get(LEASES, lease_of(two), LEASE_NAMESPACE)
    old = {"metadata": {"annotations": saved["metadata"]["annotations"]}, "spec": saved["spec"]}
    async with running_join(two):
        await renewed(two)
        two.remote.update(LEASES, lease_of(two), old, LEASE_NAMESPACE)
        await renewed(two)
    two.remote.update(LEASES, lease_of(two), old, LEASE_NAMESPACE)
    async with running_join(two):
        await running(two, "web")


async def test_renewals_whose_answers_are_lost_count(two: Clusters) -> None:
    async with running_join(two):
        path = LEASES.path(lease_of(two), namespace=LEASE_NAMESPACE)
        two.remote.fail(Fault("PATCH", path, drop="after", times=5))
        await renewed(two, 7)
        await running(two, "web")


async def test_a_claim_whose_last_renewal_had_no_answer_is_released(two: Clusters) -> None:
    async with running_join(two):
        await renewed(two)
        path = LEASES.path(lease_of(two), namespace=LEASE_NAMESPACE)
        lost = two.remote.fail(Fault("PATCH", path, drop="after"))
        await two.remote.until(lambda: lost.hits == 1)
    assert claim_of(two).holder == ""


async def test_a_remote_that_was_cut_off_is_not_written_to_before_the_claim_is_renewed(
    two: Clusters,
) -> None:
    async with running_join(two):
        path = LEASES.path(lease_of(two), namespace=LEASE_NAMESPACE)
        away = two.remote.fail(Fault("*", path, code=503, times=None))
        await asyncio.sleep(claim_keeper.CLAIM_SECONDS + 0.3)
        two.remote.clear_log()
        EngineHarness(two.home, two.remote).pod("late")
        await asyncio.sleep(5.0)
        assert not [it for it in two.remote.writes() if "/leases" not in it.path]
        two.remote.heal(away)
        await two.remote.until(lambda: "late" in uids(two))


def leaving(two: Clusters, *, keep_workloads: bool = False) -> LeaveSettings:
    settings = two.settings
    return LeaveSettings(
        NODE, settings.home, settings.remote, force=True, keep_workloads=keep_workloads
    )


@pytest.mark.parametrize("keep_workloads", [False, True])
async def test_a_leave_removes_the_claim(two: Clusters, keep_workloads: bool) -> None:
    async with running_join(two):
        pass
    settings = leaving(two, keep_workloads=keep_workloads)
    assert await leave(settings, notify=_quiet, confirm=lambda _: True)
    assert not two.remote.find(LEASES, lease_of(two), LEASE_NAMESPACE)
    async with running_join(two):
        pass


async def test_a_restored_home_cannot_leave_with_the_originals_pods(
    two: Clusters, tmp_path: Path
) -> None:
    async with running_join(two):
        async with cloned(two, tmp_path) as other:
            await renewed(two)
            before = await running(two, "new")
            with pytest.raises(PreflightError, match="renewed after the state that this home"):
                await leave(leaving(other), notify=_quiet, confirm=lambda _: True)
            kept = leaving(other, keep_workloads=True)
            assert await leave(kept, notify=_quiet, confirm=lambda _: True)
        await renewed(two)
        assert uids(two) == before


async def test_leftovers_of_a_deleted_home_include_its_claim(two: Clusters) -> None:
    async with running_join(two):
        await running(two, "web")
    uid = str(two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"])
    settings = PruneSettings(two.settings.remote, home=home_id_from_uid(uid))
    two.remote.remove(PODS, "web", REMOTE_NAMESPACE)
    assert await remove_leftovers(settings, notify=_quiet, confirm=lambda _: True)
    assert not two.remote.find(LEASES, lease_of(two), LEASE_NAMESPACE)


def _quiet(_: str) -> None:
    pass
