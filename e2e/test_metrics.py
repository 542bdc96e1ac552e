"""Resource usage of pods on the virtual node, in home's metrics-server and autoscaler.

The metrics-servers run until the clusters are removed: an APIService without a server would block
the deletion of every namespace.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bridge.rbac.rbac_manifests import Account
from e2e import service_accounts
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get_one, is_ready, wait_for
from e2e.workload_manifests import pod, shell

#: Seconds until metrics exist: two scrapes of metrics-server (`e2e.clusters.metrics_server`), and
#: the kubelet's own readings are up to 15 s old.
METRICS_SECONDS = 120.0
#: Seconds between two reads of a kubelet, and the number of reads that are averaged: slightly more
#: than the time between two scrapes.
LOOK_SECONDS = 3.0
LOOKS = 5
#: Metrics from which `kubectl top pod` is computed.
CPU = "container_cpu_usage_seconds_total"
#: CPU limit of the busy pod, in cores.
LIMIT = 0.2
BURN = "while true; do :; done"
#: Uses CPU while a file exists.
BURN_ON_DEMAND = "while true; do if [ -e /tmp/burn ]; then :; else sleep 1; fi; done"


@pytest.fixture(scope="module")
def metrics_server(clusters: dict[str, Cluster]) -> None:
    """Home has a metrics-server."""
    clusters["home"].serve_metrics(print)


def busy(name: str = "busy", script: str = BURN) -> dict[str, Any]:
    """A container that uses all of its CPU limit."""
    limits = {"cpu": f"{LIMIT * 1000:.0f}m", "memory": "64Mi"}
    return shell(name, script, resources={"requests": {"cpu": "100m"}, "limits": limits})


def raw(cluster: Cluster, path: str, *args: str) -> str:
    """The response of an API server."""
    return cluster.kubectl("get", "--raw", path, *args).stdout


def kubelet(cluster: Cluster, node: str, path: str) -> str:
    """The response of a node's kubelet, through its API server."""
    return raw(cluster, f"/api/v1/nodes/{node}/proxy{path}")


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def sample(text: str, name: str, **labels: str) -> tuple[float, float] | None:
    """Value and time of the sample with these labels; None if there is none."""
    for family in text_string_to_metric_families(text):
        for it in family.samples:
            if it.name == name and labels.items() <= it.labels.items():
                return it.value, float(it.timestamp or 0)
    return None


def cores(text: str) -> float:
    """Parses ``123m`` or ``2`` of `kubectl top`."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def top(bridged: Bridged) -> dict[str, float]:
    """`kubectl top pod`: name → cores."""
    lines = bridged.kubectl("top", "pod", "--no-headers", check=False).splitlines()
    return {name: cores(cpu) for name, cpu, _ in map(str.split, lines)}


def agrees(bridged: Bridged, name: str, *, node: bool = False) -> None:
    """Waits until `kubectl top pod` (and `top node`) shows the usage that the remote's kubelet
    measures for the pod's container. On a busy machine that is less than the limit."""
    (machine,) = bridged.remote.node_names
    looks: list[tuple[float, float]] = []

    def agree() -> bool:
        time.sleep(LOOK_SECONDS)
        theirs = kubelet(bridged.remote, machine, "/metrics/resource")
        labels = {"container": name, "pod": name, "namespace": bridged.remote_namespace}
        looks.append(sample(theirs, CPU, **labels) or (0.0, 0.0))
        (seconds, now), (before, then) = looks[-1], looks[-LOOKS:][0]
        if len(looks) < LOOKS or now == then:
            return False
        counted = pytest.approx((seconds - before) / (now - then), rel=0.3)
        print(f"the remote's kubelet counts {counted} cores; kubectl top: {top(bridged)}")
        if node and top_node(bridged) != counted:
            return False
        return 0 < top(bridged).get(name, 0.0) == counted

    wait_for(agree, f"kubectl top agrees on {name}", seconds=METRICS_SECONDS)


def top_node(bridged: Bridged) -> float:
    """`kubectl top node` of the virtual node: cores; 0 if unknown."""
    columns = bridged.kubectl("top", "node", bridged.node, "--no-headers", check=False).split()
    return cores(columns[1]) if columns else 0.0


def run(bridged: Bridged, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    """Runs a pod on the virtual node until it is ready."""
    bridged.apply(pod(bridged.node, name, containers=list(containers), **spec))
    bridged.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


@pytest.fixture
def foreign(remote: Cluster) -> Iterator[str]:
    """An unmanaged pod in the remote."""
    name = "unmanaged"
    body = json.loads(pod("", name))
    del body["spec"]["nodeSelector"]
    body["spec"]["containers"][0]["livenessProbe"] = {"exec": {"command": ["true"]}}
    remote.kubectl("apply", "-n", "default", "-f", "-", input=json.dumps(body))
    remote.kubectl("wait", "-n", "default", "--for=condition=Ready", f"pod/{name}")
    yield name
    remote.kubectl("delete", "pod", "-n", "default", name, "--wait=false")


@pytest.mark.core
@pytest.mark.usefixtures("metrics_server")
def test_kubectl_top_equals_the_remote_kubelets_metrics(bridged: Bridged, foreign: str) -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    run(bridged, "busy", {**busy(), "livenessProbe": probe}, shell("idle", "sleep 3600"))

    agrees(bridged, "busy", node=True)
    by_container = bridged.kubectl("top", "pod", "busy", "--containers", "--no-headers")
    assert {line.split()[1] for line in by_container.splitlines()} == {"busy", "idle"}
    known = bridged.kubectl("top", "node", "--no-headers")
    assert bridged.home.node_names[0] in known, "home's own node is known as ever"

    (machine,) = bridged.remote.node_names
    for path in ("/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/stats/summary"):
        theirs = kubelet(bridged.remote, machine, path)
        ours = kubelet(bridged.home, bridged.node, path)
        assert foreign in theirs, path
        assert "busy" in ours, path
        assert foreign not in ours, path
        assert bridged.remote_namespace not in ours, path
    for path in ("/pods", "/runningpods/"):
        listed = json.loads(kubelet(bridged.home, bridged.node, path))["items"]
        found = {(it["metadata"]["namespace"], it["metadata"]["name"]) for it in listed}
        # DaemonSets of home may have a pod on every node; no other pod is on this one.
        assert {it for it in found if it[0] != "kube-system"} == {(bridged.namespace, "busy")}, path


@pytest.mark.usefixtures("metrics_server")
def test_an_autoscaler_follows_the_load_up_and_down(bridged: Bridged) -> None:
    template = json.loads(pod(bridged.node, "web", containers=[busy("web", BURN_ON_DEMAND)]))
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    # On a busy machine a busy pod gets much less than its limit; an idle one needs a tenth of this.
    target = {"type": "AverageValue", "averageValue": "10m"}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }
    bridged.apply(json.dumps(deployment))
    bridged.kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
    bridged.apply(json.dumps(autoscaler))

    def running() -> int:
        return sum(map(is_ready, bridged.remote_pods()))

    bridged.kubectl("exec", "deployment/web", "--", "touch", "/tmp/burn")
    wait_for(lambda: running() == 3, "3 pods run in the remote", seconds=METRICS_SECONDS)
    for each in bridged.home_pods():
        name = str(each["metadata"]["name"])
        bridged.kubectl("exec", name, "--", "rm", "-f", "/tmp/burn")
    wait_for(lambda: running() == 1, "1 pod is left", seconds=METRICS_SECONDS)


def test_metrics_require_permission(bridged: Bridged) -> None:
    run(bridged, "idle", shell("idle", "sleep 3600"))
    rules = ["--verb=get", "--resource=nodes/metrics,nodes/stats"]
    role = f"reads-{bridged.node}"
    bridged.kubectl("create", "serviceaccount", "reader")
    account = f"{bridged.namespace}:reader"
    node = get_one(bridged.home, "node", bridged.node)
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    (address,) = [it["address"] for it in node["status"]["addresses"] if it["type"] == "InternalIP"]

    def ask(path: str) -> tuple[str, str]:
        token = bridged.kubectl("create", "token", "reader").strip()
        done = subprocess.run(
            ["curl", "-sk", "-w", "\n%{http_code}", "-H", "@-", f"https://{address}:{port}{path}"],
            input=f"Authorization: Bearer {token}\n",
            capture_output=True,
            text=True,
            check=True,
        )
        body, _, code = done.stdout.rpartition("\n")
        return code, body

    code, sentence = ask("/metrics/resource")
    assert (code, "may not get nodes/metrics" in sentence) == ("403", True)
    bridged.home.kubectl("create", "clusterrole", role, *rules)
    try:
        bridged.home.kubectl(
            "create",
            "clusterrolebinding",
            role,
            f"--clusterrole={role}",
            f"--serviceaccount={account}",
        )
        # A kubelet caches rejected requests for half a minute.
        wait_for(lambda: ask("/metrics/resource")[0] == "200", "the right counts")
        assert "idle" in ask("/stats/summary")[1]
        assert ask("/pods")[0] == "403"
        own = families(ask("/metrics")[1])
        (running,) = [it for it in own["bridge_pods"].samples if it.labels["phase"] == "Running"]
        assert running.value == 1
        assert {"bridge_api_requests", "process_cpu_seconds"} <= own.keys()
    finally:
        for kind in ("clusterrolebinding", "clusterrole"):
            bridged.home.kubectl("delete", kind, role, "--ignore-not-found")


@pytest.mark.usefixtures("metrics_server")
def test_metrics_api_is_used_without_permission_for_kubelets(
    bridged: Bridged, tmp_path: Path
) -> None:
    bridged.remote.serve_metrics(print)
    bridged.bridge.stop()
    own = Account("default", bridged.node)
    remote = service_accounts.granted(
        bridged.remote, tmp_path, "remote", "--metrics", "api", account=own
    )
    bridge = Bridge(bridged.bridge.home, remote, bridged.bridge.log, bridged.bridge.args)
    try:
        bridge.start()
        assert "its metrics API serves resource metrics" in bridge.log.read_text()
        run(bridged, "busy", busy())
        agrees(bridged, "busy")
        for path in ("/metrics/cadvisor", "/metrics/probes", "/metrics/slis"):
            lines = kubelet(bridged.home, bridged.node, path).splitlines()
            assert all(line.startswith("#") for line in lines), "a scrape succeeds, and is empty"
        bridged.kubectl("delete", "pod", "busy")
    finally:
        bridge.kill()
        service_accounts.take_away(bridged.remote, own)
