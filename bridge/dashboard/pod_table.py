"""The rows of all pods, and what changed in them since a revision.

Each change gets the next revision. A reader remembers the revision that it has seen and asks for
the changes since; a row that changed several times is returned once. Deletions are remembered up
to `MAX_REMOVED`: a reader who is further behind gets None, and reads all rows again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bridge.dashboard.pod_row import pod_row
from bridge.status.node_pod_summary import PodCounts, PodSummary, summarize_pod
from translators.object_accessors import Object, uid_of

#: Deletions that are remembered.
MAX_REMOVED = 10_000


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed rows and the UIDs of removed pods, up to ``revision``."""

    revision: int
    rows: list[Object]
    removed: list[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    revision: int
    row: Object
    summary: PodSummary


class PodTable:
    """The rows by UID; ``on_change`` is called after each change."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        # The last changed one is at the end.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._by_node: dict[str, dict[str, PodSummary]] = {}
        self._removed: deque[tuple[int, str]] = deque(maxlen=MAX_REMOVED)
        self.revision = 0

    def __len__(self) -> int:
        return len(self._entries)

    def update(self, old: Object | None, new: Object | None) -> None:
        """Takes over a change of a pod, as an informer reports it."""
        if old is not None and (new is None or uid_of(old) != uid_of(new)):
            self._remove(uid_of(old))
        if new is not None:
            self._put(new)

    def remove_node(self, node: str) -> None:
        """Removes all pods of a deleted node."""
        for uid in list(self._by_node.get(node, ())):
            self._remove(uid)

    def counts(self, node: str) -> PodCounts:
        """The counts of the node's pods."""
        counted = PodCounts()
        for summary in self._by_node.get(node, {}).values():
            counted.add_summary(summary)
        return counted

    def rows(self) -> list[Object]:
        """All rows."""
        return [it.row for it in self._entries.values()]

    def changes_since(self, revision: int) -> Changes | None:
        """The changes after ``revision``; None if they are no longer known."""
        is_dropped = len(self._removed) == MAX_REMOVED and self._removed[0][0] > revision + 1
        if revision > self.revision or is_dropped:
            return None
        rows = [it.row for it in self._newest(revision)]
        removed = [uid for at, uid in self._removed if at > revision]
        return Changes(self.revision, rows, [it for it in removed if it not in self._entries])

    def _newest(self, revision: int) -> Iterator[_Entry]:
        for entry in reversed(self._entries.values()):
            if entry.revision <= revision:
                return
            yield entry

    def _put(self, pod: Object) -> None:
        uid, summary = uid_of(pod), summarize_pod(pod)
        row = pod_row(pod, summary)
        known = self._entries.get(uid)
        if known is not None and known.row == row and known.summary == summary:
            return
        if known is not None:
            self._by_node[known.row["node"]].pop(uid, None)
        self._by_node.setdefault(row["node"], {})[uid] = summary
        self.revision += 1
        self._entries[uid] = _Entry(self.revision, row, summary)
        self._entries.move_to_end(uid)
        self._on_change()

    def _remove(self, uid: str) -> None:
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        of_node = self._by_node[entry.row["node"]]
        of_node.pop(uid, None)
        if not of_node:
            del self._by_node[entry.row["node"]]
        self.revision += 1
        self._removed.append((self.revision, uid))
        self._on_change()
