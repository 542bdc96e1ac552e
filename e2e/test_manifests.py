"""`bridge render`, the Helm chart and the kustomize base create equal objects.

Helm is built once, for minutes: the tests of the chart are `long`. kustomize is part of kubectl. No
cluster is queried; kubectl is that of a cluster's version.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.rbac.permissions import HOME_LEAVE, Permission
from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.clusters.versions import DEFAULT_KUBERNETES
from sync.kube.api_resources import DEPLOYMENTS, PODS
from translators.derived_names import DNS_LABEL_MAX

MANIFESTS = Path(__file__).parent.parent / "manifests"
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: remote
clusters: [{name: remote, cluster: {server: "https://203.0.113.7:6443"}}]
users: [{name: remote, user: {token: a-token}}]
contexts: [{name: remote, context: {cluster: remote, user: remote}}]
"""
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
Objects = dict[tuple[str, str, str], dict[str, Any]]


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


def template(
    helm: Path,
    folder: Path,
    values: dict[str, Any],
    namespace: str = "seen",
    *,
    release: str = "release",
) -> subprocess.CompletedProcess[str]:
    """Runs `helm template` with the values, without a cluster."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    # Without a cluster, Helm assumes its own Kubernetes version.
    version = ("--kube-version", DEFAULT_KUBERNETES)
    chart = ("template", release, MANIFESTS / "chart", "--namespace", namespace)
    return run(helm, *chart, "--values", file, *version)


def of_chart(
    helm: Path,
    folder: Path,
    values: dict[str, Any],
    namespace: str = "seen",
    *,
    release: str = "release",
) -> tuple[Objects, Objects]:
    """The chart's objects, and those of its hooks."""
    done = template(helm, folder, values, namespace, release=release)
    assert done.returncode == 0, done.stderr
    found = by_name(done.stdout)
    hooks = {
        key: obj
        for key, obj in found.items()
        if "helm.sh/hook" in (obj["metadata"].get("annotations") or {})
    }
    return {key: obj for key, obj in found.items() if key not in hooks}, hooks


def instance_of(obj: dict[str, Any]) -> str:
    instance: str = (obj["metadata"].get("labels") or {}).get("app.kubernetes.io/instance", "")
    return instance


@pytest.mark.parametrize(
    ("namespace", "options", "entry"),
    [
        ("cluster-bridge", [], {}),
        (
            "elsewhere",
            [
                *("--network", "none", "--service-accounts", "none", "--share", "0.5"),
                *("--serving-certificate", "csr", "--replicas", "1", "--port", "10251"),
                *("--bind", "a", "--bind", "b", "--annotations", "x=$(POD_IP),y=2"),
                *("--verbose", "--log-format", "json"),
            ],
            {
                "replicas": 1,
                "port": 10251,
                "bind": ["a", "b"],
                "options": {
                    "network": "none",
                    "service-accounts": "none",
                    "share": 0.5,
                    "serving-certificate": "csr",
                    "annotations": "x=$(POD_IP),y=2",
                    "verbose": True,
                    "log-format": "json",
                },
            },
        ),
        ("cluster-bridge-far", ["--all-namespaces"], {"allNamespaces": True}),
        (
            "relay",
            ["--network", "relay", "--relay-from", "shop", "--relay-from", "10.0.0.0/16"],
            {"options": {"network": "relay"}, "relayFrom": ["shop", "10.0.0.0/16"]},
        ),
        (
            "identity",
            ["--home-identity", "node", "--serving-certificate", "self-signed"],
            {"options": {"home-identity": "node", "serving-certificate": "self-signed"}},
        ),
        ("storage", ["--storage", "provision"], {"options": {"storage": "provision"}}),
    ],
    ids=["as it comes", "all options", "all namespaces", "relay", "node", "storage"],
)
def test_remote_of_the_chart_equals_rendered_manifests(
    helm: Path, tmp_path: Path, namespace: str, options: list[str], entry: dict[str, Any]
) -> None:
    """But for the order of the arguments, and the admission policy, which is the release's."""
    made = rendered(tmp_path, "--name", "far", "--namespace", namespace, *options)
    secret = next(obj for obj in made.values() if obj["kind"] == "Secret" and "data" in obj)
    kubeconfig = base64.b64decode(secret["data"]["kubeconfig"]).decode()
    remotes = [{"name": "near", "existingSecret": "s"}, {"name": "far", "kubeconfig": kubeconfig}]
    remotes[1] |= entry
    charted, _ = of_chart(helm, tmp_path, {"remotes": remotes}, namespace)
    found = {key: obj for key, obj in charted.items() if instance_of(obj) == "cluster-bridge-far"}
    wanted = {
        key: obj
        for key, obj in made.items()
        if key[0] not in ("Namespace", *POLICIES) and instance_of(obj)
    }
    for objects in (found, wanted):
        deployment = objects["Deployment", namespace, "cluster-bridge-far"]
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].sort()
    assert found.keys() == wanted.keys()
    for key, obj in wanted.items():
        assert found[key] == obj, key


def test_entry_changes_no_object_of_another(helm: Path, tmp_path: Path) -> None:
    one: dict[str, Any] = {"name": "one", "existingSecret": "s"}
    values: dict[str, Any] = {"remotes": [one], "offloadWebhook": True}
    before, _ = of_chart(helm, tmp_path, values)
    values["remotes"] = [{"name": "two", "existingSecret": "t"}, one]
    after, _ = of_chart(helm, tmp_path, values)
    assert {key: after[key] for key in before} == before
    assert {instance_of(after[key]) for key in after.keys() - before.keys()} == {
        "cluster-bridge-two"
    }


def test_leaving_entry_keeps_credential_and_permissions(helm: Path, tmp_path: Path) -> None:
    entry = {"name": "far", "kubeconfig": "x", "replicas": 3}
    before, hooks = of_chart(helm, tmp_path, {"remotes": [entry]})
    after, again = of_chart(helm, tmp_path, {"remotes": [{**entry, "state": "leaving"}]})
    assert hooks == again
    deployment = after["Deployment", "seen", "cluster-bridge-far"]
    assert "replicas" not in deployment["spec"], "an upgrade keeps what the Job has set"
    assert before["Deployment", "seen", "cluster-bridge-far"]["spec"].pop("replicas") == 3
    assert {key: after[key] for key in before} == before
    added = {key: after[key] for key in after.keys() - before.keys()}
    (job,) = (obj for (kind, _, _), obj in added.items() if kind == "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "cluster-bridge-far"
    assert pod["containers"][0]["args"][:2] == ["leave", "far"]
    assert "--deployment=seen/cluster-bridge-far" in pod["containers"][0]["args"]
    assert pod["volumes"] == deployment["spec"]["template"]["spec"]["volumes"]

    # Another pod template is another Job: a Job is immutable. Another entry changes nothing.
    values = {"remotes": [{**entry, "state": "leaving"}, {"name": "near", "existingSecret": "s"}]}
    with_another, _ = of_chart(helm, tmp_path, values)
    assert {key: with_another[key] for key in after} == after
    changed, _ = of_chart(helm, tmp_path, {**values, "image": "another"})
    jobs = {name for kind, _, name in after.keys() | changed.keys() if kind == "Job"}
    assert len(jobs) == 2


@pytest.mark.parametrize("name", ["f" * 48, f"{'f' * 28}.{'g' * 19}", f"{'f' * 27}--{'g' * 19}"])
def test_names_of_jobs_are_label_values(helm: Path, tmp_path: Path, name: str) -> None:
    """The Job controller labels the pods with it."""
    entry = {"name": name, "existingSecret": "s", "state": "leaving"}
    jobs = {
        key
        for objects in of_chart(helm, tmp_path, {"remotes": [entry]})
        for kind, _, key in objects
        if kind == "Job"
    }
    assert len(jobs) == 2
    for job in jobs:
        assert len(job) <= DNS_LABEL_MAX
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", job)


def test_account_reads_the_secrets_of_its_own_remote_only(helm: Path, tmp_path: Path) -> None:
    """Outside of the namespaces that are bound."""
    entries = [
        {"name": name, "kubeconfig": "x", "bind": ["shop"], "state": "leaving"} for name in "ab"
    ]
    charted, hooks = of_chart(helm, tmp_path, {"remotes": entries, "offloadWebhook": True})
    objects = charted | hooks
    roles = {
        (key[0], key[2], key[1]): [rule for rule in obj["rules"] if "secrets" in rule["resources"]]
        for key, obj in objects.items()
        if key[0] in ("Role", "ClusterRole")
    }
    granted = {
        (who["name"], namespace, secret)
        for (kind, namespace, _), obj in objects.items()
        if kind in ("RoleBinding", "ClusterRoleBinding")
        for who in obj["subjects"]
        for rule in roles[
            obj["roleRef"]["kind"],
            obj["roleRef"]["name"],
            namespace if obj["roleRef"]["kind"] == "Role" else "",
        ]
        for secret in rule.get("resourceNames", ["any"])
    }
    assert granted == {
        *((f"cluster-bridge-{name}", "seen", f"bridge-state-{name}") for name in "ab"),
        *((f"cluster-bridge-{name}", "shop", "any") for name in "ab"),
        ("cluster-bridge-release-offload", "seen", "cluster-bridge-release-offload"),
    }
    mounted = {
        (name, source["secret"]["name"])
        for (kind, _, name), obj in objects.items()
        if kind == "Deployment"
        for volume in obj["spec"]["template"]["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    }
    assert mounted == {
        (f"cluster-bridge-{name}", f"{secret}-{name}")
        for name in "ab"
        for secret in ("cluster-bridge", "bridge-state")
    }


@pytest.mark.parametrize("release", ["release", "f" * 48])
def test_webhook_of_the_chart_equals_rendered_manifests(
    helm: Path, tmp_path: Path, release: str
) -> None:
    """But for the instance label: it is the release's, and not that of a remote."""
    name = f"cluster-bridge-{release}-offload"
    args = ("--name", release, "--namespace", "seen", "--log-format", "json", "--offload-webhook")
    made = rendered(tmp_path, *args)
    component = {"app.kubernetes.io/component": "offload-webhook"}.items()
    wanted = {
        key: obj
        for key, obj in made.items()
        if component <= (obj["metadata"].get("labels") or {}).items()
    }
    values = {"offloadWebhook": True, "defaults": {"options": {"log-format": "json"}}}
    charted, _ = of_chart(helm, tmp_path, values, release=release)
    found = {
        key: obj
        for key, obj in charted.items()
        if component <= (obj["metadata"].get("labels") or {}).items()
    }
    assert found.keys() == wanted.keys()
    assert len(found) >= 9
    instance = '"app.kubernetes.io/instance": "{}"'.format
    (of_release,) = {instance_of(obj) for obj in found.values()}
    assert (of_release == name) == (len(name) <= DNS_LABEL_MAX)
    for key, obj in wanted.items():
        text = json.dumps(obj).replace(instance(f"cluster-bridge-{release}"), instance(of_release))
        assert found[key] == json.loads(text), key


@pytest.mark.parametrize("purpose", ["leave", "uninstall"])
def test_leave_has_the_permissions_of_the_command(helm: Path, tmp_path: Path, purpose: str) -> None:
    """In addition to those of the bridge."""
    entry = {"name": "far", "kubeconfig": "x", "state": "leaving"}
    charted, hooks = of_chart(helm, tmp_path, {"remotes": [entry]})
    own = hooks if purpose == "uninstall" else charted
    found = {
        (key[1], group, resource, name, verb)
        for key, obj in own.items()
        if key[0] in ("Role", "ClusterRole") and f":{purpose}" in key[2]
        for rule in obj["rules"]
        for group, resource, name, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""]), rule["verbs"]
        )
    }
    bridge = ("cluster-bridge-far",)
    needed = [
        *(permission.for_nodes(["far"]) for permission in HOME_LEAVE),
        Permission(DEPLOYMENTS, ("get",), namespace="seen", names=bridge),
        Permission(DEPLOYMENTS, ("patch",), "scale", namespace="seen", names=bridge),
        Permission(PODS, ("list",), namespace="seen"),
    ]
    assert found == {
        (
            permission.namespace,
            permission.resource.group,
            "/".join(filter(None, (permission.resource.plural, permission.subresource))),
            name,
            verb,
        )
        for permission in needed
        for name, verb in itertools.product(permission.names or ("",), permission.verbs)
    }


@pytest.mark.parametrize("url", ["", "https://docs.example/runbooks.html?v=$1:"])
def test_alerts_of_the_chart_link_to_the_runbooks_of_the_user(
    helm: Path, tmp_path: Path, url: str
) -> None:
    values = {"alerts": {"enabled": True, "runbookUrl": url}}
    charted, _ = of_chart(helm, tmp_path, values)
    expected = yaml.safe_load((MANIFESTS / "monitoring" / "rules.yaml").read_text())
    expected["metadata"]["namespace"] = "seen"
    for alert in expected["spec"]["groups"][0]["rules"] if url else ():
        del alert["annotations"]["runbook"]
        alert["annotations"]["runbook_url"] = f"{url}#{alert['alert'].lower()}"
    assert charted["PrometheusRule", "seen", "cluster-bridge"] == expected


@pytest.mark.parametrize(
    "entry",
    [
        {"existingSecret": "s"},
        {"name": "Far", "existingSecret": "s"},
        {"name": "far_away", "existingSecret": "s"},
        {"name": "f" * 49, "existingSecret": "s"},
        {"name": "far", "existingSecret": "s", "resources": 1},
        {"name": "far", "existingSecret": "s", "replica": 2},
        {"name": "far", "existingSecret": ""},
        {"name": "far", "existingSecret": "s", "state": "gone"},
        {"name": "far", "existingSecret": "s", "options": {"network": "flot"}},
        {"name": "far", "existingSecret": "s", "options": {"name": "near"}},
        {"name": "far", "existingSecret": "s", "options": {"shares": 0.5}},
    ],
    ids=lambda entry: json.dumps(list(entry.items())[-1]),
)
def test_invalid_entry_is_rejected(helm: Path, tmp_path: Path, entry: dict[str, Any]) -> None:
    done = template(helm, tmp_path, {"remotes": [entry]})
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


FAR = {"name": "far", "existingSecret": "s"}


@pytest.mark.parametrize(
    ("remotes", "values", "message"),
    [
        ([{"name": "far"}], {}, "far must have either kubeconfig or existingSecret"),
        ([{**FAR, "kubeconfig": "x"}], {}, "far must have either kubeconfig or existingSecret"),
        ([FAR, FAR], {}, "two entries have the name far"),
        (
            [{**FAR, "allNamespaces": True}],
            {"defaults": {"bind": ["shop"]}},
            "far has both allNamespaces and bind",
        ),
        (
            [{**FAR, "bind": ["shop", "seen"]}],
            {},
            "far cannot bind namespace seen, which has the credentials of all remotes",
        ),
        (
            [{**FAR, "name": "release-offload"}],
            {"offloadWebhook": True},
            "the name release-offload is that of the webhook",
        ),
    ],
    ids=[
        *("no kubeconfig", "two kubeconfigs", "same name", "all and some namespaces"),
        *("namespace of the release", "webhook"),
    ],
)
def test_contradictory_entries_are_rejected(
    helm: Path, tmp_path: Path, remotes: list[Any], values: dict[str, Any], message: str
) -> None:
    done = template(helm, tmp_path, {"remotes": remotes, **values})
    assert done.returncode != 0
    assert f"remotes: {message}" in done.stderr


def test_entry_wins_over_defaults_and_maps_are_merged(helm: Path, tmp_path: Path) -> None:
    defaults = {
        "replicas": 3,
        "bind": ["shop"],
        "relayFrom": ["shop"],
        "resources": {"limits": {"memory": "1Gi"}},
        "options": {"verbose": True, "metrics": "none", "labels": {"a": "1", "b": "1"}},
    }
    own = {
        "replicas": 1,
        "bind": [],
        "allNamespaces": True,
        "relayFrom": [],
        "resources": {"limits": {"cpu": "2"}},
        "options": {"verbose": False, "labels": {"b": "2"}, "share": 0.5},
    }
    remotes = [{"name": "a", "existingSecret": "s"}, {"name": "b", "existingSecret": "s", **own}]
    charted, _ = of_chart(helm, tmp_path, {"remotes": remotes, "defaults": defaults})

    def facts(name: str) -> tuple[Any, ...]:
        bridge = f"cluster-bridge-{name}"
        spec = charted["Deployment", "seen", bridge]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        chosen = {"--verbose", "--metrics=none", "--labels=a=1,b=1", "--labels=a=1,b=2"}
        bindings = [
            (kind, namespace)
            for kind, namespace, key in charted
            if key == f"seen:{bridge}:home-namespace" and kind.endswith("Binding")
        ]
        clients = charted["NetworkPolicy", "seen", bridge]["spec"]["ingress"][1]["from"]
        limits = container["resources"]["limits"]
        return spec["replicas"], chosen & {*container["args"]}, limits, bindings, clients

    assert facts("a") == (
        3,
        {"--verbose", "--metrics=none", "--labels=a=1,b=1"},
        {"memory": "1Gi"},
        [("RoleBinding", "shop")],
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}],
    )
    assert facts("b") == (
        1,
        {"--metrics=none", "--labels=a=1,b=2"},
        {"memory": "1Gi", "cpu": "2"},
        [("ClusterRoleBinding", "")],
        [{"namespaceSelector": {}}],
    )


def test_chart_mounts_an_existing_secret(helm: Path, tmp_path: Path) -> None:
    charted, _ = of_chart(
        helm, tmp_path, {"remotes": [{"name": "far", "existingSecret": "of-vault"}]}
    )
    assert "cluster-bridge-far" not in {name for kind, _, name in charted if kind == "Secret"}
    pod = charted["Deployment", "seen", "cluster-bridge-far"]["spec"]["template"]
    [kubeconfig, _] = pod["spec"]["volumes"][0]["projected"]["sources"]
    assert kubeconfig == {"secret": {"name": "of-vault"}}
    assert "annotations" not in pod["metadata"]


def test_values_of_every_form_are_options(helm: Path, tmp_path: Path) -> None:
    options = {
        "relay-idle-timeout": 1_000_000,
        "labels": {"a": "b", "c": "1", "d": 1_000_000, "e": True},
        "verbose": False,
        "remote-namespaces": ["x", "y"],
        "limits": {"cpu": 2, "memory": "1Gi", "pods": 1_000_000},
        "unschedulable-timeout": "5m",
    }
    entry = {"name": "far", "existingSecret": "s", "options": options}
    charted, _ = of_chart(helm, tmp_path, {"remotes": [entry]})
    pod = charted["Deployment", "seen", "cluster-bridge-far"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][-5:] == [
        "--labels=a=b,c=1,d=1000000,e=true",
        "--limits=cpu=2,memory=1Gi,pods=1000000",
        "--relay-idle-timeout=1000000",
        "--remote-namespaces=x,y",
        "--unschedulable-timeout=5m",
    ]


def test_chart_passes_helm_lint(helm: Path) -> None:
    done = run(helm, "lint", "--strict", MANIFESTS / "chart")
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
