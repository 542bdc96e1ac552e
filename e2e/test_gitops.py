"""The manifests for GitOps tools fit the definitions of Flux and Argo CD, and Argo CD reverts
nothing that the bridges write. The programs' first build takes minutes.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bridge.node.lease_namespace import NAMESPACE
from e2e import background_process, certificate_approver, helm_chart
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.versions import ARGO_CD, DEFAULT_KUBERNETES, HELM_CONTROLLER, SOURCE_CONTROLLER
from e2e.kubectl import Json, create_namespace, get, get_one, uids, wait_for, wait_for_definitions

MANIFESTS = Path(__file__).parent.parent / "manifests"
FLUX = MANIFESTS / "gitops" / "flux.yaml"
ARGO = MANIFESTS / "gitops" / "argocd.yaml"
#: The Secret with the remote's kubeconfig.
SECRET = "remote-kubeconfig"
#: Modules with their version, the Go release that downloads them, and their definitions.
DEFINITIONS = (
    (
        go_recipes.HELM_CONTROLLER_MODULE,
        HELM_CONTROLLER,
        OLDEST,
        ("config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",),
    ),
    (
        "github.com/fluxcd/source-controller",
        SOURCE_CONTROLLER,
        OLDEST,
        ("config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",),
    ),
    (
        go_recipes.ARGO_CD_MODULE,
        ARGO_CD,
        go_recipes.ARGO_CD_GO,
        [
            f"manifests/crds/{kind}-crd.yaml"
            for kind in ("application", "applicationset", "appproject")
        ],
    ),
)
#: Seconds for bridges that start or leave.
PATIENCE = 120.0


@pytest.fixture(scope="module")
def defined(clusters: dict[str, Cluster]) -> Iterator[None]:
    """The home cluster has the definitions of Flux and Argo CD."""
    home, cache = clusters["home"], settings_from_environment().cache
    texts = [
        (find_go(cache, go, print).fetch(module, of_module).folder / file).read_text()
        for module, of_module, go, files in DEFINITIONS
        for file in files
    ]
    text = "---\n".join(texts)
    home.kubectl("apply", "--server-side", "-f", "-", input=text)
    try:
        wait_for_definitions(home, "-f", "-", text=text)
        yield
    finally:
        home.kubectl("delete", "--ignore-not-found", "-f", "-", input=text, timeout=120)


class Release(helm_chart.Release):
    """A release whose objects are applied without Helm."""

    def rendered(self, **states: str) -> list[Json]:
        """The objects as Argo CD has Helm render them, but for hooks and the namespace that the
        bridges of other tests share."""
        values = self.values_of("node", {"existingSecret": SECRET}, states)
        values["offloadWebhook"] = True
        command = (self.helm, "template", "bridges", MANIFESTS / "chart", "--no-hooks")
        # Without a cluster, Helm assumes its own Kubernetes version.
        version = ("--kube-version", DEFAULT_KUBERNETES)
        options = ("--namespace", self.place, "--values", "-", *version)
        text = run(*command, *options, text=json.dumps(values))
        found = filter(None, yaml.safe_load_all(text))
        return [document for document in found if document["kind"] != "Namespace"]

    def written(self, name: str) -> Json:
        """The fields that the bridge and the webhook write into objects of the release; {} until
        both have."""
        state = get_one(
            self.home, "secret", f"bridge-state-{self.node(name)}", namespace=self.place
        )
        webhook = "cluster-bridge-bridges-offload"
        certificate = get_one(self.home, "secret", webhook, namespace=self.place)
        configuration = get_one(self.home, "mutatingwebhookconfigurations", webhook)
        (called,) = configuration["webhooks"]
        found = {
            "state": state.get("data"),
            "certificate": certificate.get("data"),
            "bundle": called["clientConfig"].get("caBundle"),
        }
        return found if all(found.values()) else {}


def listed(objects: list[Json]) -> str:
    """Input of kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def run(*command: str | Path, text: str = "") -> str:
    """The program's output."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def release(
    helm: Path, loaded: str, home: Cluster, remote: Cluster, node_name: str
) -> Iterator[Release]:
    """A release that is not installed yet; removed afterwards."""
    digits = node_name.rpartition("-")[2]
    found = Release(helm, home, remote, node_name, f"bridges-{digits}", f"test-{digits}", loaded)
    meta = {"name": SECRET, "namespace": found.place}
    content = {"kubeconfig": helm_chart.portable_kubeconfig(remote)}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": content}
    with found.namespaces():
        home.kubectl("apply", "-f", "-", input=json.dumps(secret))
        try:
            with certificate_approver.approving(home):
                yield found
        finally:
            delete = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
            home.kubectl(*delete, input=listed(found.rendered(a="leaving", b="joined")))


def documents(file: Path, namespace: str) -> list[Json]:
    """The objects of the manifest, in that namespace."""
    found: list[Json] = list(yaml.safe_load_all(file.read_text()))
    for document in found:
        document["metadata"]["namespace"] = namespace
    return found


@pytest.mark.parametrize("file", [FLUX, ARGO], ids=["flux", "argocd"])
@pytest.mark.usefixtures("defined")
def test_manifests_fit_the_definitions(home: Cluster, file: Path) -> None:
    def applied(objects: list[Json]) -> subprocess.CompletedProcess[str]:
        dry = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
        return home.kubectl(*dry, input=listed(objects), check=False)

    objects = documents(file, "default")
    done = applied(objects)
    assert done.returncode == 0, done.stderr
    for document in objects:
        wrong = copy.deepcopy(document)
        wrong["spec"]["unknown"] = "field"
        assert "unknown field" in applied([wrong]).stderr


@pytest.fixture
def argo_cd(home: Cluster, node_name: str, defined: None, tmp_path: Path) -> Iterator[str]:
    """The real controller of ApplicationSets, for the namespace that the block gets."""
    cache = settings_from_environment().cache
    program = go_build.programs(go_recipes.argo_cd(), cache, silent) / "argocd"
    place = f"argocd-{node_name}"
    create_namespace(home, place)
    labels = {"app.kubernetes.io/part-of": "argocd"}
    anything = [{"namespace": "*", "server": "*"}]
    for kind, name, fields in (
        ("ConfigMap", "argocd-cm", {}),
        ("Secret", "argocd-secret", {"stringData": {"server.secretkey": "any"}}),
        ("AppProject", "default", {"spec": {"sourceRepos": ["*"], "destinations": anything}}),
    ):
        api = "argoproj.io/v1alpha1" if kind == "AppProject" else "v1"
        meta = {"name": name, "namespace": place, "labels": labels}
        document = {"apiVersion": api, "kind": kind, "metadata": meta, **fields}
        home.kubectl("apply", "-f", "-", input=json.dumps(document))
    env = {
        "ARGOCD_BINARY_NAME": "argocd-applicationset-controller",
        "KUBECONFIG": str(home.kubeconfig),
    }
    addresses = ("--metrics-addr=0", "--probe-addr=127.0.0.1:0", "--webhook-addr=127.0.0.1:0")
    log = tmp_path / "argocd.log"
    command: list[str | Path] = [program, f"--namespace={place}", *addresses]
    try:
        with background_process.running(command, log, env=env):
            yield place
    finally:
        print(log.read_text()[-8000:])
        for name in uids(get(home, "applications", namespace=place)):
            patch = ("patch", "application", name, "-n", place, "--type=merge")
            home.kubectl(*patch, "-p", '{"metadata":{"finalizers":null}}')
        home.kubectl("delete", "namespace", place, "--wait=false")


def test_application_set_passes_the_list_to_one_release(home: Cluster, argo_cd: str) -> None:
    (document,) = documents(ARGO, argo_cd)
    (element,) = document["spec"]["generators"][0]["list"]["elements"]
    home.kubectl("apply", "-f", "-", input=json.dumps(document))

    found = wait_for(
        lambda: get_one(home, "application", "bridges-main", namespace=argo_cd),
        "the controller has created the Application",
    )
    assert json.loads(found["spec"]["source"]["helm"]["values"]) == element["values"]
    assert found["spec"]["destination"]["server"] == element["server"]
    assert uids(get(home, "applications", namespace=argo_cd)).keys() == {"bridges-main"}


@pytest.fixture(scope="module")
def argo_cd_diff() -> Path:
    """Argo CD's own comparison as a program; its first build counts for no test."""
    cache = settings_from_environment().cache
    return go_build.programs(go_recipes.argo_cd_diff(), cache, silent) / "argo-cd-diff"


def test_argo_cd_finds_nothing_to_heal(release: Release, argo_cd_diff: Path) -> None:
    home = release.home

    def applied(state: str) -> list[Json]:
        objects = release.rendered(b=state)
        home.kubectl("apply", "-f", "-", input=listed(objects))
        return objects

    shared = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    home.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(shared))

    joined = applied("joined")
    wait_for(lambda: release.is_node_ready("b"), "the node is Ready", seconds=PATIENCE)
    wait_for(lambda: release.written("b"), "the bridge and the webhook have written")

    def out_of_sync(desired: list[Json]) -> list[Json]:
        found = home.kubectl("get", "-o", "json", "-f", "-", input=listed(desired)).stdout
        live = json.loads(found)["items"]
        assert len(live) == len(desired)
        output = run(argo_cd_diff, text=json.dumps({"desired": desired, "live": live}))
        return [json.loads(line) for line in output.splitlines()]

    assert out_of_sync(joined) == []
    deployment = ("deployment", f"cluster-bridge-{release.node('b')}", "-n", release.place)
    home.kubectl("patch", *deployment, "-p", '{"spec":{"revisionHistoryLimit":7}}')
    (changed,) = out_of_sync(joined)
    assert changed["live"]["metadata"]["name"] == deployment[1]
    assert changed["predicted"]["spec"]["revisionHistoryLimit"] == 3

    leaving = applied("leaving")
    wait_for(lambda: release.nodes() == set(), "the node has left", seconds=PATIENCE)
    assert out_of_sync(leaving) == []
