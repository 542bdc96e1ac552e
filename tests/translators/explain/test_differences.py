"""Every difference between a home pod and its remote pod has a rule."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.translators.golden import HOME_API, POLICY, Case, cases
from translators.explain.differences import Difference, find_differences
from translators.object_accessors import Object
from translators.pods import remote_pod
from translators.translation_options import Policy

_PODS = [case for case in cases() if case.content["translate"] == "pod"]
_POLICIES = [
    replace(POLICY, service_accounts=mode, home_api=HOME_API, node_selector=selector)
    for mode in ("home", "remote", "none")
    for selector in ({}, {"pool": "burst", "kubernetes.io/arch": "arm64"})
]


def _found(home: Object, policy: Policy = POLICY) -> list[Difference]:
    made = remote_pod.translate_pod(home, policy)
    return list(find_differences(home, made.pod, made.dropped))


@pytest.mark.parametrize("case", _PODS, ids=[case.path.stem for case in _PODS])
@pytest.mark.parametrize("policy", _POLICIES, ids=lambda it: f"{it.service_accounts}")
def test_every_difference_of_the_golden_files_has_a_rule_and_reason(
    case: Case, policy: Policy
) -> None:
    found = _found(case.content["home"], policy)
    assert found
    assert [it.location for it in found if not it.rule or not it.reason] == []


@pytest.mark.parametrize("case", _PODS, ids=[case.path.stem for case in _PODS])
def test_differences_are_complete(case: Case) -> None:
    """Reported additions and removals are applied; a pod does not differ from itself."""
    home = case.content["home"]
    assert list(find_differences(home, copy.deepcopy(home))) == []
    for it in _found(home):
        assert it.before != it.after
        assert (it.before is None) == (it.change == "added")
        assert (it.after is None) == (it.change == "removed")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.containers.0.image", "other:1"),
        ("spec.containers.0.args", ["--more"]),
        ("spec.restartPolicy", "OnFailure"),
        ("spec.hostname", "other"),
        ("spec.terminationGracePeriodSeconds", 1),
        ("spec.new", {"a": 1}),
        ("spec.containers.0.env", [{"name": "A", "value": "b"}]),
        ("metadata.labels", {"people": "s"}),
        ("metadata.name", "other"),
        ("spec.readinessGates", [{"conditionType": "a/b"}]),
        ("spec.tolerations", [{"operator": "Exists"}]),
    ],
)
def test_unexplained_difference_has_no_rule(place: str, value: Any) -> None:
    """An unintended change of the translation is reported."""
    home: Object = {
        "metadata": {"name": "a", "namespace": "shop", "uid": "1"},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
    }
    remote = copy.deepcopy(remote_pod.translate_pod(home, POLICY).pod)
    *way, last = place.split(".")
    at: Any = remote
    for step in way:
        at = at[int(step) if step.isdigit() else step]
    at[last] = {**at[last], **value} if last == "labels" else value
    wrong = [it.path for it in find_differences(home, remote) if not it.rule]
    assert wrong
    assert all(it.startswith(place.replace(".0", "[]")) for it in wrong)


def test_dropped_field_has_the_message_of_the_translation() -> None:
    home = next(case for case in _PODS if case.path.stem == "pod-deployment").content["home"]
    lost = [it for it in _found(home) if it.unsupported]
    assert [it.location for it in lost] == ["spec.priorityClassName"]
    assert "is not a PriorityClass of the remote cluster" in lost[0].reason


def test_items_without_names_are_aligned() -> None:
    def terms(*zones: str) -> Object:
        return {"spec": {"tolerations": [{"key": zone} for zone in zones]}}

    found = list(find_differences(terms("a", "b", "c"), terms("a", "c")))
    assert [(it.location, it.change, it.before) for it in found] == [
        ("spec.tolerations[1]", "removed", {"key": "b"})
    ]
