"""The nodes of the remote in groups of those that are equal to the virtual node.

A remote has thousands of nodes and few kinds of them. Labels, conditions and ``nodeInfo`` of the
virtual node are computed from one node of each group and its size, so that a write of the Node
costs no time in proportion to the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from translators.object_accessors import Object, name_of


class RemoteNodes:
    """``equality`` returns what the virtual node depends on of a node: a value that is equal for
    nodes of one group."""

    def __init__(
        self, equality: Callable[[Object], Hashable], nodes: Iterable[Object] = ()
    ) -> None:
        self._equality = equality
        self._group_of: dict[str, Hashable] = {}
        # Of each group: one of its nodes as it was seen last, and how many it has.
        self._groups: dict[Hashable, tuple[Object, int]] = {}
        for node in nodes:
            self.changed(node)

    def __len__(self) -> int:
        return len(self._group_of)

    def changed(self, node: Object) -> bool:
        """Records a node that was added or changed. Returns whether its group is another one."""
        group, known = self._equality(node), self._group_of.get(name_of(node))
        if group == known:
            return False
        self.removed(node)
        self._group_of[name_of(node)] = group
        self._groups[group] = (node, self._size(group) + 1)
        return True

    def removed(self, node: Object) -> bool:
        """Records the deletion of a node. Returns whether it was known."""
        group = self._group_of.pop(name_of(node), None)
        if group is None:
            return False
        if (left := self._size(group) - 1) > 0:
            self._groups[group] = (self._groups[group][0], left)
        else:
            del self._groups[group]
        return True

    def groups(self) -> list[tuple[Object, int]]:
        """One node of each group, and the size of the group."""
        return list(self._groups.values())

    def __iter__(self) -> Iterator[Object]:
        """One node of each group."""
        return (node for node, _ in self.groups())

    def _size(self, group: Hashable) -> int:
        return self._groups[group][1] if group in self._groups else 0
