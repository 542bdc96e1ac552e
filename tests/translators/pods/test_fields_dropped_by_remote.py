"""Detection of fields that the remote's API server did not keep."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakeapi import defaults
from translators.object_accessors import Object
from translators.pods import fields_dropped_by_remote

_HARDENED: Object = {
    "hostUsers": False,
    "runtimeClassName": "gvisor",
    "securityContext": {"runAsNonRoot": True, "supplementalGroupsPolicy": "Strict"},
    "volumes": [
        {"name": "model", "image": {"reference": "models/llm:1"}},
        {"name": "tmp", "emptyDir": {}},
    ],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "minDomains": 2}],
    "containers": [
        {
            "name": "main",
            "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "Restart"}],
            "securityContext": {"allowPrivilegeEscalation": False, "procMount": "Unmasked"},
            "volumeMounts": [
                {"name": "model", "mountPath": "/m", "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
            "lifecycle": {"stopSignal": "SIGUSR1"},
            "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
        }
    ],
}


def _pruned(change: Callable[[Object], Any]) -> dict[str, bool]:
    """The pruned fields of the hardened pod, and whether each restricts the pod."""
    made = copy.deepcopy({"spec": _HARDENED})
    change(made["spec"])
    return {
        it.location: it.restricts
        for it in fields_dropped_by_remote.pruned_fields({"spec": _HARDENED}, made)
    }


def _main(spec: Object) -> Object:
    container: Object = spec["containers"][0]
    return container


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (lambda spec: spec.pop("hostUsers"), "spec.hostUsers"),
        (lambda spec: spec.pop("runtimeClassName"), "spec.runtimeClassName"),
        (lambda spec: spec.pop("securityContext"), "spec.securityContext"),
        (
            lambda spec: spec["securityContext"].pop("supplementalGroupsPolicy"),
            "spec.securityContext.supplementalGroupsPolicy",
        ),
        (lambda spec: spec["volumes"][0].pop("image"), "spec.volumes[model].image"),
        (
            lambda spec: _main(spec).pop("restartPolicyRules"),
            "spec.containers[main].restartPolicyRules",
        ),
        (lambda spec: _main(spec).pop("restartPolicy"), "spec.containers[main].restartPolicy"),
        (
            lambda spec: _main(spec)["securityContext"].pop("procMount"),
            "spec.containers[main].securityContext.procMount",
        ),
        (
            lambda spec: _main(spec)["securityContext"].pop("allowPrivilegeEscalation"),
            "spec.containers[main].securityContext.allowPrivilegeEscalation",
        ),
        (
            lambda spec: _main(spec)["volumeMounts"][0].pop("readOnly"),
            "spec.containers[main].volumeMounts[/m].readOnly",
        ),
    ],
)
def test_pruned_restricting_field_is_reported(change: Callable[[Object], Any], at: str) -> None:
    assert _pruned(change) == {at: True}


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (
            lambda spec: _main(spec)["lifecycle"].pop("stopSignal"),
            "spec.containers[main].lifecycle.stopSignal",
        ),
        (lambda spec: _main(spec)["env"].pop(0), "spec.containers[main].env[A]"),
        (
            lambda spec: spec["topologySpreadConstraints"][0].pop("minDomains"),
            "spec.topologySpreadConstraints[0].minDomains",
        ),
    ],
)
def test_other_pruned_field_does_not_restrict(change: Callable[[Object], Any], at: str) -> None:
    assert _pruned(change) == {at: False}


def _admitted(spec: Object) -> None:
    """The pod with additions and changes of admission."""
    spec["tolerations"] = [{"key": "b"}]
    spec["containers"].insert(0, {"name": "mesh", "image": "mesh:1"})
    spec["volumes"].append({"name": "mesh", "emptyDir": {}})
    main = spec["containers"][1]
    main["image"] = "mirror/busybox:1"
    main["securityContext"]["runAsUser"] = 7
    main["env"][0]["value"] = "changed"
    del main["env"][1]["value"]


def test_changes_of_admission_are_not_pruned_fields() -> None:
    assert _pruned(_admitted) == {}


def test_defaults_are_not_pruned_fields() -> None:
    sent: Object = {"kind": "Pod", "spec": copy.deepcopy(_HARDENED)}
    made = copy.deepcopy(sent)
    made["metadata"] = {"name": "a"}
    defaults.fill(made)
    defaults.admit(made)

    assert fields_dropped_by_remote.pruned_fields(sent, made) == []


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ({}, False),
        ({"hostUsers": True}, False),
        ({"hostUsers": False}, True),
        ({"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "x"}}}, False),
        ({"securityContext": {"supplementalGroupsPolicy": "Merge"}}, False),
        ({"securityContext": {"supplementalGroupsPolicy": "Strict"}}, True),
        ({"volumes": [{"name": "a", "image": {"reference": "x"}}]}, True),
        ({"containers": [{"name": "a", "restartPolicy": "Never"}]}, True),
        ({"initContainers": [{"name": "a", "restartPolicy": "Always"}]}, False),
        ({"containers": [{"name": "a", "restartPolicyRules": [{}]}]}, True),
        ({"containers": [{"name": "a", "securityContext": {"procMount": "Default"}}]}, False),
        ({"containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}, True),
        ({"containers": [{"name": "a", "volumeMounts": [{"recursiveReadOnly": "Enabled"}]}]}, True),
    ],
)
def test_dry_run_is_needed_if_a_server_may_prune_a_restriction(spec: Object, needed: bool) -> None:
    assert fields_dropped_by_remote.needs_dry_run({"spec": spec}) == needed
