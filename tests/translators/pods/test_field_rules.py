"""Every field of a pod has a rule, and the translation applies it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import models

from tests.translators.golden import POLICY
from translators.field_paths import FieldPaths, find_fields, remove_fields
from translators.object_accessors import Object
from translators.pods import remote_pod
from translators.pods.field_rules import TABLE, rule_for

_WRAPPED = re.compile(r"^(?P<list>List\[)?(?:Dict\[str, )?(?P<inner>\w+)\]?$")


def _leaves(model: str, path: str = "") -> Iterator[str]:
    """The paths of all fields of the client's model that are not objects."""
    kind = getattr(models, model)
    for attribute, declared in kind.openapi_types.items():
        match = _WRAPPED.match(declared)
        assert match, declared
        at = f"{path}.{kind.attribute_map[attribute]}".removeprefix(".")
        if hasattr(models, match["inner"]):
            yield from _leaves(match["inner"], f"{at}[]" if match["list"] else at)
        else:
            yield at


_FIELDS = tuple(_leaves("V1Pod"))


def test_every_field_of_the_api_has_a_rule() -> None:
    undecided = [path for path in _FIELDS if rule_for(path) is None]

    assert undecided == [], "add them to translators.pods.field_rules"


def test_every_rule_is_for_a_field_of_the_api() -> None:
    newer = {"spec.workloadRef.**"}  # of 1.35 alone
    fields = [path.replace("ephemeralContainers", "containers") for path in _FIELDS]
    unused = {
        path
        for path in TABLE
        if not any(field.startswith(path.removesuffix(".**")) for field in fields)
    }

    assert unused <= newer


def test_unknown_field_has_no_rule() -> None:
    for path in ("spec.new", "spec.containers[].new", "spec.volumes[].new.path", "new", ""):
        assert rule_for(path) is None


def test_all_container_and_affinity_kinds_share_rules() -> None:
    image, term = (
        TABLE["spec.containers[].image"],
        "requiredDuringSchedulingIgnoredDuringExecution[]",
    )
    assert rule_for("spec.initContainers[].image") is image
    assert rule_for("spec.ephemeralContainers[].image") is image
    assert (
        rule_for("spec.initContainers[].securityContext.capabilities.add")
        is (TABLE["spec.containers[].securityContext.**"])
    )
    assert (
        rule_for(f"spec.affinity.podAntiAffinity.{term}.namespaces")
        is (TABLE[f"spec.affinity.podAffinity.{term}.namespaces"])
    )


def _with(path: str) -> Object:
    """A pod with only this field, with a name for each list item."""
    value: Any = "value"
    for step in reversed(path.split(".")):
        key = step.removesuffix("[]")
        if key == step:
            value = {key: value}
        else:
            item = value if isinstance(value, dict) else {}
            value = {key: [{"name": "item", **item}]}
    spec = {"containers": [{"name": "item"}], **value.get("spec", {})}
    meta = {"name": "web", "namespace": "shop", "uid": "home-1"}
    return {**value, "metadata": {**value.get("metadata", {}), **meta}, "spec": spec}


@pytest.mark.parametrize("decision", ["kept", "dropped", "rejected"])
def test_translation_applies_the_table(decision: str) -> None:
    for path in _FIELDS:
        rule = rule_for(path)
        assert rule
        if rule.decision != decision or not path.startswith("spec."):
            continue
        home = _with(path)
        before = _found(home, path)
        assert before
        message = remote_pod.rejection_message(home)
        assert (rule.reason in message) == (decision == "rejected"), path
        translated = remote_pod.translate_pod(home, POLICY)
        if "ephemeralContainers" in path:
            translated.pod["spec"]["ephemeralContainers"] = (
                remote_pod.translate_ephemeral_containers(home, POLICY)
            )
        if decision == "kept":
            assert _found(translated.pod, path) == before, path
        if decision == "dropped":
            assert _found(translated.pod, path) == [], path
            assert [item.message for item in translated.dropped] == (
                [] if rule.silent else [rule.reason]
            )


def test_rejection_names_each_field_and_the_next_step() -> None:
    claims = {"resources": {"claims": [{"name": "gpu"}]}}
    home: Object = {
        "spec": {
            "hostNetwork": True,
            "hostIPC": False,
            "resourceClaims": [{"name": "gpu"}],
            "containers": [{"name": "main", **claims}],
            "initContainers": [{"name": "first", **claims}],
        }
    }
    message = remote_pod.rejection_message(home)

    assert [part.partition(":")[0] for part in message.split("; ")] == [
        "spec.resourceClaims",
        "spec.hostNetwork",
        "spec.containers[main].resources.claims",
        "spec.initContainers[first].resources.claims",
    ]
    assert "spec.hostNetwork: the nodes of the remote are not nodes of home: remove it" in message


def test_fields_that_home_set_are_dropped_silently() -> None:
    spec = {
        "containers": [{"name": "main"}],
        "nodeName": "burst",
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "overhead": {"cpu": "1"},
        "serviceAccountName": "default",
    }
    translated = remote_pod.translate_pod(_with("") | {"spec": spec}, POLICY)

    assert translated.dropped == []
    assert translated.pod["spec"].keys() == {"containers", "automountServiceAccountToken"}


def test_fields_that_the_owner_set_are_reported() -> None:
    sources = [{"podCertificate": {"keyType": "ED25519"}}, {"secret": {"name": "kept"}}]
    spec = {
        "containers": [{"name": "main"}],
        "schedulerName": "mine",
        "priorityClassName": "urgent",
        "volumes": [{"name": "certs", "projected": {"sources": sources}}],
    }
    translated = remote_pod.translate_pod(_with("") | {"spec": spec}, POLICY)

    assert [item.field for item in translated.dropped] == [
        "spec.schedulerName",
        "spec.volumes[certs].projected.sources[0].podCertificate",
        "spec.priorityClassName",
    ]
    assert translated.pod["spec"]["volumes"] == [
        {"name": "certs", "projected": {"sources": [{"secret": {"name": "kept"}}]}}
    ]


def _found(value: Object, path: str) -> list[tuple[str, Any]]:
    return [(it.location, it.value) for it in find_fields(value, FieldPaths(path))]


def test_path_does_not_match_an_object_of_another_shape() -> None:
    shapes: list[Object] = [{}, {"a": None}, {"a": []}, {"a": [{}]}, {"a": ["b"]}]
    assert [_found(shape, "a[].b") for shape in shapes] == [[]] * len(shapes)
    assert _found({"a": "b"}, "a.b") == []
    assert remove_fields({"a": None}, FieldPaths("a[].b")) == {"a": None}
    assert remove_fields({"a": {"c": 1}}, FieldPaths("b.c")) == {"a": {"c": 1}}
