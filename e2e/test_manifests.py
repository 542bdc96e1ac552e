"""`bridge render`, the Helm chart and the kustomize base create equal objects.

Helm is built once, for minutes: the tests of the chart are `long`. kustomize is part of kubectl. No
cluster is queried; kubectl is that of a cluster's version.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.versions import DEFAULT_KUBERNETES

MANIFESTS = Path(__file__).parent.parent / "manifests"
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: remote
clusters: [{name: remote, cluster: {server: "https://203.0.113.7:6443"}}]
users: [{name: remote, user: {token: a-token}}]
contexts: [{name: remote, context: {cluster: remote, user: remote}}]
"""
#: Options in the order of `bridge join`.
ARGUMENTS = [
    "--annotations=x=$(POD_IP),y=2",
    "--share=0.5",
    "--anonymous-auth",
    "--log-format=json",
]
Objects = dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def helm() -> Path:
    """The program."""
    return go_build.programs(go_recipes.helm(), settings_from_environment().cache, silent) / "helm"


def by_name(text: str) -> Objects:
    """Kind, namespace and name → object, without duplicates."""
    found: Objects = {}
    for obj in yaml.safe_load_all(text):
        if obj is not None:
            meta = obj["metadata"]
            key = (obj["kind"], meta.get("namespace", ""), meta["name"])
            assert key not in found
            found[key] = obj
    return found


def rendered(folder: Path, *args: str) -> Objects:
    """Output of `bridge render` for that kubeconfig."""
    path = folder / "remote.yaml"
    path.write_text(KUBECONFIG)
    done = bridge_process.run("render", "--kubeconfig", path, *args)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def of_chart(helm: Path, folder: Path, made: Objects, namespace: str, *values: str) -> Objects:
    """The chart's objects with the kubeconfig in ``made``."""
    secret = next(obj for obj in made.values() if obj["kind"] == "Secret" and "data" in obj)
    path = folder / "self-contained.yaml"
    path.write_bytes(base64.b64decode(secret["data"]["kubeconfig"]))
    done = run(
        *(helm, "template", "release", MANIFESTS / "chart", "--namespace", namespace),
        # Without a cluster, Helm assumes its own Kubernetes version.
        *("--kube-version", DEFAULT_KUBERNETES, "--set-file", f"kubeconfig={path}", *values),
    )
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


@pytest.mark.parametrize(
    ("namespace", "options", "values"),
    [
        ("cluster-bridge", ["--name", "far"], ["--set", "node=far"]),
        (
            "elsewhere",
            [
                *("--name", "far.example", "--network", "none", "--service-accounts", "none"),
                *("--serving-certificate", "csr", "--image", "i:2", "--replicas", "1"),
                *("--bind", "a", "--bind", "b", "--port", "10251"),
                *("--share", "0.5", "--annotations", "x=$(POD_IP),y=2", "--anonymous-auth"),
                *("--log-format", "json", "--offload-webhook"),
            ],
            [
                *("--set", "node=far.example,network=none,serviceAccounts=none"),
                *("--set", "servingCertificate=csr,image=i:2,replicas=1,bind={a,b},port=10251"),
                *("--set", "offloadWebhook=true"),
                *(
                    "--set-json",
                    f"arguments={json.dumps(ARGUMENTS)}",
                ),
            ],
        ),
        (
            "cluster-bridge-far",
            ["--name", "far", "--all-namespaces"],
            ["--set", "node=far,allNamespaces=true"],
        ),
        (
            "webhook",
            ["--name", "far", "--offload-webhook"],
            ["--set", "node=far,offloadWebhook=true"],
        ),
        (
            "webhook",
            ["--name", "f" * 48, "--offload-webhook"],
            ["--set", f"node={'f' * 48},offloadWebhook=true"],
        ),
        ("relay", ["--name", "far", "--network", "relay"], ["--set", "node=far,network=relay"]),
        (
            "relay-from",
            [
                *("--name", "far", "--network", "relay"),
                *("--relay-from", "shop", "--relay-from", "10.0.0.0/16"),
            ],
            ["--set", "node=far,network=relay,relayFrom={shop,10.0.0.0/16}"],
        ),
        ("auto", ["--name", "far", "--network", "auto"], ["--set", "node=far,network=auto"]),
        (
            "identity",
            ["--name", "far", "--home-identity", "node", "--serving-certificate", "self-signed"],
            ["--set", "node=far,homeIdentity=node,servingCertificate=self-signed"],
        ),
        (
            "identity",
            ["--name", "far", "--home-identity", "service-account"],
            ["--set", "node=far,homeIdentity=service-account"],
        ),
    ],
    ids=[
        *("as it comes", "all options", "all namespaces", "webhook", "a long name"),
        *("relay", "relay from", "auto", "node", "service account"),
    ],
)
def test_chart_equals_rendered_manifests(
    helm: Path, tmp_path: Path, namespace: str, options: list[str], values: list[str]
) -> None:
    made = rendered(tmp_path, "--namespace", namespace, *options)
    charted = of_chart(helm, tmp_path, made, namespace, *values)
    # Helm creates the namespace itself (--create-namespace).
    del made["Namespace", "", namespace]
    # Every bridge of home uses it: `helm uninstall` keeps it.
    if shared := charted.get(("Namespace", "", "cluster-bridge")):
        assert shared["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert charted.keys() == made.keys()
    for key, obj in made.items():
        assert charted[key] == obj, key


@pytest.mark.parametrize("url", ["", "https://docs.example/{alert}.html?v=$1:"])
def test_alerts_of_the_chart_link_to_the_runbooks_of_the_user(
    helm: Path, tmp_path: Path, url: str
) -> None:
    values = {"node": "far", "kubeconfig": "x", "alerts": {"enabled": True, "runbookUrl": url}}
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    chart = (helm, "template", "release", MANIFESTS / "chart", "--namespace", "seen")
    done = run(*chart, "--values", file, "--kube-version", DEFAULT_KUBERNETES)
    assert done.returncode == 0, done.stderr
    key = ("PrometheusRule", "seen", "cluster-bridge")
    expected = yaml.safe_load((MANIFESTS / "monitoring" / "rules.yaml").read_text())
    expected["metadata"]["namespace"] = "seen"
    for alert in expected["spec"]["groups"][0]["rules"] if url else ():
        del alert["annotations"]["runbook"]
        alert["annotations"]["runbook_url"] = url.replace("{alert}", alert["alert"])
    assert by_name(done.stdout)[key] == expected


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["--set", "node=far"],
        ["--set", "node=Far,kubeconfig=x"],
        ["--set", "node=far,kubeconfig=x,replica=2"],
        ["--set", "node=far,kubeconfig=x,existingSecret=y"],
        ["--set", "node=far,kubeconfig=x,network=flot"],
        ["--set", "node=far,kubeconfig=x,allNamespaces=true,bind={a}"],
        ["--set", "node=far,kubeconfig=x,offloadWebhook=maybe"],
    ],
)
def test_invalid_chart_values_are_rejected(helm: Path, values: list[str]) -> None:
    done = run(helm, "template", "release", MANIFESTS / "chart", *values)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_chart_mounts_an_existing_secret(helm: Path) -> None:
    values = ("--set", "node=far,existingSecret=of-vault", "--kube-version", DEFAULT_KUBERNETES)
    done = run(helm, "template", "release", MANIFESTS / "chart", *values)
    assert done.returncode == 0, done.stderr
    objects = by_name(done.stdout)
    assert "cluster-bridge-far" not in {name for kind, _, name in objects if kind == "Secret"}
    (bridge,) = (it for (kind, _, _), it in objects.items() if kind == "Deployment")
    [kubeconfig, _] = bridge["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"]
    assert kubeconfig == {"secret": {"name": "of-vault"}}
    assert "annotations" not in bridge["spec"]["template"]["metadata"]


def test_chart_passes_helm_lint(helm: Path) -> None:
    done = run(helm, "lint", "--strict", MANIFESTS / "chart", "--set", "node=far,kubeconfig=x")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "components"),
    [([], []), (["--offload-webhook"], ["../offload-webhook"])],
    ids=["as it comes", "webhook"],
)
def test_kustomize_overlay_equals_rendered_manifests(
    home: Cluster, tmp_path: Path, options: list[str], components: list[str]
) -> None:
    made = rendered(tmp_path, "--name", "remote", *options)
    secret = made["Secret", "cluster-bridge", "cluster-bridge-remote"]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../base"],
        "components": components,
        "secretGenerator": [
            {
                "name": "cluster-bridge-remote",
                "namespace": "cluster-bridge",
                "files": ["kubeconfig"],
                "options": {"labels": secret["metadata"]["labels"]},
            }
        ],
    }
    for part in ("base", "offload-webhook"):
        shutil.copytree(MANIFESTS / part, tmp_path / part)
    folder = tmp_path / "overlay"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (folder / "kubeconfig").write_bytes(base64.b64decode(secret["data"]["kubeconfig"]))
    built = by_name(home.kubectl("kustomize", str(folder)).stdout)

    # kustomize names the Secret by its content, which rolls the pods without an annotation.
    [name] = [name for (kind, _, name), it in built.items() if kind == "Secret" and "data" in it]
    assert name.startswith("cluster-bridge-remote-")
    deployment = made["Deployment", "cluster-bridge", "cluster-bridge-remote"]
    template = deployment["spec"]["template"]
    del template["metadata"]["annotations"]
    [kubeconfig, _] = template["spec"]["volumes"][0]["projected"]["sources"]
    kubeconfig["secret"]["name"] = name
    secret["metadata"]["name"] = name
    made["Secret", "cluster-bridge", name] = made.pop(
        ("Secret", "cluster-bridge", "cluster-bridge-remote")
    )
    # It wraps the lines of encoded data.
    data = built["Secret", "cluster-bridge", name]["data"]
    data["kubeconfig"] = data["kubeconfig"].replace("\n", "")
    assert built.keys() == made.keys()
    for key, obj in made.items():
        assert built[key] == obj, key
