"""The contract of the fair queue, by example and against any sequence of calls."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Hashable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sync.base.fair_queue import SHARE, FairQueue, NestedFairQueue

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


def test_group_with_many_members_leaves_turns_and_slots_to_others() -> None:
    queue: NestedFairQueue[str] = NestedFairQueue(64, 48)
    for member in range(100):
        for _ in range(10):
            queue.add(("many", member), "m")
    queue.add(("one", "a"), "o")
    held = []
    while (found := queue.take()) is not None:
        held.append(found[0])
    assert held.index(("one", "a")) == 1
    assert len(held) == 1 + 48
    queue.add(("another", "a"), "o")
    assert queue.take() == (("another", "a"), "o")


def test_member_that_holds_its_slots_leaves_some_to_others_of_its_group() -> None:
    queue: NestedFairQueue[str] = NestedFairQueue(64, 48)
    for _ in range(100):
        queue.add(("g", "slow"), "s")
    slow = []
    while (found := queue.take()) is not None:
        slow.append(found[0])
    assert len(slow) == 36
    assert not queue.can_take()
    queue.add(("g", "other"), "o")
    assert queue.can_take()
    assert queue.take() == (("g", "other"), "o")
    queue.release(("g", "slow"))
    assert queue.take() == (("g", "slow"), "s")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))), st.randoms())
def test_nested_queue_loses_no_item(pairs: list[tuple[str, str]], rng: Random) -> None:
    queue: NestedFairQueue[int] = NestedFairQueue(8, 6)
    wait = dict(enumerate(pairs))
    held: list[tuple[Hashable, Hashable]] = []
    found: list[int] = []
    added = iter(wait.items())
    while len(found) < len(pairs) or held:
        step = rng.randrange(3)
        if step == 0 and (item := next(added, None)) is not None:
            number, pair = item
            queue.add(pair, number)
        elif step == 1 and held:
            queue.release(held.pop(rng.randrange(len(held))))
        elif step == 2:
            able = queue.can_take()
            got = queue.take()
            assert (got is not None) is able
            if got is not None:
                assert got[0] == wait[got[1]]
                held.append(got[0])
                found.append(got[1])
    assert sorted(found) == list(wait)
    for pair in set(pairs):
        mine = [number for number in found if wait[number] == pair]
        assert mine == sorted(mine), "a member's items keep their order"
    assert not queue.can_take()


class Group:
    """A group; the model holds the only other reference to it."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_nested_queue_keeps_nothing_about_a_group_without_items_and_slots() -> None:
    queue: NestedFairQueue[int] = NestedFairQueue(4, 3)
    group = Group("g")
    kept = weakref.ref(group)
    queue.add((group, "m"), 1)
    found = queue.take()
    assert found is not None
    queue.release(found[0])
    del group, found
    assert kept() is None


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


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnySequence = Model.TestCase
