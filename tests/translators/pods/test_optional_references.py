"""References to objects that do not exist at home."""

from __future__ import annotations

import copy

from translators.object_accessors import Object
from translators.pods import optional_references, references
from translators.pods.references import Reference

_GONE = frozenset({Reference("Secret", "s"), Reference("ConfigMap", "c")})


def _spec() -> Object:
    maybe = {"name": "s", "optional": True}
    return {
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {**maybe, "key": "k"}}},
                    {"name": "B", "value": "plain"},
                ],
                "envFrom": [{"configMapRef": {"name": "c", "optional": True}}],
            }
        ],
        "initContainers": [{"name": "init", "envFrom": [{"secretRef": maybe}]}],
        "volumes": [
            {"name": "v", "secret": {"secretName": "s", "optional": True}},
            {
                "name": "p",
                "projected": {"sources": [{"configMap": {"name": "c", "optional": True}}]},
            },
            {"name": "other", "secret": {"secretName": "other", "optional": True}},
        ],
        "imagePullSecrets": [{"name": "s"}, {"name": "other"}],
    }


def test_all_optional_references_are_removed_and_reported() -> None:
    spec = _spec()
    before = copy.deepcopy(spec)
    changed, dropped = optional_references.remove_optional_references(spec, _GONE)
    assert spec == before
    assert references.references({"spec": changed}) == {Reference("Secret", "other")}
    assert changed["containers"][0]["env"] == [{"name": "B", "value": "plain"}]
    assert changed["volumes"][0] == {"name": "v", "emptyDir": {}}
    assert [it.field for it in dropped] == [
        "spec.initContainers[init].envFrom",
        "spec.containers[main].env",
        "spec.containers[main].envFrom",
        "spec.volumes[v]",
        "spec.volumes[p].projected.sources",
        "spec.imagePullSecrets",
    ]


def test_only_optional_references_require_nothing() -> None:
    assert (
        optional_references.required_references({"metadata": {"name": "a"}, "spec": _spec()})
        == frozenset()
    )


def test_one_required_field_makes_a_reference_required() -> None:
    spec = _spec()
    spec["volumes"].append({"name": "csi", "csi": {"nodePublishSecretRef": {"name": "s"}}})
    required = optional_references.required_references({"metadata": {"name": "a"}, "spec": spec})
    assert required == {Reference("Secret", "s")}


def test_nothing_changes_without_missing_objects() -> None:
    spec = _spec()
    assert optional_references.remove_optional_references(spec, frozenset()) == (spec, [])
