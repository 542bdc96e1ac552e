"""`bridge rbac`: its output, and the files of manifests/ that are generated from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account, HomePermissions, RemotePermissions
from tests.bridge.cli.conftest import Invoke

MANIFESTS = Path(__file__).parents[4] / "manifests" / "rbac"


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("home.yaml", ("home", "--name", "remote")),
        ("home-all-namespaces.yaml", ("home", "--name", "remote", "--all-namespaces")),
        ("namespace.yaml", ("namespace", "default")),
        ("remote.yaml", ("remote",)),
        ("remote-policy.yaml", ("remote", "--policy")),
    ],
)
def test_manifest_files_equal_the_output(
    invoke: Invoke, file: str, command: tuple[str, ...]
) -> None:
    done = invoke("rbac", *command)
    assert done.exit_code == 0
    assert done.stdout == (MANIFESTS / file).read_text(), (
        f"bridge rbac {' '.join(command)} > manifests/rbac/{file}"
    )


def test_every_manifest_file_is_covered() -> None:
    files = {"home.yaml", "home-all-namespaces.yaml", "namespace.yaml"}
    files |= {"remote.yaml", "remote-policy.yaml"}
    assert {it.name for it in MANIFESTS.iterdir()} == files


def test_join_options_change_the_permissions(invoke: Invoke) -> None:
    expected = invoke(
        *("rbac", "home", "--name", "one", "--name", "two", "--serving-certificate", "csr"),
        *("--service-accounts", "none", "--network", "none", "--leave", "--namespace", "shop"),
        *("--account", "team/burst"),
    ).stdout
    permissions = HomePermissions(
        ["one", "two"], "none", "csr", "none", leave=True, identity="node"
    )
    assert list(yaml.safe_load_all(expected)) == rbac_manifests.home_objects(
        permissions, Account("team", "burst"), ["shop"]
    )
    expected = invoke(
        *("rbac", "remote", "--metrics", "kubelets", "--keep-namespaces", "--no-token-renewal")
    ).stdout
    wanted = rbac_manifests.remote_objects(
        RemotePermissions("kubelets", keep_namespaces=True, renew_token=False), Account()
    )
    assert list(yaml.safe_load_all(expected)) == wanted


def test_account_in_place_of_the_node_gets_more(invoke: Invoke) -> None:
    options = ("--name", "far", "--home-identity", "service-account")
    printed = invoke("rbac", "home", *options).stdout
    expected = rbac_manifests.home_objects(HomePermissions(["far"]), Account())
    assert list(yaml.safe_load_all(printed)) == expected


def test_unbound_namespaces_are_noted_on_stderr(invoke: Invoke) -> None:
    home = ("rbac", "home", "--name", "far")
    assert "no namespace is bound" in invoke(*home).stderr
    assert invoke(*home, "--namespace", "shop").stderr == ""
    assert invoke(*home, "--all-namespaces").stderr == ""


def test_home_prints_no_policy_for_older_api_servers(invoke: Invoke) -> None:
    kinds = {
        it["kind"] for it in yaml.safe_load_all(invoke("rbac", "home", "--name", "far").stdout)
    }
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert policies <= kinds
    done = invoke("rbac", "home", "--name", "far", "--no-policy")
    assert {it["kind"] for it in yaml.safe_load_all(done.stdout)} == kinds - policies


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("home",), "--name is required: the virtual node that the account serves"),
        (("home",), "`bridge rbac home --name burst`"),
        (("home", "--name", "far", "--namespace", "Shop"), "is not a namespace name"),
        (("home", "--name", "Not good"), "--name"),
        (("home", "--namespace", "a", "--all-namespaces"), "exclude each other"),
        (("namespace", "a b"), "is not a namespace name"),
        (("remote", "--account", "burst"), "--account"),
    ],
)
def test_invalid_option_prints_no_yaml(
    invoke: Invoke, args: tuple[str, ...], expected: str
) -> None:
    done = invoke("rbac", *args)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stdout == ""
