"""The scheduling gate of pods that must not run twice."""

from __future__ import annotations

import pytest

from tests import objects
from tests.fakeapi.patching import strategic
from translators.object_accessors import Object
from translators.pods import pod_status, remote_pod, restart_policy_never
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

_NOW = "2025-11-03T10:00:00Z"
_POLICY = Policy(Identity(home_id="0123456789abcdef", home_name="berlin", node="burst"), "10.0.0.5")
_OURS, _THEIRS = {"name": "cluster-bridge.io/once"}, {"name": "kueue.x-k8s.io/admission"}


def _made(policy: str) -> Object:
    home = objects.pod("a")
    home["metadata"]["uid"] = "home-1"
    home["spec"]["restartPolicy"] = policy
    return remote_pod.translate_pod(home, _POLICY).pod


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_gate_is_added_if_the_pod_must_not_run_twice(policy: str) -> None:
    made = _made(policy)
    assert (
        restart_policy_never.is_gated(made)
        == (policy == "Never")
        == restart_policy_never.runs_once(made)
    )
    assert made["spec"].get("schedulingGates") == ([_OURS] if policy == "Never" else None)


@pytest.mark.parametrize(
    ("pod_policy", "policies", "expected"),
    [
        ("Always", {"containers": [None, "Never"]}, "Never"),
        ("OnFailure", {"containers": ["Never"]}, "Never"),
        ("Always", {"containers": ["OnFailure"]}, "Always"),
        ("Never", {"containers": ["Always"]}, "Never"),
        ("Always", {"containers": [None], "initContainers": ["Never"]}, "Always"),
        (None, {"containers": [None]}, "Always"),
    ],
)
def test_container_that_runs_once_has_its_pod_run_once(
    pod_policy: str | None, policies: dict[str, list[str | None]], expected: str
) -> None:
    spec: Object = {
        field_name: [{"name": f"c{n}", "restartPolicy": it} for n, it in enumerate(each)]
        for field_name, each in policies.items()
    }
    if pod_policy is not None:
        spec["restartPolicy"] = pod_policy
    assert restart_policy_never.restart_policy(spec) == expected
    restart_policy_never.add_gate(spec)
    assert restart_policy_never.is_gated({"spec": spec}) == (expected == "Never")


def test_ungate_patch_keeps_other_gates() -> None:
    made = _made("Never")
    made["spec"]["schedulingGates"].append(_THEIRS)
    let_go = strategic(made, restart_policy_never.ungate_patch())
    assert not restart_policy_never.is_gated(let_go)
    assert let_go["spec"]["schedulingGates"] == [_THEIRS]


def test_start_time_is_the_mark() -> None:
    home = objects.pod("a")
    assert not restart_policy_never.may_have_started(home)
    assert restart_policy_never.may_have_started(
        {**home, "status": restart_policy_never.started_status(now=_NOW)}
    )


@pytest.mark.parametrize(
    ("gates", "reported"),
    [([_OURS], False), ([], False), ([_OURS, _THEIRS], True), ([_THEIRS], True)],
)
def test_only_other_gates_are_reported_at_home(gates: list[Object], reported: bool) -> None:
    """The scheduler updates the condition shortly after the last gate is removed."""
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    remote = {"spec": {"schedulingGates": gates}, "status": {"conditions": [gated]}}
    status = pod_status.translate_status(objects.pod("a"), remote, _POLICY, now=_NOW)
    kinds = {condition["type"] for condition in status["conditions"]}
    assert (pod_status.CONDITION_REMOTE_SCHEDULED in kinds) == reported
