"""Shares memory among connections whose peers do not take their bytes.

- One direction of a spliced connection holds at most one read, and reads no more until that is sent
  (`bridge.net.splice`). A read has at most a *window*.
- A window has `MAX_WINDOW` bytes while the connections that wait hold little, and fewer the more
  they hold. Each namespace may hold as much as is free (as in `bridge.net.open_file_budget`): one
  that does not read leaves half of the memory, and full windows, to others.
- No window is smaller than `MIN_WINDOW`, so slow connections become slower, and none ends. All of
  them together hold at most the limit, and `MIN_WINDOW` bytes for each direction beyond.

The kernel's buffers of received bytes (`bridge.net.receive_buffer`) share memory of their own in
the same way.
"""

from __future__ import annotations

from collections import Counter

from sync.base.memory_limit import memory_share
from sync.kube.sockets import READ_SIZE

MIN_WINDOW, MAX_WINDOW = 4 * 1024, READ_SIZE
#: Bytes of a kernel's buffer: as many as Linux begins with, and enough for 30 MB/s with a round
#: trip of 50 ms.
MIN_BUFFER, MAX_BUFFER = 128 * 1024, 4 * 2**20
#: One in so many bytes of what a namespace may still hold is a window.
_WINDOW_SHARE = 16


class ByteBudget:
    """Bytes that connections hold in pieces of ``smallest`` to ``largest``."""

    def __init__(self, limit: int, smallest: int, largest: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes of all namespaces."""
        self._smallest, self._largest = smallest, largest
        self._held_by: Counter[str] = Counter()

    def window(self, namespace: str) -> int:
        """How many bytes a piece of a connection of the namespace may have now."""
        left = self.limit - self.held - self._held_by.get(namespace, 0)
        return max(self._smallest, min(self._largest, left // _WINDOW_SHARE))

    def hold(self, namespace: str, size: int) -> None:
        """Adds so many bytes, or subtracts them if the number is negative."""
        self.held += size
        self._held_by[namespace] += size
        if not self._held_by[namespace]:
            del self._held_by[namespace]


class UnsentBudget(ByteBudget):
    """The unsent bytes of one kind of connections: streams, or those of the relay in one
    direction."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(memory_share(1) if limit is None else limit, MIN_WINDOW, MAX_WINDOW)
        self.receive_buffers = ByteBudget(memory_share(4), MIN_BUFFER, MAX_BUFFER)
        """Bytes of the kernel, beyond `MIN_BUFFER` for each end of a connection."""

    def share(self, namespace: str) -> UnsentShare:
        """The share of the connections of this namespace."""
        return UnsentShare(self, namespace)


class UnsentShare:
    """The part of one namespace."""

    __slots__ = ("_budget", "_namespace")

    def __init__(self, budget: UnsentBudget, namespace: str) -> None:
        self._budget = budget
        self._namespace = namespace

    def window(self) -> int:
        """As `ByteBudget.window`."""
        return self._budget.window(self._namespace)

    def hold(self, size: int) -> None:
        """As `ByteBudget.hold`."""
        self._budget.hold(self._namespace, size)

    def buffer_size(self) -> int:
        """How many bytes the kernel may hold for a connection that receives much."""
        return self._budget.receive_buffers.window(self._namespace)

    def hold_buffer(self, size: int) -> None:
        """As `hold`, for the kernel's buffers."""
        self._budget.receive_buffers.hold(self._namespace, size)
