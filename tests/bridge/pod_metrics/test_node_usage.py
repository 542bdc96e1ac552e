"""The node's sums: what counts, once, and that the counter never falls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pod_metrics.node_usage import MIN_BYTES, MIN_SECONDS, NodeUsage, PodUsage


def used(uid: str, seconds: float, at: int, memory: float = 10.0) -> PodUsage:
    return PodUsage(uid, seconds, at, memory)


#: Milliseconds between two answers, more than clocks differ.
MINUTE = 60_000


def counted(*answers: list[PodUsage], present: set[str] | None = None) -> NodeUsage:
    """Answers a minute apart; each pod was placed just before it was first there."""
    usage, placed = NodeUsage(), dict[str, int]()
    for number, answer in enumerate(answers, start=1):
        there = {it.uid for it in answer} if present is None else present
        for uid in there:
            placed.setdefault(uid, number * MINUTE - 1)
        usage.add(answer, present={uid: placed[uid] for uid in there}, now=number * MINUTE)
    return usage


def test_idle_node_reports_values_above_zero() -> None:
    usage = counted([])
    assert (usage.cpu_seconds, usage.memory_bytes) == (MIN_SECONDS, MIN_BYTES)
    assert usage.milliseconds is None


def test_pod_adds_its_usage_since_the_last_sample() -> None:
    usage = counted([used("a", 5, 1), used("b", 7, 1)], [used("a", 6, 20), used("b", 9, 10)])
    assert usage.cpu_seconds == pytest.approx(3 + MIN_SECONDS)
    assert (usage.memory_bytes, usage.milliseconds) == (20, 20)


def test_usage_before_the_first_response_is_not_counted() -> None:
    usage = counted([used("a", 500, 1)], [used("a", 501, 2), used("new", 3, 2)])
    assert usage.cpu_seconds == pytest.approx(1 + 3 + MIN_SECONDS)


def test_existing_pod_with_late_first_sample_causes_no_jump() -> None:
    usage = counted([], [used("a", 500, 1)], [used("a", 501, 2)], present={"a"})
    assert usage.cpu_seconds == pytest.approx(1 + MIN_SECONDS)


def test_missed_sample_loses_no_usage() -> None:
    answers = [[used("a", 1, 1)], [], [used("a", 4, 3)]]
    usage = counted(*answers, present={"a"})
    assert usage.cpu_seconds == pytest.approx(3 + MIN_SECONDS)


def test_pod_listed_late_causes_no_jump() -> None:
    """It was placed long before the last answer, which did not have it."""
    usage = NodeUsage()
    usage.add([], present={}, now=60 * MINUTE)
    usage.add([used("a", 500, 1)], present={"a": MINUTE}, now=61 * MINUTE)
    usage.add([used("a", 501, 2)], present={"a": MINUTE}, now=62 * MINUTE)
    assert usage.cpu_seconds == pytest.approx(1 + MIN_SECONDS)


def test_pod_listed_again_after_a_gap_causes_no_jump() -> None:
    answers = [[used("b", 0, 1)], [used("a", 5, 2)], [used("b", 0, 3)], [used("a", 500, 4)]]
    usage = counted(*answers, [used("a", 501, 5)])
    assert usage.cpu_seconds == pytest.approx(5 + 1 + MIN_SECONDS)


def test_new_pod_with_late_first_sample_counts_as_a_whole() -> None:
    usage = NodeUsage()
    usage.add([], present={}, now=MINUTE)
    placed = {"a": MINUTE + 1}
    usage.add([], present=placed, now=2 * MINUTE)
    usage.add([used("a", 7, 1)], present=placed, now=3 * MINUTE)
    assert usage.cpu_seconds == pytest.approx(7 + MIN_SECONDS)


def test_decreased_pod_counter_is_a_reset() -> None:
    usage = counted([used("a", 100, 1)], [used("a", 2, 2)], [used("a", 3, 3)])
    assert usage.cpu_seconds == pytest.approx(3 + MIN_SECONDS)


def test_sample_that_is_not_newer_is_ignored() -> None:
    usage = counted(
        [used("a", 100, 5)], [used("a", 90, 4)], [used("a", 100, 5)], [used("a", 101, 6)]
    )
    assert usage.cpu_seconds == pytest.approx(1 + MIN_SECONDS)


def test_next_bridge_resumes_the_counter() -> None:
    first, second = counted([used("a", 1, 1)], [used("a", 43, 2)]), NodeUsage()
    second.add([used("a", 44, 3)], present={"a": 0}, now=MINUTE)
    second.resume(first.checkpoint())
    assert second.cpu_seconds >= first.cpu_seconds >= 42


@pytest.mark.parametrize("note", ["", "much", "nan", "inf", "-5", "1e305", "1e15"])
def test_invalid_checkpoint_is_ignored(note: str) -> None:
    usage = NodeUsage()
    usage.resume(note)
    assert usage.cpu_seconds == MIN_SECONDS


pods = st.sampled_from(["a", "b", "c"])
samples = st.builds(PodUsage, pods, st.floats(0, 1e6), st.integers(0, 100), st.floats(0, 1e9))


_times = st.integers(0, 10 * MINUTE)


@given(st.lists(st.tuples(st.lists(samples, max_size=4), st.dictionaries(pods, _times), _times)))
def test_counter_never_decreases(answers: list[tuple[list[PodUsage], dict[str, int], int]]) -> None:
    usage = NodeUsage()
    before = usage.cpu_seconds
    for answer, present, now in answers:
        usage.add(answer, present=present, now=now)
        assert usage.cpu_seconds >= before
        before = usage.cpu_seconds


def test_resuming_again_does_not_count_the_other_bridges_time() -> None:
    usage = NodeUsage()
    usage.resume("100.0")
    usage.add([used("a", 10, 1)], present={"a": 0}, now=1 * MINUTE)
    usage.add([used("a", 12, 2)], present={"a": 0}, now=2 * MINUTE)
    assert usage.cpu_seconds == pytest.approx(102 + MIN_SECONDS)
    usage.resume("150.0")
    usage.add([used("a", 60, 50)], present={"a": 0}, now=3 * MINUTE)
    assert usage.cpu_seconds == 150
    usage.add([used("a", 61, 60)], present={"a": 0}, now=4 * MINUTE)
    assert usage.cpu_seconds == 151
    usage.resume("3.0")
    assert usage.cpu_seconds == 151
