"""A queue for a limited number of slots, in which groups of items take turns.

- *Fair*: groups with waiting items take a slot one after the other; within a group items keep their
  order. An item waits behind the items of its own group, not behind those of all groups.
- *Isolated*: a group that holds slots gets another only while it holds fewer than `SHARE` times the
  free ones. Alone it gets three quarters of all slots, two groups get three sevenths each, and a
  group that holds none gets one at once unless about twenty groups are slow together.
- Every operation takes constant time. Nothing is kept about a group without items and slots.

The second rule is that of shared switch buffers (Choudhury and Hahne, Dynamic Queue Length
Thresholds, 1998). It keeps a namespace whose requests all hang from occupying all slots.

In a `NestedFairQueue` both hold for groups, and for the members of each group: a group with many
members gets no more than others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

#: How many slots a group may hold per free slot.
SHARE = 3


class FairQueue(Generic[T]):
    """Waiting items, and how many slots each group holds. Callers pass the number of slots, which
    may change, with each call."""

    __slots__ = ("_held", "_turns", "_waiting", "held", "waiting")

    def __init__(self) -> None:
        # Items by group, and the order of the groups' turns.
        self._waiting: dict[Hashable, deque[T]] = {}
        self._turns: deque[Hashable] = deque()
        self._held: dict[Hashable, int] = {}
        self.waiting = 0
        """How many items wait."""
        self.held = 0
        """How many slots are held."""

    def add(self, group: Hashable, item: T) -> None:
        waiting = self._waiting.get(group)
        if waiting is None:
            self._waiting[group] = deque((item,))
            self._turns.append(group)
        else:
            waiting.append(item)
        self.waiting += 1

    def try_acquire(self, group: Hashable, slots: int) -> bool:
        """Takes a slot for the group without waiting; False if the group may not have one.

        Overtakes no item, provided that `take` is called until it returns None whenever slots
        become free.
        """
        held_by_group = self._held.get(group, 0)
        if held_by_group >= SHARE * (slots - self.held):
            return False
        self._held[group] = held_by_group + 1
        self.held += 1
        return True

    def take(self, slots: int) -> tuple[Hashable, T] | None:
        """The next item with its group, which holds one more slot from now on; None if no waiting
        item may have a slot."""
        free = slots - self.held
        if free <= 0:
            return None
        turns, held, allowed = self._turns, self._held, SHARE * free
        # Groups that are skipped hold slots, so there are fewer of them than slots.
        for _ in range(len(turns)):
            group = turns[0]
            held_by_group = held.get(group, 0)
            if held_by_group >= allowed:
                turns.rotate(-1)
                continue
            waiting = self._waiting[group]
            item = waiting.popleft()
            self.waiting -= 1
            if not waiting:
                turns.popleft()
                del self._waiting[group]
            elif len(turns) > 1:
                turns.rotate(-1)
            held[group] = held_by_group + 1
            self.held += 1
            return group, item
        return None

    def can_take(self, slots: int) -> bool:
        """Whether `take` would return an item."""
        allowed = SHARE * (slots - self.held)
        return allowed > 0 and any(self._held.get(group, 0) < allowed for group in self._turns)

    def can_take_from(self, group: Hashable, slots: int) -> bool:
        """Whether `take` would return an item of this group, if it were its turn."""
        allowed = SHARE * (slots - self.held)
        return group in self._waiting and self._held.get(group, 0) < allowed

    def release(self, group: Hashable) -> None:
        held_by_group = self._held[group] - 1
        if held_by_group:
            self._held[group] = held_by_group
        else:
            del self._held[group]
        self.held -= 1


class NestedFairQueue(Generic[T]):
    """A `FairQueue` of groups, in each of which members take turns. Items belong to pairs of a
    group and a member. A group shares the ``slots`` with others, and a member shares
    ``member_slots`` with others of its group."""

    __slots__ = ("_groups", "_member_slots", "_members", "_offered", "_slots")

    def __init__(self, slots: int, member_slots: int) -> None:
        self._slots = slots
        self._member_slots = member_slots
        # One item stands for all that a group has; it waits while a member may have a slot.
        self._groups: FairQueue[None] = FairQueue()
        self._offered: set[Hashable] = set()
        self._members: dict[Hashable, FairQueue[T]] = {}

    def add(self, pair: tuple[Hashable, Hashable], item: T) -> None:
        group, member = pair
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = FairQueue()
        members.add(member, item)
        self._offer(group, members)

    def can_take(self) -> bool:
        """Whether `take` would return an item."""
        return self._groups.can_take(self._slots)

    def take(self) -> tuple[tuple[Hashable, Hashable], T] | None:
        """The next item with its pair, which holds one more slot from now on; None if no waiting
        item may have a slot."""
        taken = self._groups.take(self._slots)
        if taken is None:
            return None
        group, _ = taken
        self._offered.discard(group)
        members = self._members[group]
        found = members.take(self._member_slots)
        if found is None:
            raise AssertionError("a group waits only while a member may have a slot")
        self._offer(group, members)
        member, item = found
        return (group, member), item

    def release(self, pair: tuple[Hashable, Hashable]) -> None:
        group, member = pair
        members = self._members[group]
        members.release(member)
        self._groups.release(group)
        self._offer(group, members)
        if not members.waiting and not members.held:
            del self._members[group]

    def _offer(self, group: Hashable, members: FairQueue[T]) -> None:
        if group not in self._offered and members.can_take(self._member_slots):
            self._groups.add(group, None)
            self._offered.add(group)
