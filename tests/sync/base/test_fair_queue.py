"""The contract of the fair queue, by example and against any sequence of calls."""

from __future__ import annotations

import weakref
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sync.base.fair_queue import SHARE, FairQueue

MANY = 1000


def taken(queue: FairQueue[str], places: int = MANY) -> str:
    """Everything that comes, in its order."""
    items = []
    while (found := queue.take(places)) is not None:
        items.append(found[1])
    return " ".join(items)


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 2), (4, 3), (16, 12), (64, 48)])
def test_single_group_holds_three_quarters_of_the_slots(places: int, most: int) -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.add("crowd", f"{number}")
    assert len(taken(queue, places).split()) == most
    assert queue.try_acquire("crowd", places) is False
    assert queue.try_acquire("alone", places) is (most < places)


def test_new_group_gets_a_slot_while_others_hold_theirs() -> None:
    queue: FairQueue[str] = FairQueue()
    for group in range(20):
        for number in range(100):
            queue.add(group, f"{number}")
    taken(queue, 64)
    assert queue.try_acquire("alone", 64)


def test_no_slot_is_taken_if_fewer_exist_than_are_held() -> None:
    queue: FairQueue[str] = FairQueue()
    assert all(queue.try_acquire(group, 16) for group in "abcdefgh")
    queue.add("new", "n")
    assert not queue.try_acquire("other", 4)
    assert queue.take(4) is None
    for group in "abcde":
        queue.release(group)
    assert queue.take(4) == ("new", "n")


class Group:
    """A group; the model holds the only other reference to it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Model(RuleBasedStateMachine):
    """Nothing is lost, doubled or overtaken; turns are kept; nothing is kept for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.waiting: defaultdict[str, list[int]] = defaultdict(list)
        self.held: defaultdict[str, int] = defaultdict(int)
        self.passed: defaultdict[str, int] = defaultdict(int)
        self.groups: dict[str, Group] = {}
        """The groups that have items or slots."""
        self.count = 0
        self.places = 8

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def may(self, group: str) -> bool:
        free = self.places - sum(self.held.values())
        return self.held[group] < SHARE * free

    @rule(group=st.sampled_from("abcde"), number=st.integers(1, 6))
    def add(self, group: str, number: int) -> None:
        for _ in range(number):
            self.count += 1
            self.queue.add(self.group(group), self.count)
            self.waiting[group].append(self.count)

    @rule()
    def take(self) -> None:
        able = {group for group, items in self.waiting.items() if items and self.may(group)}
        assert self.queue.can_take(self.places) == bool(able)
        for group in "abcde":
            assert self.queue.can_take_from(self.group(group), self.places) == (group in able)
        found = self.queue.take(self.places)
        if found is None:
            assert not able
            return
        assert isinstance(found[0], Group)
        group = found[0].name
        assert group in able
        assert found[1] == self.waiting[group].pop(0)
        self.held[group] += 1
        self.passed[group] = 0
        for other in able - {group}:
            self.passed[other] += 1
            assert self.passed[other] < 5, "a group that may is passed over a whole round"

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(g for g, n in self.held.items() if n)))
        self.queue.release(self.group(group))
        self.held[group] -= 1

    @rule(group=st.sampled_from("abcde"))
    def hold(self, group: str) -> None:
        may = self.may(group)
        assert self.queue.try_acquire(self.group(group), self.places) == may
        self.held[group] += may

    @rule(places=st.integers(1, 16))
    def change(self, places: int) -> None:
        self.places = places

    @invariant()
    def the_numbers_are_right_and_nothing_is_kept_of_groups_that_are_gone(self) -> None:
        assert self.queue.waiting == sum(map(len, self.waiting.values()))
        assert self.queue.held == sum(self.held.values())
        for name in [it for it in self.groups if not self.waiting[it] and not self.held[it]]:
            group = weakref.ref(self.groups.pop(name))
            assert group() is None


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnySequence = Model.TestCase
