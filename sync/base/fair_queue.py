"""Places for a limited number of things at once, given to groups in turn.

- *Fair*: groups that have something waiting get a place one after the other; within a group it is
  first come, first served. What a group adds is behind what it has, not behind all others'.
- *Room for others*: a group that holds places gets one more only while it holds fewer than `SHARE`
  times the places that are free. Alone it takes three quarters of them, two take three sevenths
  each; who holds none finds a place at once, unless some twenty groups are slow together.
- Every operation takes constant time, whatever waits. Nothing is kept of a group that has nothing
  here.

The second rule is that of buffers that queues of a switch share (Choudhury and Hahne, Dynamic Queue
Length Thresholds, 1998). It is what keeps one namespace whose requests all hang from holding all
that could work for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

#: How many places a group may hold for each that is free.
SHARE = 3


class FairQueue(Generic[T]):
    """What waits for a place, and who holds how many.

    How many places there are is said with each call, as it may change; 0 or fewer free ones are
    none.
    """

    __slots__ = ("_held", "_turns", "_waiting", "held", "waiting")

    def __init__(self) -> None:
        # Groups with something waiting, and the order of their turns.
        self._waiting: dict[Hashable, deque[T]] = {}
        self._turns: deque[Hashable] = deque()
        self._held: dict[Hashable, int] = {}
        self.waiting = 0
        """How many wait."""
        self.held = 0
        """How many places are held."""

    def add(self, group: Hashable, item: T) -> None:
        """The item waits for its group's turn."""
        waiting = self._waiting.get(group)
        if waiting is None:
            self._waiting[group] = deque((item,))
            self._turns.append(group)
        else:
            waiting.append(item)
        self.waiting += 1

    def try_acquire(self, group: Hashable, places: int) -> bool:
        """Takes one of so many places for the group, without waiting; False where it may not.

        Overtakes nobody, as long as `take` is called until it gives nothing whenever places
        become free.
        """
        mine = self._held.get(group, 0)
        if mine >= SHARE * (places - self.held):
            return False
        self._held[group] = mine + 1
        self.held += 1
        return True

    def take(self, places: int) -> tuple[Hashable, T] | None:
        """What is next, with its group, which holds one more of so many places from now on; None
        where nothing waits that may have one."""
        free = places - self.held
        if free <= 0:
            return None
        turns, held, room = self._turns, self._held, SHARE * free
        # Those that are passed over hold places: there are fewer of them than places.
        for _ in range(len(turns)):
            group = turns[0]
            mine = held.get(group, 0)
            if mine >= room:
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
            held[group] = mine + 1
            self.held += 1
            return group, item
        return None

    def can_take(self, places: int) -> bool:
        """Whether `take` would give something."""
        room = SHARE * (places - self.held)
        return room > 0 and any(self._held.get(group, 0) < room for group in self._turns)

    def can_take_from(self, group: Hashable, places: int) -> bool:
        """Whether `take` would give something of this group, were it its turn."""
        room = SHARE * (places - self.held)
        return group in self._waiting and self._held.get(group, 0) < room

    def release(self, group: Hashable) -> None:
        """The group gives back one of its places."""
        mine = self._held[group] - 1
        if mine:
            self._held[group] = mine
        else:
            del self._held[group]
        self.held -= 1
