"""`bridge offload` limits where a PlacementPolicy may place pods."""

from __future__ import annotations

import pytest

from tests.translators.placement.test_decision import policy
from translators.object_accessors import Object
from translators.placement.decision import HOME
from translators.placement.offload_limits import contradiction, excluded_by_offload, offload_text


def namespace(mode: str = "", selector: str = "") -> Object:
    annotations = {"cluster-bridge.io/offload-node-selector": selector} if selector else {}
    labels = {"cluster-bridge.io/offload": mode} if mode else {}
    return {"metadata": {"name": "shop", "labels": labels, "annotations": annotations}}


def node(name: str, zone: str) -> Object:
    return {"metadata": {"name": name, "labels": {"zone": zone}}}


NODES = [node("a", "a"), node("b", "b")]


@pytest.mark.parametrize(
    ("mode", "selector", "excluded"),
    [
        ("", "", set()),
        ("burst", "", set()),
        ("burst", "zone=b", {"a"}),
        ("remote-only", "", {HOME}),
        ("remote-only", "zone=b", {HOME, "a"}),
        ("local-only", "", {"a", "b"}),
        ("unknown", "zone=b", set()),
    ],
)
def test_offload_policy_excludes_candidates(mode: str, selector: str, excluded: set[str]) -> None:
    found = excluded_by_offload(namespace(mode, selector), NODES)
    assert found.keys() == excluded
    assert all("namespace shop is offloaded" in it for it in found.values())


def test_text_names_the_nodes() -> None:
    assert offload_text(namespace()) == ""
    assert "burst to nodes with zone=b (bridge offload)" in offload_text(
        namespace("burst", "zone=b")
    )


def test_policy_without_a_permitted_tier_is_a_contradiction() -> None:
    home: Object = {"name": "home", "home": True}
    remotes: Object = {"name": "all", "remotes": {}}
    assert contradiction(policy(home, remotes), "remote-only") == ""
    assert contradiction(policy(home, remotes), "local-only") == ""
    assert contradiction(policy(home), "burst") == ""
    assert "no tier with remotes" in contradiction(policy(home), "remote-only")
    assert "no tier with home" in contradiction(policy(remotes), "local-only")
