"""Labels, annotations and taints that the API server would take, and those that it would not."""

from __future__ import annotations

import pytest

from bridge.node.options import parse_annotations, parse_labels, parse_taints
from bridge.settings import DEFAULT_TAINTS, SettingsError
from translators.types import Object

_DEFAULT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("text", "taints"),
    [
        (DEFAULT_TAINTS, (_DEFAULT,)),
        ("burst:NoExecute", ({"key": "burst", "effect": "NoExecute"},)),
        ("burst=:PreferNoSchedule", ({"key": "burst", "effect": "PreferNoSchedule"},)),
        (
            "a=1:NoSchedule,a=1:NoExecute",
            (
                {"key": "a", "value": "1", "effect": "NoSchedule"},
                {"key": "a", "value": "1", "effect": "NoExecute"},
            ),
        ),
        ("none", ()),
    ],
    ids=["the default", "without a value", "with an empty value", "two", "none at all"],
)
def test_taints(text: str, taints: tuple[Object, ...]) -> None:
    assert parse_taints(text) == taints


@pytest.mark.parametrize(
    "text",
    [
        *("", "burst", "burst=yes", "burst:Never", "=yes:NoSchedule", "a b:NoSchedule", "a:"),
        *("a:NoSchedule,", "none,a:NoSchedule", "a=b c:NoSchedule", "-a:NoSchedule"),
        *("a=1:NoSchedule,a=2:NoSchedule", "Upper.case/a:NoSchedule", "/a:NoSchedule"),
        "node.kubernetes.io/not-ready:NoSchedule",
        "cluster-bridge.io/unschedulable:PreferNoSchedule",
        f"{'a' * 64}:NoSchedule",
    ],
)
def test_taints_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--taints "):
        parse_taints(text)


def test_labels() -> None:
    text = "team=orders,empty=,topology.kubernetes.io/zone=Zone_1.a,kubernetes.io/arch=amd64"
    assert parse_labels(text) == {
        "team": "orders",
        "empty": "",
        "topology.kubernetes.io/zone": "Zone_1.a",
        "kubernetes.io/arch": "amd64",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *[(text, "KEY=VALUE") for text in ("", "team", "=x", "a=1,", "a=1,b")],
        *[(text, "a key is") for text in ("a b=1", "a/b/c=1", "A.b/c=1", "a_=1", f"{'a' * 64}=1")],
        *[(text, "a value has") for text in ("a=b c", "a=-", f"a={'b' * 64}", "a=b=c")],
        ("a=1,a=2", "twice"),
        *[(f"{key}=x", "itself") for key in ("kubernetes.io/hostname", "type")],
        *[(f"{key}=x", "itself") for key in ("cluster-bridge.io/x", "a.cluster-bridge.io/x")],
    ],
)
def test_labels_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"^--labels .*{why}"):
        parse_labels(text)


def test_annotations() -> None:
    found = parse_annotations("example.com/Note=a b = c: {d},Team=")
    assert found == {"example.com/Note": "a b = c: {d}", "Team": ""}


@pytest.mark.parametrize("text", ["", "note", "a b=1", "cluster-bridge.io/context=x", "a=1,a=1"])
def test_annotations_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--annotations "):
        parse_annotations(text)
