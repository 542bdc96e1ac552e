"""The policy at home decides every write that RBAC grants. `e2e.test_home_policy` evaluates it."""

from __future__ import annotations

import json
from typing import Any

from bridge.rbac import home_policy, rbac_manifests
from bridge.rbac.admission_policy import written_by
from bridge.rbac.permissions import Permission
from bridge.rbac.rbac_manifests import Account, HomePermissions
from sync.kube.api_resources import LEASES, PODS

ALL = HomePermissions(["one", "two"], serving="csr", leave=True, storage="provision")
OURS = Account("team", "burst")


def policies(options: HomePermissions = ALL) -> dict[str, dict[str, Any]]:
    """Name → spec of the policies among home's objects."""
    objects = rbac_manifests.home_objects(options, OURS)
    kind = "ValidatingAdmissionPolicy"
    return {it["metadata"]["name"]: it["spec"] for it in objects if it["kind"] == kind}


def matched(spec: dict[str, Any]) -> set[tuple[str, str]]:
    """The resources and operations of a policy."""
    return {
        (resource, operation)
        for rule in spec["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }


def variables(spec: dict[str, Any]) -> dict[str, str]:
    return {it["name"]: it["expression"] for it in spec["variables"]}


def test_every_write_is_decided_by_a_rule() -> None:
    written = written_by((*ALL.cluster_level, *ALL.per_namespace))
    of_policies = set().union(*map(matched, policies().values()))
    assert {(it.place, of) for it in written for of in it.operations} - of_policies == {
        ("tokenreviews", "CREATE"),
        ("subjectaccessreviews", "CREATE"),
    }
    decided = {place for where in home_policy.RULES for place in where}
    assert {place for place, _ in matched(policies()["team.burst.home"])} == decided
    assert len(policies()["team.burst.home"]["validations"]) == len(home_policy.RULES)


def test_requests_of_others_are_not_evaluated() -> None:
    for spec in policies().values():
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == (
            "request.userInfo.username == 'system:serviceaccount:team:burst'"
        )
        assert spec["failurePolicy"] == "Fail"


def test_names_of_leases_are_those_of_the_permissions() -> None:
    granted = (
        Permission(LEASES, ("create",), namespace="kube-node-lease"),
        Permission(LEASES, ("patch",), namespace="kube-node-lease", names=("one",)),
        Permission(LEASES, ("create",), namespace="team"),
        Permission(LEASES, ("get", "patch"), namespace="team", names=("election-one",)),
        Permission(PODS, ("delete",), names=("other",)),
    )
    policy, _ = home_policy.home_policy({"name": "p"}, "team/burst", "u", ["one"], granted)
    leases = json.loads(variables(policy["spec"])["leases"])
    assert leases == ["kube-node-lease/one", "team/election-one"]


def test_every_node_is_named() -> None:
    found = variables(policies()["team.burst.home"])
    assert json.loads(found["nodes"]) == ["one", "two"]
    assert {"kube-node-lease/one", "cluster-bridge/election-two"} <= set(
        json.loads(found["leases"])
    )
    signers = ("kubelet-serving", "kube-apiserver-client-kubelet")
    prefixes = ("kubelet-serving", "kubelet-client")
    assert json.loads(found["requests"]) == [
        f"kubernetes.io/{signer} {prefix}-{node}-"
        for node in ("one", "two")
        for signer, prefix in zip(signers, prefixes, strict=True)
    ]


def test_node_label_is_truncated_like_that_of_objects() -> None:
    name = "n" * 70
    (label,) = json.loads(variables(policies(HomePermissions([name]))["team.burst.home"])["labels"])
    assert len(label) <= 63
    assert label != name


def test_pods_are_compared_only_for_evictions() -> None:
    """Each request of that kind, of any user, costs time for every pod of its namespace."""
    eviction = policies()["team.burst.home-eviction"]
    assert matched(eviction) == {("pods/eviction", "CREATE")}
    assert eviction["paramKind"] == {"apiVersion": "v1", "kind": "Pod"}
    assert "paramKind" not in policies()["team.burst.home"]
    assert set(policies(HomePermissions(["one"]))) == {"team.burst.home"}


def test_messages_name_the_account_and_the_remedy() -> None:
    for spec in policies().values():
        for it in spec["validations"]:
            assert it["message"].startswith("ServiceAccount team/burst may ")
            assert "`bridge rbac home --name NODE --account team/burst`" in it["message"]
            assert it["reason"] == "Forbidden"
