"""The memory of remotes that refused a workload's pods."""

from __future__ import annotations

import pytest

from sync.placement import refusals
from sync.placement.refusals import RETURN_SECONDS, SECONDS, Refusals
from tests import objects
from translators.object_accessors import Object
from translators.placement import placed_pod
from translators.placement.decision import Decision


class Clock:
    """The time of `monotonic`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(refusals, "monotonic", made)
    return made


def pod(name: str, workload: str = "w") -> Object:
    """A pod that the remote ``c`` has refused."""
    made = objects.pod(name, node="c")
    made["metadata"] |= {
        "uid": name,
        "ownerReferences": [{"kind": "ReplicaSet", "uid": workload, "controller": True}],
    }
    made["status"] = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no GPU"}
    return placed_pod.placed(made, Decision("p", "c", "cheap"))


def refuse(found: Refusals, name: str) -> None:
    assert found.pod_changed(None, pod(name))


def test_refusal_is_for_the_workload_and_forgotten(clock: Clock) -> None:
    found = Refusals()
    refuse(found, "a")
    assert not found.pod_changed(None, pod("a")), "it counts once"
    reasons, seconds = found.for_pod(pod("b"), ["c", "d"])
    assert reasons == {"c": "refused a pod of the same workload: no GPU"}
    assert seconds == SECONDS
    assert found.for_pod(pod("b", "other"), ["c"]) == ({}, None)
    clock.now += SECONDS
    assert found.for_pod(pod("b"), ["c"]) == ({}, None)


def test_pods_return_later_after_each_further_refusal(clock: Clock) -> None:
    found, waited = Refusals(), []
    for attempt in range(12):
        for replica in range(3):  # Those of one burst are one refusal.
            refuse(found, f"{attempt}-{replica}")
        began = clock.now
        while found.for_return(pod("b"), ["c"]):
            clock.now += SECONDS / 2
        waited.append(clock.now - began)
    assert waited[:4] == [SECONDS, 2 * SECONDS, 4 * SECONDS, 8 * SECONDS]
    assert waited[-1] == RETURN_SECONDS
    clock.now += 2 * RETURN_SECONDS
    refuse(found, "much later")
    clock.now += SECONDS
    assert not found.for_return(pod("b"), ["c"])
