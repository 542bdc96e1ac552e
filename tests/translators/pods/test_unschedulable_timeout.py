"""The timeout of pods that the remote's scheduler cannot place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sync.pod_states import LONG_AGO, NOW, POLICY, RECENTLY, home, remote
from translators.merge_patch import status_patch
from translators.object_accessors import Object
from translators.pods import pod_status, unschedulable_timeout

_NEVER = replace(POLICY, unschedulable_timeout=None)


def _condition(**condition: str) -> Object:
    there = remote(phase="Pending", waits=True)
    there["status"]["conditions"][0] |= condition
    return there


@pytest.mark.parametrize(
    ("there", "waits"),
    [
        (_condition(), True),
        (_condition(reason="SchedulingGated"), False),
        (_condition(status="True"), False),
        (remote(phase="Pending"), False),
        (remote(phase="Pending", waits=True, deleting=0), False),
        (remote(phase="Failed", waits=True), False),
    ],
    ids=["no node", "a gate", "scheduled", "bound", "going", "ended"],
)
def test_pod_is_unschedulable_while_the_scheduler_finds_no_node(there: Object, waits: bool) -> None:
    assert unschedulable_timeout.is_unschedulable(there) is waits


@pytest.mark.parametrize(
    ("since", "left"), [(RECENTLY, 60), (LONG_AGO, 0), ("2025-11-03T11:00:00Z", 300), (None, None)]
)
def test_timeout_counts_from_the_first_report_at_home(
    since: str | None, left: float | None
) -> None:
    pod = home(waits=since)
    assert unschedulable_timeout.timeout_remaining(pod, POLICY, now=NOW) == left
    assert unschedulable_timeout.timeout_remaining(pod, _NEVER, now=NOW) is None


def _reported(pod: Object, there: Object, now: str) -> Object:
    wanted = pod_status.translate_status(pod, there, POLICY, now=now)
    (reported,) = [
        c for c in wanted["conditions"] if c["type"] == pod_status.CONDITION_REMOTE_SCHEDULED
    ]
    return {**pod, "status": {"phase": "Pending", "conditions": [reported]}}


def test_remote_clock_and_message_changes_do_not_reset_the_timeout() -> None:
    pod = _reported(home(), _condition(lastTransitionTime="2020-01-01T00:00:00Z"), RECENTLY)
    assert unschedulable_timeout.timeout_remaining(pod, POLICY, now=NOW) == 60
    pod = _reported(pod, _condition(message="0/3 nodes are available"), NOW)
    assert unschedulable_timeout.timeout_remaining(pod, POLICY, now=NOW) == 60
    assert unschedulable_timeout.timeout_message(pod, POLICY) == (
        "the remote cluster's scheduler found no node for 300 s: 0/3 nodes are available"
    )


def test_gated_time_does_not_count() -> None:
    gated = _condition(reason="SchedulingGated")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    pod = _reported(home(), gated, LONG_AGO)
    assert unschedulable_timeout.timeout_remaining(pod, POLICY, now=NOW) is None
    pod = _reported(pod, _condition(), RECENTLY)
    assert unschedulable_timeout.timeout_remaining(pod, POLICY, now=NOW) == 60


def test_immediately_scheduled_pod_gets_no_condition() -> None:
    there = remote(phase="Pending")
    there["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    pod = home()
    wanted = pod_status.translate_status(pod, there, POLICY, now=NOW)
    assert status_patch(pod["status"], wanted) == {}
