"""The manifests for GitOps tools fit the definitions of Flux and Argo CD, the real helm-controller
makes a release of one, and neither tool reverts what the bridges write.

The test stands in for Flux's source-controller: it serves the chart as the artifact of the
HelmChart that helm-controller creates. The programs' first build takes minutes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from bridge.base.version import version
from bridge.node.lease_namespace import NAMESPACE
from e2e import background_process, bridge_process, certificate_approver, helm_chart
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.versions import ARGO_CD, DEFAULT_KUBERNETES, HELM_CONTROLLER, SOURCE_CONTROLLER
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.release import manifest_archives
from e2e.workload_manifests import busybox

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
        # helm-controller watches them all.
        [
            f"config/crd/bases/source.toolkit.fluxcd.io_{plural}.yaml"
            for plural in ("gitrepositories", "helmcharts", "ocirepositories")
        ],
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
#: Flux retries a failed release later than the other tests wait.
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
        home.kubectl("wait", "--for=condition=Established", "-f", "-", "--timeout=60s", input=text)
        yield
    finally:
        home.kubectl("delete", "--ignore-not-found", "-f", "-", input=text, timeout=120)


@dataclass(frozen=True)
class Release:
    """A release of the chart, whose nodes have the remote cluster behind them."""

    home: Cluster
    prefix: str
    """Of the names of the nodes."""
    place: str
    """Namespace of the release."""
    namespace: str
    """Namespace of the workloads."""
    image: str

    def values(self, **states: str) -> Json:
        """Values with these entries and their states."""
        remotes = [
            {"name": self.node(name), "existingSecret": SECRET, "state": state}
            for name, state in states.items()
        ]
        options = {"home-name": "e2e", "home-identity": "node"}
        defaults = {"replicas": 1, "bind": [self.namespace], "options": options}
        return {
            "image": self.image,
            "remotes": remotes,
            "defaults": defaults,
            "offloadWebhook": True,
        }

    def node(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def rendered(self, **states: str) -> list[Json]:
        """The objects as Argo CD has Helm render them, but for hooks and the namespace that the
        bridges of other tests share."""
        command = (helm_chart.program(), "template", "bridges", MANIFESTS / "chart", "--no-hooks")
        # Without a cluster, Helm assumes its own Kubernetes version.
        version = ("--kube-version", DEFAULT_KUBERNETES)
        options = ("--namespace", self.place, "--values", "-", *version)
        text = run(*command, *options, text=json.dumps(self.values(**states)))
        found = filter(None, yaml.safe_load_all(text))
        return [document for document in found if document["kind"] != "Namespace"]

    def is_node_ready(self, name: str) -> bool:
        return is_ready(get_one(self.home, "node", self.node(name)))

    def nodes(self) -> set[str]:
        """The nodes that exist."""
        found = uids(get(self.home, "nodes", selector="cluster-bridge.io/virtual-node"))
        return {name for name in found if name.startswith(self.prefix)}

    def written(self, name: str) -> Json:
        """The fields that the bridge and the webhook write into objects of the release, once both
        have."""
        state = get_one(
            self.home, "secret", f"bridge-state-{self.node(name)}", namespace=self.place
        )
        webhook = "cluster-bridge-bridges-offload"
        certificate = get_one(self.home, "secret", webhook, namespace=self.place)
        configuration = get_one(self.home, "mutatingwebhookconfigurations", webhook)
        (called,) = configuration["webhooks"]
        return {
            "state": state["data"],
            "certificate": certificate["data"],
            "bundle": called["clientConfig"]["caBundle"],
        }


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
def release(loaded: str, home: Cluster, remote: Cluster, node_name: str) -> Iterator[Release]:
    """A release that is not installed yet; removed afterwards."""
    digits = node_name.rpartition("-")[2]
    found = Release(home, node_name, f"bridges-{digits}", f"test-{digits}", loaded)
    for name in (found.place, found.namespace):
        create_namespace(home, name)
    meta = {"name": SECRET, "namespace": found.place}
    content = {"kubeconfig": helm_chart.portable_kubeconfig(remote)}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": content}
    home.kubectl("apply", "-f", "-", input=json.dumps(secret))
    try:
        with certificate_approver.approving(home):
            yield found
    finally:
        delete = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
        home.kubectl(*delete, input=listed(found.rendered(a="leaving", b="joined")))
        for name in found.nodes():
            leave = ("leave", name, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
            bridge_process.run(*leave, home=home)
        for name in (found.place, found.namespace):
            home.kubectl("delete", "namespace", name, "--wait=false")


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


@contextmanager
def serving(chart: bytes, folder: Path) -> Iterator[Json]:
    """Serves the chart, as source-controller does, and describes the artifact."""
    (folder / "chart.tgz").write_bytes(chart)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {
                "path": "chart.tgz",
                "url": f"http://127.0.0.1:{server.server_port}/chart.tgz",
                "revision": version(),
                "digest": f"sha256:{hashlib.sha256(chart).hexdigest()}",
                "lastUpdateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Flux:
    """The HelmRelease of the manifest, in the namespace of the release."""

    release: Release

    def apply(self, **states: str) -> None:
        """Applies the HelmRelease with these entries and their states."""
        source, helm_release = documents(FLUX, self.release.place)
        helm_release["spec"]["values"] = self.release.values(**states)
        for document in (source, helm_release):
            self.release.home.kubectl("apply", "-f", "-", input=json.dumps(document))

    def serve(self, artifact: Json) -> None:
        """Reports the chart's artifact, as source-controller does."""
        place = self.release.place
        name = f"{place}-bridges"
        chart = wait_for(
            lambda: get_one(self.release.home, "helmchart", name, namespace=place),
            "helm-controller has created the HelmChart",
        )
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "ChartPackageSucceeded",
            "message": "",
            "lastTransitionTime": artifact["lastUpdateTime"],
        }
        generation = chart["metadata"]["generation"]
        status = {"artifact": artifact, "conditions": [ready], "observedGeneration": generation}
        patch = ("patch", "helmchart", name, "-n", place, "--subresource=status", "--type=merge")
        self.release.home.kubectl(*patch, "-p", json.dumps({"status": status}))

    def is_ready(self) -> bool:
        """Whether the HelmRelease is up to date and Ready."""
        found = get_one(self.release.home, "helmrelease", "bridges", namespace=self.release.place)
        observed = found["status"].get("observedGeneration")
        return observed == found["metadata"]["generation"] and is_ready(found)

    def exists(self) -> bool:
        place = self.release.place
        return "bridges" in uids(get(self.release.home, "helmreleases", namespace=place))

    def delete(self) -> None:
        flags = ("helmrelease", "bridges", "-n", self.release.place, "--ignore-not-found")
        self.release.home.kubectl("delete", *flags, "--wait=false")


@pytest.fixture
def flux(release: Release, defined: None, tmp_path: Path) -> Iterator[Flux]:
    """The real helm-controller, for this namespace only."""
    cache, home = settings_from_environment().cache, release.home
    program = go_build.programs(go_recipes.helm_controller(), cache, silent) / "helm-controller"
    options = ("--watch-all-namespaces=false", "--metrics-addr=0", "--health-addr=127.0.0.1:0")
    env = {"KUBECONFIG": str(home.kubeconfig), "RUNTIME_NAMESPACE": release.place}
    log = tmp_path / "helm-controller.log"
    found = Flux(release)
    served = tmp_path / "served"
    served.mkdir()
    chart = manifest_archives.chart(MANIFESTS, 1)
    try:
        with (
            serving(chart, served) as artifact,
            background_process.running([program, *options], log, env=env),
        ):
            found.apply(a="joined", b="joined")
            found.serve(artifact)
            yield found
    finally:
        print(log.read_text()[-8000:])
        if found.exists():
            found.delete()
            keep = ("patch", "helmrelease", "bridges", "-n", release.place, "--type=merge")
            home.kubectl(*keep, "-p", '{"metadata":{"finalizers":null}}')


def test_flux_makes_corrects_and_removes_the_release(flux: Flux) -> None:
    release = flux.release
    home, place = release.home, release.place
    wait_for(flux.is_ready, "the HelmRelease is Ready", seconds=PATIENCE)
    wait_for(lambda: all(map(release.is_node_ready, "ab")), "both nodes are Ready")
    manifest = busybox(release.node("b"), "held", "sleep 3600")
    home.kubectl("apply", "-n", release.namespace, "-f", "-", input=manifest)
    home.kubectl(
        *("wait", "--for=condition=Ready", "pod/held", "-n", release.namespace, "--timeout=60s")
    )

    # Flux corrects fields of the chart, and keeps those that the bridges write.
    written = wait_for(lambda: release.written("a"), "the bridge and the webhook have written")
    deployment = ("deployment", f"cluster-bridge-{release.node('a')}", "-n", place)
    home.kubectl("patch", *deployment, "-p", '{"spec":{"revisionHistoryLimit":7}}')
    request = "reconcile.fluxcd.io/requestedAt=now"
    home.kubectl("annotate", "helmrelease", "bridges", "-n", place, request)

    def limit() -> int:
        found: int = get_one(home, *deployment[:2], namespace=place)["spec"]["revisionHistoryLimit"]
        return found

    wait_for(lambda: limit() == 3, "Flux has corrected the Deployment")
    assert release.written("a") == written

    flux.apply(a="leaving", b="joined")
    wait_for(lambda: release.nodes() == {release.node("b")}, "the node has left", seconds=PATIENCE)
    wait_for(flux.is_ready, "the HelmRelease is Ready", seconds=PATIENCE)

    # The chart's hook leaves the remotes that are still in the list.
    flux.delete()
    wait_for(lambda: not flux.exists(), "the HelmRelease was removed", seconds=PATIENCE)
    assert release.nodes() == set()


def test_argo_cd_finds_nothing_to_heal(release: Release) -> None:
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

    cache = settings_from_environment().cache
    program = go_build.programs(go_recipes.argo_cd_diff(), cache, silent) / "argo-cd-diff"

    def out_of_sync(desired: list[Json]) -> list[Json]:
        found = home.kubectl("get", "-o", "json", "-f", "-", input=listed(desired)).stdout
        live = json.loads(found)["items"]
        assert len(live) == len(desired)
        output = run(program, text=json.dumps({"desired": desired, "live": live}))
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
