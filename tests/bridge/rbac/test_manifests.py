"""The bridge's rights as RBAC objects: they grant what the tables say, where they say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from bridge.base.settings import SettingsError
from bridge.node import namespace_record
from bridge.rbac import manifests, permissions
from bridge.rbac.manifests import Account, HomeRights, RemoteRights
from bridge.rbac.permissions import Right

OURS = Account()
Objects = list[dict[str, Any]]
#: Where (a namespace, or "" for all), group, resource with subresource, verb, name ("" for any).
Granted = tuple[str, str, str, str, str]


def granted(objects: Objects, account: Account = OURS) -> set[Granted]:
    """What the account may by these objects, as RBAC reads them."""
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


def table(rights: Iterable[Right], *, namespace: str = "") -> set[Granted]:
    """The rights, one verb each."""
    return {
        (
            right.namespace or namespace,
            right.resource.group,
            right.resource.plural + (f"/{right.subresource}" if right.subresource else ""),
            verb,
            name,
        )
        for right in rights
        for verb in right.verbs
        for name in right.names or ("",)
    }


HOME = HomeRights(serving="csr", network="auto", leave=True)


def test_home_is_what_the_tables_say_and_nothing_of_a_namespace() -> None:
    assert granted(manifests.home(HOME, OURS)) == table(HOME.everywhere)
    read = {
        resource for _, _, resource, verb, name in granted(manifests.home(HOME, OURS)) if not name
    }
    assert "secrets" not in read
    assert "configmaps" not in read
    assert "serviceaccounts/token" not in read


def test_a_namespace_is_bound_by_itself() -> None:
    objects = manifests.home(HOME, OURS, ["shop", "blog", "shop"])
    in_shop = table(HOME.in_namespaces, namespace="shop")
    in_blog = table(HOME.in_namespaces, namespace="blog")
    assert granted(objects) == table(HOME.everywhere) | in_shop | in_blog
    more = manifests.namespaces(OURS, ["wiki"])
    assert granted([*manifests.home(HOME, OURS), *more]) - table(HOME.everywhere) == table(
        HOME.in_namespaces, namespace="wiki"
    )
    assert [it["kind"] for it in more] == ["RoleBinding"]


def test_all_namespaces_are_bound_only_where_that_is_asked_for() -> None:
    objects = manifests.home(HOME, OURS, everywhere=True)
    assert granted(objects) == table(HOME.everywhere) | table(HOME.in_namespaces)


def test_a_named_node_is_the_only_one_that_can_be_changed() -> None:
    asked = HomeRights(nodes=["one", "two"], leave=True)
    for _, _, resource, verb, name in granted(manifests.home(asked, OURS)):
        if resource.startswith(("nodes", "leases")) and verb != "create":
            if name == namespace_record.NAME:
                continue  # All nodes of a home have one record.
            # The lease of a node's election is named after it.
            assert name.removeprefix("cluster-bridge-") in ("one", "two"), (resource, verb)
    unnamed = {it for it in table(HomeRights().everywhere) if it[2] == "nodes"}
    assert ("", "", "nodes", "patch", "") in unnamed


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        (HomeRights(service_accounts="none"), {"serviceaccounts/token"}),
        (HomeRights(network="none"), {"endpointslices"}),
    ],
)
def test_what_is_not_asked_for_is_not_granted(asked: HomeRights, gone: set[str]) -> None:
    def resources(asked: HomeRights) -> set[str]:
        objects = manifests.home(asked, OURS, ["shop"])
        return {it[2] for it in granted(objects) if it[0] == "shop"}

    assert resources(HomeRights()) - resources(asked) == gone


def test_a_relay_sees_slices_everywhere_and_writes_them_where_it_is_bound() -> None:
    def slices(asked: HomeRights) -> set[tuple[str, str]]:
        found = granted(manifests.home(asked, OURS, ["shop"]))
        return {(it[0], it[3]) for it in found if it[2] == "endpointslices" and not it[4]}

    flat = {("shop", "list"), ("shop", "watch")}
    relay = {("", "list"), ("", "watch")}
    relay |= {("shop", "create"), ("shop", "patch"), ("shop", "delete")}
    assert slices(HomeRights(network="flat")) == flat
    assert slices(HomeRights(network="relay")) == relay
    assert slices(HomeRights(network="auto")) == flat | relay
    assert slices(HomeRights(network="none")) == set()


def test_the_remote_is_what_the_tables_say() -> None:
    asked = RemoteRights(metrics="auto")
    assert granted(manifests.remote(asked, OURS)) == table((*asked.everywhere, *asked.contents))
    assert ("", "*", "*", "list", "") in granted(manifests.remote(asked, OURS))


@pytest.mark.parametrize(
    ("asked", "granted_too"),
    [
        (RemoteRights(metrics="none", keep_namespaces=True), ()),
        (RemoteRights(metrics="none"), permissions.REMOTE_CONTENTS),
        (
            RemoteRights(metrics="api", keep_namespaces=True),
            permissions.REMOTE_METRICS["api"],
        ),
        (
            RemoteRights(metrics="kubelets", keep_namespaces=True),
            permissions.REMOTE_METRICS["kubelets"],
        ),
    ],
)
def test_the_remotes_options(asked: RemoteRights, granted_too: tuple[Right, ...]) -> None:
    rights = (*permissions.REMOTE, *permissions.REMOTE_LEAVE, *granted_too)
    assert granted(manifests.remote(asked, OURS)) == table(rights)


def test_two_accounts_share_no_role() -> None:
    other = Account("team", "burst")
    objects = [*manifests.home(HOME, OURS, ["shop"]), *manifests.remote(RemoteRights(), OURS)]
    others = [*manifests.home(HOME, other, ["shop"]), *manifests.remote(RemoteRights(), other)]
    assert not {_place(it) for it in objects} & {_place(it) for it in others}
    assert granted(manifests.home(HOME, other), other) == table(HOME.everywhere)


@pytest.mark.parametrize("text", ["", "burst", "a/b/c", "Team/burst", "team/", "team/b_c"])
def test_an_account_has_a_namespace_and_a_name(text: str) -> None:
    with pytest.raises(SettingsError, match="--account"):
        manifests.parse_account(text)
    assert manifests.parse_account("team/burst") == Account("team", "burst")
