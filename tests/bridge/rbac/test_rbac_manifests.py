"""RBAC objects grant the permissions of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from bridge.base.join_settings import MetricsChoice, SettingsError
from bridge.node import lease_namespace, namespace_ownership_lease
from bridge.rbac import permissions, rbac_manifests
from bridge.rbac.permissions import Permission
from bridge.rbac.rbac_manifests import Account, HomePermissions, RemotePermissions
from bridge.rbac.remote_policy import RESERVATION

OURS = Account()
Objects = list[dict[str, Any]]
#: Where (a namespace, or "" for all), group, resource with subresource, verb, name ("" for any).
Granted = tuple[str, str, str, str, str]


def granted(objects: Objects, account: Account = OURS) -> set[Granted]:
    """The permissions that the objects grant to the account, as RBAC evaluates them."""
    roles = {_place(it): it["rules"] for it in objects if it["kind"] in ("Role", "ClusterRole")}
    found: set[Granted] = set()
    for it in objects:
        if it["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        who = {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        assert it["subjects"] == [who]
        namespace = it["metadata"].get("namespace", "")
        reference = it["roleRef"]
        of = namespace if reference["kind"] == "Role" else ""
        for rule in roles[(reference["kind"], of, reference["name"])]:
            found |= set(_each(rule, namespace))
    return found


def _place(obj: dict[str, Any]) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", ""), meta["name"]


def _each(rule: dict[str, Any], namespace: str) -> Iterator[Granted]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield namespace, group, resource, verb, name


def expand(permissions: Iterable[Permission], *, namespace: str = "") -> set[Granted]:
    """The permissions, one entry for each verb."""
    return {
        (
            permission.namespace or namespace,
            permission.resource.group,
            permission.resource.plural
            + (f"/{permission.subresource}" if permission.subresource else ""),
            verb,
            name,
        )
        for permission in permissions
        for verb in permission.verbs
        for name in permission.names or ("",)
    }


HOME = HomePermissions(["far"], serving="csr", network="auto", leave=True)


def test_home_objects_grant_the_table() -> None:
    assert granted(rbac_manifests.home_objects(HOME, OURS)) == expand(HOME.cluster_level)
    read = {
        resource
        for _, _, resource, _, name in granted(rbac_manifests.home_objects(HOME, OURS))
        if not name
    }
    assert "secrets" not in read
    assert "configmaps" not in read
    assert "serviceaccounts/token" not in read


def test_a_namespace_is_bound_by_itself() -> None:
    objects = rbac_manifests.home_objects(HOME, OURS, ["shop", "blog", "shop"])
    in_shop = expand(HOME.per_namespace, namespace="shop")
    in_blog = expand(HOME.per_namespace, namespace="blog")
    assert granted(objects) == expand(HOME.cluster_level) | in_shop | in_blog
    more = rbac_manifests.namespace_bindings(OURS, ["wiki"])
    assert granted([*rbac_manifests.home_objects(HOME, OURS), *more]) - expand(
        HOME.cluster_level
    ) == expand(HOME.per_namespace, namespace="wiki")
    assert [it["kind"] for it in more] == ["RoleBinding"]


def test_all_namespaces_are_bound_only_on_request() -> None:
    objects = rbac_manifests.home_objects(HOME, OURS, all_namespaces=True)
    assert granted(objects) == expand(HOME.cluster_level) | expand(HOME.per_namespace)


def test_a_named_node_is_the_only_one_that_can_be_changed() -> None:
    options = HomePermissions(["one", "two"], leave=True)
    for _, _, resource, verb, name in granted(rbac_manifests.home_objects(options, OURS)):
        if resource.startswith(("nodes", "leases")) and verb != "create":
            if name == namespace_ownership_lease.NAME:
                continue  # All nodes of a home have one record.
            # The lease of a node's election is named after it.
            assert name.removeprefix("election-") in ("one", "two"), (resource, verb)


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (HomePermissions(["far"], service_accounts="none"), {"serviceaccounts/token"}),
        (HomePermissions(["far"], network="none"), {"endpointslices", "pods"}),
        (
            HomePermissions(["far"], identity="node"),
            {"configmaps", "secrets", "serviceaccounts/token"},
        ),
    ],
)
def test_unused_options_grant_nothing(options: HomePermissions, gone: set[str]) -> None:
    def resources(options: HomePermissions) -> set[str]:
        objects = rbac_manifests.home_objects(options, OURS, ["shop"])
        return {it[2] for it in granted(objects) if it[0] == "shop"}

    assert resources(HomePermissions(["far"])) - resources(options) == gone


def test_a_relay_sees_slices_everywhere_and_writes_them_where_it_is_bound() -> None:
    def slices(options: HomePermissions) -> set[tuple[str, str]]:
        found = granted(rbac_manifests.home_objects(options, OURS, ["shop"]))
        return {(it[0], it[3]) for it in found if it[2] == "endpointslices" and not it[4]}

    flat = {("shop", "list"), ("shop", "watch")}
    relay = {("", "list"), ("", "watch")}
    relay |= {("shop", "create"), ("shop", "patch"), ("shop", "delete")}
    assert slices(HomePermissions(["far"], network="flat")) == flat
    assert slices(HomePermissions(["far"], network="relay")) == relay
    assert slices(HomePermissions(["far"], network="auto")) == flat | relay
    assert slices(HomePermissions(["far"], network="none")) == set()


def test_remote_objects_grant_the_table() -> None:
    options = RemotePermissions(metrics="auto")
    own_token = permissions.for_own_token(OURS.namespace, OURS.name)
    assert granted(rbac_manifests.remote_objects(options, OURS)) == expand(
        (*options.cluster_level, *options.namespace_contents, *own_token)
    )
    assert ("", "*", "*", "list", "") in granted(rbac_manifests.remote_objects(options, OURS))


@pytest.mark.parametrize(
    ("options", "granted_too"),
    [
        (
            RemotePermissions(metrics="none", keep_namespaces=True, renew_token=True),
            permissions.for_own_token(OURS.namespace, OURS.name),
        ),
        (RemotePermissions(metrics="none", keep_namespaces=True, renew_token=False), ()),
        (
            RemotePermissions(metrics="none", renew_token=False),
            permissions.REMOTE_NAMESPACE_CONTENTS,
        ),
        (
            RemotePermissions(metrics="api", keep_namespaces=True, renew_token=False),
            permissions.REMOTE_METRICS["api"],
        ),
        (
            RemotePermissions(metrics="kubelets", keep_namespaces=True, renew_token=False),
            permissions.REMOTE_METRICS["kubelets"],
        ),
    ],
)
def test_options_change_the_remote_permissions(
    options: RemotePermissions, granted_too: tuple[Permission, ...]
) -> None:
    always = (*permissions.REMOTE, *permissions.REMOTE_LEAVE, *permissions.REMOTE_OWNERSHIP)
    required = (*always, *granted_too)
    assert granted(rbac_manifests.remote_objects(options, OURS)) == expand(required)


IN_PREPARED = (
    *permissions.REMOTE_NAMESPACE,
    *permissions.REMOTE_NAMESPACE_LEAVE,
    *permissions.REMOTE_OWNERSHIP,
)


@pytest.mark.parametrize("metrics", ["api", "auto"])
def test_prepared_namespaces_need_roles_in_them_alone(metrics: MetricsChoice) -> None:
    options = RemotePermissions(metrics=metrics, namespaces=["a", "b"])
    objects = rbac_manifests.remote_objects(options, OURS)
    assert {it["kind"] for it in objects} == {"Namespace", "ServiceAccount", "Role", "RoleBinding"}
    roles = {it["metadata"]["namespace"] for it in objects if it["kind"] == "Role"}
    assert roles == {"a", "b", OURS.namespace}
    in_each = (*IN_PREPARED, *permissions.REMOTE_METRICS["api"])
    own_token = permissions.for_own_token(OURS.namespace, OURS.name)
    required = (*permissions.in_namespaces(in_each, ["a", "b"]), *own_token)
    assert granted(objects) == expand(required)


def test_cluster_reads_of_prepared_namespaces_write_only_claims_elsewhere() -> None:
    options = RemotePermissions(
        metrics="kubelets", renew_token=False, namespaces=["a", "b"], cluster_reads=True
    )
    found = granted(rbac_manifests.remote_objects(options, OURS))
    reads = [it for each in permissions.REMOTE_CLUSTER_READS.values() for it in each]
    assert found == expand(
        (
            *reads,
            *permissions.REMOTE_CLAIM,
            *permissions.REMOTE_LEAVE,
            *permissions.in_namespaces(permissions.REMOTE_OWNERSHIP, ["kube-node-lease"]),
            *permissions.REMOTE_METRICS["kubelets"],
            *permissions.in_namespaces(IN_PREPARED, ["a", "b"]),
        )
    )
    assert {it[0] for it in found if it[2] == "secrets"} == {"a", "b"}
    assert {it[3] for it in found if not it[0]} == {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (RemotePermissions(cluster_reads=True), "--namespace"),
        (RemotePermissions(metrics="kubelets", namespaces=["a"]), "--metrics kubelets"),
    ],
)
def test_options_that_no_role_can_grant_are_rejected(
    options: RemotePermissions, named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        options.check()


def test_account_may_create_tokens_of_itself_alone() -> None:
    other = Account("team", "burst")
    objects = rbac_manifests.remote_objects(RemotePermissions(), other)
    tokens = {it for it in granted(objects, other) if it[2] == "serviceaccounts/token"}
    assert tokens == {("team", "", "serviceaccounts/token", "create", "burst")}


def test_installed_bridge_may_read_and_write_its_state_secret_alone() -> None:
    options = HomePermissions(["far"], state_secret=("ns", "bridge-state-far"))
    more = granted(rbac_manifests.home_objects(options, OURS)) - expand(options.cluster_level)
    verbs = ("get", "list", "watch", "patch")
    assert more == {("ns", "", "secrets", verb, "bridge-state-far") for verb in verbs}


def test_two_accounts_share_no_role_and_no_policy_of_their_own() -> None:
    other = Account("team", "burst")
    objects = [
        *rbac_manifests.home_objects(HOME, OURS, ["shop"]),
        *rbac_manifests.remote_objects(RemotePermissions(), OURS, policy=True),
    ]
    others = [
        *rbac_manifests.home_objects(HOME, other, ["shop"]),
        *rbac_manifests.remote_objects(RemotePermissions(), other, policy=True),
    ]
    shared = {_place(it) for it in objects} & {_place(it) for it in others}
    assert {name for _, _, name in shared} == {RESERVATION, lease_namespace.NAMESPACE}
    alike = [it for it in others if _place(it) in shared]
    assert all(it in alike for it in objects if _place(it) in shared)
    assert granted(rbac_manifests.home_objects(HOME, other), other) == expand(HOME.cluster_level)


@pytest.mark.parametrize("text", ["", "burst", "a/b/c", "Team/burst", "team/", "team/b_c"])
def test_an_account_has_a_namespace_and_a_name(text: str) -> None:
    with pytest.raises(SettingsError, match="--account"):
        rbac_manifests.parse_account(text)
    assert rbac_manifests.parse_account("team/burst") == Account("team", "burst")
