"""Validation of the node's options, as by the API server."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bridge.base.join_settings import DEFAULT_TAINTS, SettingsError
from bridge.node.node_option_parsing import (
    parse_annotations,
    parse_labels,
    parse_limits,
    parse_selector,
    parse_taints,
)
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits
from translators.object_accessors import Object

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
def test_taints_are_parsed(text: str, taints: tuple[Object, ...]) -> None:
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
def test_invalid_taints_are_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--taints: "):
        parse_taints(text)


def test_labels_are_parsed() -> None:
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
        *[
            (text, "is not a key")
            for text in ("a b=1", "a/b/c=1", "A.b/c=1", "a_=1", f"{'a' * 64}=1")
        ],
        *[(text, "is not a value") for text in ("a=b c", "a=-", f"a={'b' * 64}", "a=b=c")],
        ("a=1,a=2", "twice"),
        *[(f"{key}=x", "itself") for key in ("kubernetes.io/hostname", "type")],
        *[(f"{key}=x", "itself") for key in ("cluster-bridge.io/x", "a.cluster-bridge.io/x")],
    ],
)
def test_invalid_labels_are_rejected(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"^--labels: .*{why}"):
        parse_labels(text)


def test_annotations_are_parsed() -> None:
    found = parse_annotations("example.com/Note=a b = c: {d},Team=")
    assert found == {"example.com/Note": "a b = c: {d}", "Team": ""}


@pytest.mark.parametrize("text", ["", "note", "a b=1", "cluster-bridge.io/context=x", "a=1,a=1"])
def test_invalid_annotations_are_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--annotations: "):
        parse_annotations(text)


def _limits(
    reserve: str | None = None,
    share: str = "1",
    caps: str | None = None,
    elastic: str | None = None,
) -> OfferLimits:
    return parse_limits(reserve=reserve, share=share, caps=caps, elastic=elastic)


def test_limits_are_parsed() -> None:
    assert _limits() == NO_LIMITS
    assert _limits(
        reserve="cpu=1500m, example.com/gpu=1", share="1/3", caps="cpu=2,memory=1Gi,pods=0"
    ) == OfferLimits(
        {"cpu": 1500, "example.com/gpu": 1},
        Fraction(1, 3),
        {"cpu": 2000, "memory": 2**30, "pods": 0},
    )


def test_elastic_amounts_are_parsed() -> None:
    found = _limits(elastic="cpu=64,memory=256Gi,nvidia.com/gpu=8")
    assert found.elastic == {"cpu": 64_000, "memory": 256 * 2**30, "nvidia.com/gpu": 8}
    assert found.elastic_total == {"pods": 110, **found.elastic}
    assert _limits().elastic_total == {}


@pytest.mark.parametrize(
    ("elastic", "message"),
    [
        ("cpu", "--elastic"),
        ("cpu=0", "--elastic: cpu is 0"),
        ("cpu=-1", "--elastic: cpu"),
        ("cpu=x", "--elastic: cpu"),
    ],
)
def test_invalid_elastic_amounts_are_rejected(elastic: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _limits(elastic=elastic)


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu=1,cpu=2", "=1", "cpu=1,", "cpu=", "cpu=-1", "cpu=1K"]
)
def test_invalid_reserve_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="--reserve"):
        _limits(reserve=text)


@pytest.mark.parametrize("text", ["", "0", "-0.5", "1.1", "90%", "nan", "1/0"])
def test_invalid_share_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--share: .*such as 0\.9"):
        _limits(share=text)


def test_some_limits_are_enough() -> None:
    assert _limits(caps="pods=110").caps == {"pods": 110}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu=two", "--limits: cpu: 'two' is not a quantity"),
        ("memory=64GB", "--limits: memory: '64GB' is not a quantity"),
        ("pods=-1", '--limits: pods: "-1" is negative; use 0 or more'),
        ("cpu=1,pods=2,cpu=3", "--limits: cpu is given twice"),
        ("mem=1Gi", '--limits: "mem" is not a limited resource; use cpu, memory or pods'),
        ("16", '--limits: "16" is not KEY=VALUE; use .*such as cpu=16,memory=64Gi,pods=110'),
        ("", '--limits: "" is not KEY=VALUE'),
    ],
)
def test_invalid_limit_is_rejected(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{message}"):
        _limits(caps=text)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("pool=burst", {"pool": "burst"}),
        ("example.com/pool=a_1,zone=", {"example.com/pool": "a_1", "zone": ""}),
    ],
)
def test_node_selector_is_parsed(text: str, labels: dict[str, str]) -> None:
    assert parse_selector(text) == labels


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pool",
        "pool==a",
        "pool!=a",
        "a b=c",
        "Ex.com/a=b",
        "/a=b",
        "-a=b",
        "a=-b",
        f"a={'b' * 64}",
    ],
)
def test_invalid_node_selector_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="--node-selector"):
        parse_selector(text)
