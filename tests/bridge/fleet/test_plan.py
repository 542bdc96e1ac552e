"""The plan has an action for each difference, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bridge.base.join_settings import Part
from bridge.fleet.desired_state import by_key
from bridge.fleet.plan import Action, describe, plan, ports
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.fleet.parts import part, parts


def verbs(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(it.verb, it.key) for it in actions]


def test_only_differences_lead_to_actions() -> None:
    current = by_key(parts("a", "b", "c", "d"))
    changed = part("b", labels={"x": "y"})
    desired = by_key([part("e"), part("c"), changed, part("d", "left")])
    found = plan(desired, current)
    assert verbs(found) == [("stop", "a"), ("start", "e"), ("restart", "b"), ("restart", "d")]
    assert found[2].part is changed
    assert describe(found) == "added e; changed b, d; removed a"
    assert describe(()) == "no remote has changed"


def test_remotes_without_a_name_keep_their_key_when_others_are_removed() -> None:
    unnamed = [
        Part(
            f"remotes[{index}]", replace(part("x").settings, name=None, remote=KubeconfigRef(file))
        )
        for index, file in enumerate((Path("/a"), Path("/b"), Path("/b")))
    ]
    assert list(by_key(unnamed)) == ["/a", "/b", "/b#2"]
    moved = [replace(it, label="other") for it in unnamed[1:]]
    assert verbs(plan(by_key(moved), by_key(unnamed))) == [("stop", "/a")]


def test_fixed_ports_are_those_of_joins() -> None:
    assert ports(part("a", port=10250, health_port=8080)) == {10250, 8080}
    assert ports(part("a")) == ports(part("a", "left", port=10250)) == frozenset()


_FLEETS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3)).map(
    lambda found: by_key(part(name, port=port) for name, port in found.items())
)


@given(_FLEETS, _FLEETS)
def test_actions_lead_to_the_desired_state(
    desired: dict[str, Part], current: dict[str, Part]
) -> None:
    state = dict(current)
    for action in plan(desired, current):
        assert (action.verb == "start") == (action.key not in state)
        del_or_set = {} if action.verb == "stop" else {action.key: action.part}
        state.pop(action.key, None)
        state |= del_or_set
    assert state == dict(desired)
    assert plan(desired, state) == ()
