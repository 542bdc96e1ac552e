"""The deadline of a pod that no kubelet has yet."""

from __future__ import annotations

import pytest

from translators.object_accessors import Object
from translators.pods import active_deadline

_NOW = "2025-11-03T10:00:00Z"
_ACCEPTED, _SCHEDULED = "cluster-bridge.io/Accepted", "cluster-bridge.io/RemoteScheduled"


def _pod(allowed: int | None, **since: tuple[str, str]) -> Object:
    names = {"accepted": _ACCEPTED, "scheduled": _SCHEDULED}
    conditions = [
        {"type": names[kind], "status": status, "lastTransitionTime": time}
        for kind, (status, time) in since.items()
    ]
    spec = {} if allowed is None else {"activeDeadlineSeconds": allowed}
    return {"spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        (_pod(100), 100),
        (_pod(None, accepted=("False", "2025-11-03T09:59:00Z")), None),
        (_pod(100, scheduled=("True", "2025-11-03T09:00:00Z")), 100),
        (_pod(100, accepted=("False", "2025-11-03T09:59:00Z")), 40),
        (_pod(50, scheduled=("False", "2025-11-03T09:59:00Z")), 0),
        (
            _pod(
                100,
                scheduled=("False", "2025-11-03T09:59:30Z"),
                accepted=("False", "2025-11-03T09:59:00Z"),
            ),
            40,
        ),
        # The clock was ahead when the wait began.
        (_pod(100, accepted=("False", "2025-11-03T11:00:00Z")), 100),
    ],
)
def test_wait_counts_from_the_first_report(pod: Object, left: float | None) -> None:
    assert active_deadline.deadline_remaining(pod, now=_NOW) == left
