"""The Pod Security level of remote namespaces."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakeapi.patching import merge
from translators import pod_security
from translators.object_accessors import Object
from translators.ownership_labels import used_by_annotation
from translators.pod_security import (
    ANNOTATION_SET,
    LABEL_ENFORCE,
    LABEL_ENFORCE_VERSION,
    LEVELS,
    EnforcedPolicy,
    Limit,
    PodSecurityLevel,
)

NO_LIMIT = Limit("burst", "privileged")

levels = st.sampled_from(LEVELS)
versions = st.sampled_from(["", "latest", "v1.30", "v2.0", "v1.x", "1.30"])
stated_labels = st.fixed_dictionaries(
    {}, optional={LABEL_ENFORCE: levels, LABEL_ENFORCE_VERSION: versions, "app": st.just("x")}
)
limits = st.lists(
    st.builds(Limit, st.sampled_from(["burst", "pool", "spot"]), levels),
    min_size=1,
    max_size=3,
    unique_by=lambda it: it.node,
)


def _namespace(labels: Any = (), **annotations: str) -> Object:
    return {"metadata": {"name": "shop-h", "labels": dict(labels), "annotations": annotations}}


def _applied(remote: Object, change: Object) -> Object:
    applied: Object = merge(copy.deepcopy(remote), {"metadata": change})
    return applied


def _labels(level: str, version: str) -> dict[str, str]:
    return {LABEL_ENFORCE: level, LABEL_ENFORCE_VERSION: version}


def _level(remote: Object) -> str:
    return str(remote["metadata"]["labels"][LABEL_ENFORCE])


def _strictness(level: str) -> int:
    return ["privileged", "baseline", "restricted"].index(level)


@pytest.mark.parametrize(
    ("home", "limit", "expected"),
    [
        ({}, "privileged", "baseline"),
        ({}, "baseline", "baseline"),
        ({}, "restricted", "restricted"),
        ({LABEL_ENFORCE: "privileged"}, "privileged", "privileged"),
        ({LABEL_ENFORCE: "privileged"}, "baseline", "baseline"),
        ({LABEL_ENFORCE: "restricted"}, "baseline", "restricted"),
        ({LABEL_ENFORCE: "nonsense"}, "privileged", "restricted"),
        (_labels("baseline", "v1.30"), "privileged", "baseline:v1.30"),
        (_labels("baseline", "v1.30"), "baseline", "baseline"),
        (_labels("baseline", "x"), "privileged", "baseline"),
        ({LABEL_ENFORCE_VERSION: "v1.30"}, "privileged", "baseline"),
    ],
)
def test_level_is_that_of_home_up_to_the_limit(
    home: dict[str, str], limit: PodSecurityLevel, expected: str
) -> None:
    assert str(pod_security.desired_policy({}, home, Limit("burst", limit))) == expected


@given(stated_labels, stated_labels, limits)
def test_nodes_agree_on_a_level_that_none_exceeds_and_never_write_twice(
    there: dict[str, str], home: dict[str, str], several: list[Limit]
) -> None:
    """Whatever labels the namespace has, and in whatever order the nodes use it."""
    remote = _namespace(there)
    for own in (*several, *several):
        remote = _applied(remote, pod_security.registration(remote, home, own))
    for own in several:
        assert pod_security.registration(remote, home, own) == {}
    stated = home.get(LABEL_ENFORCE, "baseline")
    strictest = max([stated, *(it.level for it in several)], key=_strictness)
    found = _level(remote)
    assert _strictness(found) >= _strictness(strictest)
    if LABEL_ENFORCE not in there:
        assert found == strictest


@given(stated_labels, stated_labels)
def test_level_follows_home_in_both_directions(before: dict[str, str], now: dict[str, str]) -> None:
    created = _applied(_namespace(), pod_security.registration({}, before, NO_LIMIT))
    changed = _applied(created, pod_security.registration(created, now, NO_LIMIT))
    fresh = _applied(_namespace(), pod_security.registration({}, now, NO_LIMIT))
    assert changed["metadata"]["labels"] == fresh["metadata"]["labels"]


def test_stricter_level_of_the_remote_stays_and_a_looser_one_is_replaced() -> None:
    remote = _applied(_namespace(), pod_security.registration({}, {}, NO_LIMIT))
    stricter = _applied(remote, {"labels": {LABEL_ENFORCE: "restricted"}})
    assert pod_security.registration(stricter, {}, NO_LIMIT) == {}
    for label in ("privileged", None):
        looser = _applied(remote, {"labels": {LABEL_ENFORCE: label}})
        change = pod_security.registration(looser, {}, NO_LIMIT)
        assert change["labels"] == {LABEL_ENFORCE: "baseline"}


def test_limit_of_another_node_ends_with_its_use() -> None:
    other = used_by_annotation("pool")
    remote = _namespace(**{other: "restricted"})
    assert pod_security.desired_policy(remote, {}, NO_LIMIT) == EnforcedPolicy("restricted")
    for value in ("true", "nonsense"):
        remote = _namespace(**{other: value})
        assert pod_security.desired_policy(remote, {}, NO_LIMIT) == EnforcedPolicy("baseline")


def test_unchanged_namespace_of_an_earlier_version_gets_only_the_label() -> None:
    """Its annotation as a user counts as no limit."""
    remote = _namespace(**{used_by_annotation("burst"): "true"})
    assert pod_security.registration(remote, {}, NO_LIMIT) == {
        "labels": {LABEL_ENFORCE: "baseline"},
        "annotations": {ANNOTATION_SET: "baseline"},
    }


@pytest.mark.parametrize(
    ("home", "limit", "there", "expected"),
    [
        ({}, "privileged", "baseline", ["states no level", "kubectl label namespace shop"]),
        ({LABEL_ENFORCE: "restricted"}, "privileged", "restricted", ["home's namespace shop has"]),
        ({LABEL_ENFORCE: "privileged"}, "baseline", "baseline", ["burst was joined with --pod-"]),
        ({}, "baseline", "baseline", ["kubectl label namespace shop", "--pod-security baseline"]),
        (None, "privileged", "baseline", ["may not get namespace shop", "bridge rbac home"]),
        ({}, "privileged", "restricted", ["enforces restricted", "was set in the remote"]),
    ],
)
def test_rejection_names_the_level_and_what_decides(
    home: dict[str, str] | None, limit: PodSecurityLevel, there: str, expected: list[str]
) -> None:
    remote = _namespace({LABEL_ENFORCE: there})
    text = pod_security.explain_level(remote, "shop", home, Limit("burst", limit))
    assert there in text
    assert [it for it in expected if it not in text] == []


def test_explanation_of_a_level_that_the_bridge_has_not_updated_yet() -> None:
    remote = _applied(_namespace(), pod_security.registration({}, {}, NO_LIMIT))
    text = pod_security.explain_level(remote, "shop", {LABEL_ENFORCE: "privileged"}, NO_LIMIT)
    assert "enforces baseline" in text
    assert "the bridge sets privileged" in text


def test_only_a_violation_of_pod_security_is_one() -> None:
    message = 'pods "a" is forbidden: violates PodSecurity "baseline:latest": privileged'
    assert pod_security.is_violation(message)
    assert not pod_security.is_violation('pods "a" is forbidden: exceeded quota: small')
