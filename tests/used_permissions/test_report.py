"""Used permissions, as recorded in audit logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from e2e import used_permissions
from e2e.bench.pods.audit_log import Requests
from e2e.used_permissions import Report

OURS = "system:serviceaccount:cluster-bridge:cluster-bridge"


def line(verb: str, resource: str, **fields: Any) -> dict[str, Any]:
    """One answered request of the bridge's account."""
    plural, _, subresource = resource.partition("/")
    ref = {"resource": plural, "subresource": subresource, "apiGroup": fields.pop("group", "")}
    ref |= {key: fields.pop(key) for key in ("namespace", "name") if key in fields}
    return {
        "userAgent": fields.pop("agent", "cluster-bridge"),
        "stage": "ResponseStarted" if verb == "watch" else "ResponseComplete",
        "verb": verb,
        "requestURI": "/somewhere",
        "objectRef": {key: value for key, value in ref.items() if value},
        "responseStatus": {"code": 403 if fields.get("decision") == "forbid" else 200},
        "user": {"username": fields.pop("user", OURS)},
        "annotations": {"authorization.k8s.io/decision": fields.pop("decision", "allow")},
        "requestReceivedTimestamp": "2030-01-01T00:00:00.000000Z",
        "stageTimestamp": "2030-01-01T00:00:00.000000Z",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def report_of(folder: Path, side: str, *lines: dict[str, Any]) -> Report:
    log = folder / "audit.log"
    log.write_bytes(b"".join(orjson.dumps(it) + b"\n" for it in lines))
    return used_permissions.report({side: Requests(log, whole=True)})


def used(report: Report) -> list[str]:
    return sorted(report.used)


def test_a_use_counts_for_the_right_that_allows_it(folder: Path) -> None:
    found = report_of(
        folder,
        "home",
        line("list", "services", namespace="shop"),
        line("list", "services", namespace="blog"),
        line("patch", "nodes", name="virtual"),
        line("get", "namespaces", namespace="kube-system", name="kube-system"),
    )
    assert used(found) == [
        "home: get namespaces kube-system in kube-system",
        "home: list services",
        "home: patch nodes *",
    ]
    assert found.used.total() == 4
    assert not found.undeclared
    unused = {str(it) for it in found.unused}
    assert not unused & found.used.keys()
    assert {"home: list events", "home, in place of the node: list secrets"} <= unused
    # Another account's use of a permission that both have is enough.
    assert "home, in place of the node: list events" not in unused


def test_use_outside_the_tables_is_reported(folder: Path) -> None:
    found = report_of(
        folder,
        "home",
        line("list", "namespaces"),
        line("get", "secrets", namespace="shop", name="key"),
        line("list", "pods", group="metrics.k8s.io"),
    )
    assert found.undeclared.total() == 3
    assert not found.used


def test_a_webhooks_rights_are_its_own(folder: Path) -> None:
    webhook = "system:serviceaccount:cluster-bridge:cluster-bridge-far-offload"
    found = report_of(
        folder,
        "home",
        line("patch", "secrets", namespace="cluster-bridge", user=webhook),
        line("patch", "secrets", namespace="cluster-bridge"),
        line("list", "pods", user=webhook),
    )
    assert used(found) == ["webhook: patch secrets"]
    assert found.undeclared.total() == 2


@pytest.mark.parametrize("account", ["virtual-1-in-place", "cluster-bridge-far"])
def test_account_in_place_of_the_node_has_a_table_of_its_own(folder: Path, account: str) -> None:
    user = f"system:serviceaccount:cluster-bridge:{account}"
    found = report_of(folder, "home", line("watch", "pods", user=user))
    assert used(found) == ["home, in place of the node: watch pods"]


def test_account_in_prepared_namespaces_must_use_what_no_other_account_has(folder: Path) -> None:
    user = "system:serviceaccount:default:virtual-1-prepared"
    found = report_of(
        folder,
        "remote",
        line("watch", "namespaces", namespace="shop-e2e", name="shop-e2e", user=user),
        line("get", "secrets", namespace="shop-e2e", user=user),
        line("list", "nodes", user=user),
    )
    prefix = used_permissions.PREPARED
    assert {f"{prefix}: watch namespaces", f"{prefix}: list nodes"} <= set(used(found))
    assert not found.undeclared
    unused = {str(it) for it in found.unused}
    assert f"{prefix}: get namespaces" in unused
    assert f"{prefix}: create pods/exec" not in unused


def test_denied_request_is_reported_and_does_not_count_as_use(folder: Path) -> None:
    found = report_of(
        folder, "home", line("delete", "secrets", namespace="shop", decision="forbid")
    )
    assert found.refused == {"home: delete secrets in shop": 1}
    assert not found.used


def test_all_kinds_count_only_where_nothing_else_allows_it(folder: Path) -> None:
    found = report_of(
        folder,
        "remote",
        line("list", "secrets", namespace="shop-h"),
        line("list", "widgets", group="example.com", namespace="shop-h"),
    )
    assert used(found) == ["remote: list *.*", "remote: list secrets"]


@pytest.mark.parametrize(
    "passed_over",
    [
        line("list", "secrets", agent="kubectl/v1.34.4"),
        line("list", "secrets", user="kubernetes-admin"),
        line("create", "selfsubjectaccessreviews", group="authorization.k8s.io"),
        line("list", "secrets", namespace="unbound-1", decision="forbid"),
        line("list", "secrets", user="system:serviceaccount:cluster-bridge:other-versions-1"),
    ],
    ids=[
        "another program",
        "an administrator",
        "what everybody may",
        "a test's refusal",
        "another version",
    ],
)
def test_what_others_ask_does_not_count(folder: Path, passed_over: dict[str, Any]) -> None:
    found = report_of(folder, "home", passed_over)
    assert not found.used
    assert not found.refused
    assert not found.undeclared


def test_reports_of_several_workers_add_up(folder: Path) -> None:
    found = report_of(folder, "home", line("list", "services", namespace="shop"))
    found.add(report_of(folder, "home", line("list", "services", namespace="blog")).as_json())
    found.add(report_of(folder, "home", line("get", "secrets", namespace="blog")).as_json())
    assert found.used == {"home: list services": 2}
    assert list(found.problems()) == ["       1  undeclared: home: get secrets in blog"]


def test_what_is_looked_at_where_the_credential_may_is_no_right_of_the_tables(folder: Path) -> None:
    seen = line("list", "servicecidrs", group="networking.k8s.io")
    found = report_of(folder, "home", seen)
    assert not found.undeclared
    assert not found.used
    changed = line("patch", "servicecidrs", group="networking.k8s.io")
    assert report_of(folder, "home", changed).undeclared.total() == 1
    refused = line("list", "servicecidrs", group="networking.k8s.io", decision="forbid")
    assert report_of(folder, "home", refused).refused.total() == 1, "it is asked first"
