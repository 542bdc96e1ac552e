"""Nodes of the remote that are equal to the virtual node count in groups."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bridge.node.node_object import RemoteNodes
from translators.object_accessors import Object, name_of


def node(name: str, zone: str) -> Object:
    return {"metadata": {"name": name, "labels": {"zone": zone}}}


def zone_of(node: Object) -> str:
    return str(node["metadata"]["labels"]["zone"])


_changes = st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "y", "z"]))


@given(st.lists(_changes))
def test_groups_are_those_of_the_present_nodes(changes: list[tuple[str, str]]) -> None:
    """A change to the zone "" stands for a deletion."""
    nodes, present = RemoteNodes(zone_of), dict[str, str]()
    for name, zone in changes:
        before = present.get(name)
        if zone:
            assert nodes.changed(node(name, zone)) == (before != zone)
            present[name] = zone
        else:
            assert nodes.removed(node(name, "any")) == (before is not None)
            present.pop(name, None)
    assert {zone_of(node): count for node, count in nodes.groups()} == Counter(present.values())
    assert sorted(map(zone_of, nodes)) == sorted(set(present.values()))
    assert len(nodes) == len(present)


def test_group_is_shown_by_a_node_of_it() -> None:
    nodes = RemoteNodes(zone_of, [node("a", "x"), node("b", "x")])
    nodes.changed(node("b", "y"))
    assert {name_of(node): count for node, count in nodes.groups()}.keys() <= {"a", "b"}
    assert {zone_of(node): count for node, count in nodes.groups()} == {"x": 1, "y": 1}
