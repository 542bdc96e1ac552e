"""The policies for the remote cover what the bridge writes. `e2e.test_remote_policy` evaluates
them."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.rbac import rbac_manifests, remote_policy
from bridge.rbac.admission_policy import CONNECTED, written_by
from bridge.rbac.rbac_manifests import Account, RemotePermissions
from tests.bridge.rbac.test_home_policy import matched
from tests.translators.golden import cases
from translators.ownership_labels import ANNOTATION_ACCEPTS, is_bridge_key

ALL = RemotePermissions(metrics="auto")
OURS = Account("team", "burst")


def policies(options: RemotePermissions = ALL) -> dict[str, dict[str, Any]]:
    """Name → spec of the policies for the remote."""
    objects = rbac_manifests.remote_objects(options, OURS, policy=True)
    kind = "ValidatingAdmissionPolicy"
    return {it["metadata"]["name"]: it["spec"] for it in objects if it["kind"] == kind}


def reservation() -> dict[str, Any]:
    return policies()[remote_policy.RESERVATION]


def test_policies_are_printed_on_request_only() -> None:
    kinds = {it["kind"] for it in rbac_manifests.remote_objects(ALL, OURS)}
    assert not {it for it in kinds if it.startswith("Validating")}
    assert set(policies()) == {"reserved-metadata.cluster-bridge.io", "team.burst.remote"}


def test_account_is_confined_in_every_write_and_connection() -> None:
    written = {(it.place, of) for it in written_by(ALL.cluster_level) for of in it.operations}
    assert matched(policies()["team.burst.remote"]) == written
    assert ("nodes/proxy", "CONNECT") in written
    assert ("nodes/proxy", "CONNECT") not in matched(
        policies(RemotePermissions(metrics="api"))["team.burst.remote"]
    )


def test_metadata_of_every_written_resource_is_reserved() -> None:
    written = {it.place for it in written_by(ALL.cluster_level)}
    with_metadata = {it for it in written if it.rpartition("/")[2] not in CONNECTED}
    reserved = {place for place, _ in matched(reservation())}
    assert with_metadata <= reserved
    assert {operation for _, operation in matched(reservation())} == {"CREATE", "UPDATE"}


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = set().union(*map(_keys, value.values()))
        return inner | {key for key in value if is_bridge_key(str(key))}
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


def test_no_key_that_users_set_is_on_objects_of_the_bridge() -> None:
    """They are exempt from the reservation: home's users set them, where the remote is a home."""
    keys = set().union(*(_keys(case.results()) for case in cases()))
    assert keys, "the results of the translators are found"
    assert not keys & set(remote_policy.OPEN_KEYS)


def test_handover_has_a_permission_that_no_bridge_has() -> None:
    handover, ownership = remote_policy.HANDOVER, "ownership"
    rules = [it["expression"] for it in reservation()["validations"]]
    assert [rule for rule in rules if ANNOTATION_ACCEPTS in rule] == [
        it for it in rules if handover in it
    ]
    granted = [
        rule
        for it in rbac_manifests.remote_objects(ALL, OURS)
        for rule in it.get("rules") or ()
        if "cluster-bridge.io" in rule["apiGroups"]
    ]
    assert granted == [
        {"apiGroups": ["cluster-bridge.io"], "resources": [ownership], "verbs": ["set"]}
    ]


@pytest.mark.parametrize("name", ["reserved-metadata.cluster-bridge.io", "team.burst.remote"])
def test_policies_fail_closed(name: str) -> None:
    assert policies()[name]["failurePolicy"] == "Fail"
    assert all(it["reason"] == "Forbidden" for it in policies()[name]["validations"])


def test_namespace_that_was_handed_over_gets_no_owner_and_no_finalizer() -> None:
    rules = [rule["expression"] for rule in policies()["team.burst.remote"]["validations"]]
    (registers,) = [rule for rule in rules if ANNOTATION_ACCEPTS in rule]
    for field in ("metadata.?ownerReferences", "metadata.?finalizers", "?spec"):
        assert f"dyn(object).{field} == variables.before.{field}" in registers
