"""`bridge install`, `upgrade` and `render`: options become an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.base.version import version
from tests.bridge.cli.conftest import Invoke
from tests.bridge.install.kubeconfigs import AWS, CANARY, config, write


@pytest.fixture
def remote(tmp_path: Path) -> tuple[str, str]:
    return ("--kubeconfig", str(write(tmp_path / "remote.yaml", config())))


def rendered(invoke: Invoke, *args: str) -> dict[str, Any]:
    """By kind; the last one of each."""
    done = invoke("render", *args)
    assert done.exit_code == 0, done.stderr
    return {it["kind"]: it for it in yaml.safe_load_all(done.stdout)}


def container(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def test_kubeconfig_is_the_only_required_option(invoke: Invoke, remote: tuple[str, str]) -> None:
    made = rendered(invoke, *remote)
    assert container(made)["image"] == f"cluster-bridge:{version()}"
    assert container(made)["args"] == [
        "join",
        "--kubeconfig=/etc/cluster-bridge/kubeconfig",
        "--name=far",
        "--address=$(POD_IP)",
        "--port=10250",
        "--health-port=8081",
        "--state-secret=bridge-state-far",
        "--cert-dir=/tmp/serving-certificate",
    ]
    assert made["Deployment"]["metadata"]["name"] == "cluster-bridge-far"
    assert made["Deployment"]["spec"]["replicas"] == 2


def test_join_options_become_container_arguments(invoke: Invoke, remote: tuple[str, str]) -> None:
    options = ("--share", "0.5", "--taints", "none", "--labels", "a=b,c=d")
    made = rendered(invoke, *remote, *options, "--network", "none", "-v")
    assert container(made)["args"][7:] == [
        "--network=none",
        "--cert-dir=/tmp/serving-certificate",
        "--labels=a=b,c=d",
        "--taints=none",
        "--share=0.5",
        "--verbose",
    ]


def test_options_of_the_installation_are_not_container_arguments(
    invoke: Invoke, remote: tuple[str, str]
) -> None:
    options = ("--name", "burst", "--image", "i:2", "--namespace", "ns", "--replicas", "3")
    made = rendered(invoke, *remote, *options, "--port", "10251", "--bind", "a", "--bind", "b")
    assert container(made)["image"] == "i:2"
    assert container(made)["args"][2:] == [
        "--name=burst",
        "--address=$(POD_IP)",
        "--port=10251",
        "--health-port=8081",
        "--state-secret=bridge-state-burst",
        "--cert-dir=/tmp/serving-certificate",
    ]
    assert made["Deployment"]["metadata"]["namespace"] == "ns"
    assert made["RoleBinding"]["metadata"]["namespace"] == "b"


def test_certificate_of_home_is_stored_in_the_pod(invoke: Invoke, remote: tuple[str, str]) -> None:
    made = rendered(invoke, *remote, "--serving-certificate", "csr")
    folder = "--cert-dir=/tmp/serving-certificate"
    assert container(made)["args"][-2:] == ["--serving-certificate=csr", folder]
    made = rendered(invoke, *remote)
    assert container(made)["args"][-1] == folder
    made = rendered(invoke, *remote, "--serving-certificate", "self-signed")
    assert container(made)["args"][-1] == "--serving-certificate=self-signed"


@pytest.mark.parametrize("identity", ["node", "service-account"])
def test_identity_is_passed_and_decides_the_permissions(
    invoke: Invoke, remote: tuple[str, str], identity: str
) -> None:
    done = invoke("render", *remote, "--home-identity", identity)
    made = list(yaml.safe_load_all(done.stdout))
    (deployment,) = (it for it in made if it["kind"] == "Deployment")
    assert f"--home-identity={identity}" in str(deployment)
    (role,) = (it for it in made if it["metadata"]["name"].endswith("far:home-namespace"))
    assert ("secrets" in str(role["rules"])) == (identity == "service-account")


def test_render_warns_of_the_secret(invoke: Invoke, remote: tuple[str, str]) -> None:
    done = invoke("render", *remote)
    assert CANARY not in done.stdout, "it is encoded"
    assert "keep this YAML secret" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--address", "192.0.2.1"), "no such option: --address"),
        (("--relay-cidr", "10.77.0.0/24"), "no such option: --relay-cidr"),
        (("--cert-dir", "/x"), "no such option: --cert-dir"),
        (("--tls-cert-file", "a"), "no such option: --tls-cert-file"),
        (("--health-port", "1"), "no such option: --health-port"),
        (("--state-secret", "x"), "no such option: --state-secret"),
        (("--port", "0"), "--port 0 cannot be used"),
        (("--bind", "a", "--all-namespaces"), "exclude each other"),
        (("--bind", "A"), "not a namespace name"),
        (("--namespace", "A"), "not a namespace name"),
        (("--network", "relay", "--relay-from", "A"), "not a namespace name"),
        (("--network", "relay", "--relay-from", "10.0.0.1/16"), "ADDRESS/BITS"),
        (
            ("--network", "flat", "--relay-from", "shop"),
            "requires --network relay or auto",
        ),
        (("--share", "2"), "--share"),
    ],
)
def test_options_that_a_pod_cannot_have_are_rejected(
    invoke: Invoke, remote: tuple[str, str], options: tuple[str, ...], words: str
) -> None:
    done = invoke("render", *remote, *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_kubeconfig_with_a_credential_plugin_fails(invoke: Invoke, tmp_path: Path) -> None:
    path = write(tmp_path / "remote.yaml", config(user=AWS))
    done = invoke("render", "--kubeconfig", str(path))
    assert done.exit_code == 1
    assert "credential plugin" in done.stderr
