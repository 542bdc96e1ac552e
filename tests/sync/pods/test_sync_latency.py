"""Latencies of pods: their start and end, and exclusions."""

from __future__ import annotations

import asyncio

import pytest

from sync.base.clock import now
from sync.cache.store import Key
from sync.pods.pod_controller import PodLatency
from tests import objects
from translators.object_accessors import Object

WEB = Key("default", "web")


@pytest.fixture
def times() -> PodLatency:
    """The latencies of an active bridge."""
    made = PodLatency()
    made.begin()
    return made


def pod(phase: str = "Pending", uid: str = "1") -> Object:
    made = objects.pod("web")
    made["metadata"]["uid"] = uid
    return {**made, "status": {"phase": phase}}


async def test_lag_counts_from_the_first_unwritten_change(times: PodLatency) -> None:
    times.remote_changed(WEB)
    await asyncio.sleep(2)
    times.remote_changed(WEB)
    since = times.take_change(WEB)
    assert since is not None
    times.restore_change(WEB, since)  # home did not answer
    await asyncio.sleep(1)
    again = times.take_change(WEB)
    assert again is not None
    times.status_written(again)
    assert (sum(times.status_lag.counts), times.status_lag.total) == (1, 3)
    assert times.take_change(WEB) is None


async def test_change_during_a_status_write_counts_separately(times: PodLatency) -> None:
    began = now()
    times.remote_changed(WEB)
    first = times.take_change(WEB)
    await asyncio.sleep(1)
    times.remote_changed(WEB)
    assert first == began
    assert times.take_change(WEB) == began + 1


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
async def test_start_ends_when_home_reports_the_pod_running(times: PodLatency, phase: str) -> None:
    times.home_changed(None, pod())
    await asyncio.sleep(1)
    times.home_changed(pod(), pod())
    await asyncio.sleep(4)
    times.home_changed(pod(), pod(phase))
    await asyncio.sleep(4)
    times.home_changed(pod(phase), pod("Succeeded"))
    assert (sum(times.start.counts), times.start.total) == (1, 5)


def test_failed_deleted_and_earlier_pods_are_no_starts(times: PodLatency) -> None:
    times.home_changed(None, pod())
    times.home_changed(pod(), pod("Failed"))
    times.home_changed(None, pod(uid="2"))
    times.home_changed(pod(uid="2"), None)
    times.home_changed(None, pod("Running", uid="3"))
    times.home_changed(None, pod(uid="4"))
    for uid in "123":
        times.home_changed(pod("Failed", uid), pod("Running", uid))
    assert sum(times.start.counts) == 0


def test_a_skipped_pod_is_no_start(times: PodLatency) -> None:
    skipped = pod("Running")
    accepted = {"type": "cluster-bridge.io/Accepted", "status": "False"}
    skipped["status"]["conditions"] = [accepted]
    times.home_changed(None, pod())
    times.home_changed(pod(), skipped)
    assert sum(times.start.counts) == 0


def test_standby_measures_nothing() -> None:
    times = PodLatency()
    times.home_changed(None, pod())
    times.remote_changed(WEB)
    times.begin()
    times.home_changed(pod(), pod("Running"))
    assert times.take_change(WEB) is None
    assert sum(times.start.counts) == 0
