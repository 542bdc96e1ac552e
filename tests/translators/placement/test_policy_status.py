"""The status of a PlacementPolicy follows kstatus, and keeps the times of unchanged conditions."""

from __future__ import annotations

from translators.object_accessors import Object, condition_of
from translators.placement.policy_status import PolicyState, policy_status

NOW, LATER = "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"


def policy(generation: int = 3, status: Object | None = None) -> Object:
    return {"metadata": {"name": "p", "generation": generation}, "status": status or {}}


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    """Status and reason by type."""
    return {it["type"]: (it["status"], it["reason"]) for it in status["conditions"]}


def test_valid_policy_is_ready_and_has_numbers() -> None:
    status = policy_status(policy(), PolicyState(tiers=2, placed=4, waiting=1), NOW)
    assert conditions(status) == {"Ready": ("True", "Active")}
    assert status["observedGeneration"] == 3
    assert (status["placedPods"], status["waitingPods"]) == (4, 1)


def test_invalid_policy_is_stalled_with_the_problem_and_the_next_step() -> None:
    state = PolicyState(problem="spec.tiers: the names must be unique")
    status = policy_status(policy(), state, NOW)
    expected = ("False", "InvalidSpec"), ("True", "InvalidSpec")
    assert conditions(status) == dict(zip(("Ready", "Stalled"), expected, strict=True))
    message = condition_of({"status": status}, "Stalled")["message"]
    assert message.startswith("spec.tiers: the names must be unique; correct it")


def test_policy_without_any_candidate_is_not_ready_and_not_stalled() -> None:
    """A join may make progress: to kstatus the object is in progress."""
    status = policy_status(policy(), PolicyState(tiers=1, without_candidate=["cheap"]), NOW)
    assert conditions(status) == {"Ready": ("False", "NoCandidate")}
    assert "(cheap)" in status["conditions"][0]["message"]


def test_message_names_the_tiers_without_a_virtual_node() -> None:
    tiers = [f"t{it}" for it in range(8)]
    status = policy_status(policy(), PolicyState(tiers=9, without_candidate=tiers), NOW)
    assert conditions(status) == {"Ready": ("True", "Active")}
    assert status["conditions"][0]["message"].endswith("t0, t1, t2, t3, t4 and 3 more")


def test_time_changes_with_the_value_of_a_condition_alone() -> None:
    first = policy_status(policy(), PolicyState(tiers=1), NOW)
    again = policy_status(policy(4, first), PolicyState(tiers=1, placed=1), LATER)
    assert again["conditions"][0]["lastTransitionTime"] == NOW
    assert again["conditions"][0]["observedGeneration"] == 4
    broken = policy_status(policy(5, again), PolicyState(problem="spec: no"), LATER)
    assert {it["lastTransitionTime"] for it in broken["conditions"]} == {LATER}


def test_long_problem_is_cut() -> None:
    status = policy_status(policy(), PolicyState(problem="x" * 5000), NOW)
    assert {len(it["message"]) for it in status["conditions"]} == {1024}
