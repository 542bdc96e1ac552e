"""BRG204 and BRG205: which admission policies are in force."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bridge.checks import check_runner
from bridge.checks.findings import Finding, Severity
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account, HomePermissions, RemotePermissions
from sync.kube.api_resources import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS, Object
from tests.bridge.checks.report_queries import findings_of
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.fakeapi.server import FakeApi
from tests.sync.engine_harness import NODE

pytestmark = pytest.mark.usefixtures("soon")

OURS = Account()


def put(api: FakeApi, objects: Iterable[Object], *, without: str = "") -> None:
    """Puts the policies and bindings among the objects."""
    kinds = {VALIDATING_POLICIES.kind, VALIDATING_POLICY_BINDINGS.kind} - {without}
    for it in objects:
        if it["kind"] in kinds:
            api.put(it)


def of_home(node: str = NODE) -> list[Object]:
    return rbac_manifests.home_objects(HomePermissions([node]), OURS)


async def found(two: Clusters, check: str) -> list[Finding]:
    settings = two.but(name=NODE)
    return findings_of(await check_runner.check_before_join(settings), check)


async def test_policies_in_force_are_named(two: Clusters) -> None:
    put(two.home, of_home())
    put(two.remote, rbac_manifests.remote_objects(RemotePermissions(), OURS, policy=True))
    [home] = await found(two, "BRG204")
    assert (home.severity, home.side) == (Severity.OK, "home")
    assert home.found == f"cluster-bridge.home confines the account of node {NODE}"
    assert [(it.severity, it.side, it.found) for it in await found(two, "BRG205")] == [
        (
            *(Severity.OK, "remote"),
            "reserved-metadata.cluster-bridge.io reserves the bridge's labels and annotations",
        ),
        (Severity.OK, "remote", "cluster-bridge.remote confines the bridge's account"),
    ]


async def test_missing_policies_have_a_hint(two: Clusters) -> None:
    [home] = await found(two, "BRG204")
    assert home.severity is Severity.INFO
    assert home.advice.startswith(f"`bridge rbac home --name {NODE}")
    remote = await found(two, "BRG205")
    assert {it.severity for it in remote} == {Severity.INFO}
    assert {it.advice for it in remote} == {"`bridge rbac remote --policy` prints them"}


async def test_policy_of_another_node_does_not_count(two: Clusters) -> None:
    put(two.home, of_home("another"))
    [home] = await found(two, "BRG204")
    assert home.found == f"no admission policy confines an account to node {NODE}"


async def test_policy_without_a_binding_is_not_in_force(two: Clusters) -> None:
    put(two.home, of_home(), without=VALIDATING_POLICY_BINDINGS.kind)
    [home] = await found(two, "BRG204")
    assert home.severity is Severity.INFO


async def test_errors_that_the_api_server_found_are_a_warning(two: Clusters) -> None:
    objects = of_home()
    for it in objects:
        if it["kind"] == VALIDATING_POLICIES.kind:
            it["status"] = {"typeChecking": {"expressionWarnings": [{"warning": "undeclared"}]}}
    put(two.home, objects)
    [home] = await found(two, "BRG204")
    assert (home.severity, home.found) == (
        Severity.WARNING,
        "the API server reports errors in the policy cluster-bridge.home",
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [(403, "not checked: the credential may not"), (404, "serves no ValidatingAdmissionPolicy")],
)
async def test_unreadable_policies_are_reported(two: Clusters, code: int, expected: str) -> None:
    for api in (two.home, two.remote):
        api.fail(Fault("GET", VALIDATING_POLICY_BINDINGS.path(), code=code, times=None))
    for check in ("BRG204", "BRG205"):
        [finding] = await found(two, check)
        assert finding.severity is Severity.INFO
        assert expected in finding.found
