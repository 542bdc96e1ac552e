"""Namespaces whose unmodified pods run on virtual nodes."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import shell
from tests.translators.test_offload_admission_patch import SELECTOR, SPECS, TIERS, applied
from translators import offload_admission_patch
from translators.capacity import pod_requests
from translators.offload_admission_patch import Offloading, admission_patch, selector_text
from translators.ownership_labels import LABEL_VOLUME_COPY

LABEL = "cluster-bridge.io/offload"
OURS = "mutatingwebhookconfigurations,mutatingadmissionpolicies,mutatingadmissionpolicybindings"
#: Divisor of the free capacity of home's node for one pod: three fit, and no fourth.
PART = 0.3


def _bridge(home: Cluster, *args: str) -> Json:
    """Runs a command to its end; its output."""
    done = bridge_process.run(*args, "-o", "json", home=home)
    assert done.returncode == 0, done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


def _pod(name: str, **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [shell("main", "sleep 3600")],
                **spec,
            },
        }
    )


def _deployment(replicas: int, cpu: str) -> str:
    container = {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": cpu}}}
    template = {
        "metadata": {"labels": {"app": "big"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "big"}}, "template": template}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "big"}, "spec": spec}
    )


def _own_node(home: Cluster) -> Json:
    return next(it for it in get(home, "nodes") if "type" not in it["metadata"]["labels"])


def _cpu_left(home: Cluster, node: Json) -> int:
    """Free CPU of home's own node, in millicores."""
    name = node["metadata"]["name"]
    bound = [
        it for it in get(home, "pods", all_namespaces=True) if it["spec"].get("nodeName") == name
    ]
    taken = sum(pod_requests.requests_of(it).get("cpu", 0) for it in bound)
    return pod_requests.parse_resource_list(node["status"]["allocatable"])["cpu"] - taken


def _places(bridged: Bridged) -> dict[str, str]:
    return {it["metadata"]["name"]: it["spec"].get("nodeName", "") for it in bridged.home_pods()}


def _ran_on(bridged: Bridged, name: str) -> str:
    """The node of a new pod."""
    wait_for(
        lambda: is_ready(get_one(bridged.home, "pod", name, namespace=bridged.namespace)),
        f"{name} runs",
    )
    return _places(bridged)[name]


def _left(home: Cluster) -> list[str]:
    """Remaining objects of offloading in the cluster."""
    found = get(home, OURS)
    labelled = get(home, "namespaces", selector=LABEL)
    return [it["metadata"]["name"] for it in (*found, *labelled)]


@pytest.mark.core
def test_offloaded_namespace_bursts_and_can_be_undone(bridged: Bridged) -> None:
    home, namespace, node = bridged.home, bridged.namespace, bridged.node
    own = _own_node(home)
    here = own["metadata"]["name"]
    chosen = ("--node-selector", f"kubernetes.io/hostname={node}")

    answer = _bridge(home, "offload", namespace, *chosen)
    assert (answer["policy"], answer["by"]) == ("burst", "policy")
    assert _bridge(home, "offload", namespace, *chosen)["written"] == []
    cpu = f"{int(_cpu_left(home, own) * PART)}m"
    bridged.apply(_deployment(2, cpu))
    wait_for(lambda: sum(map(is_ready, bridged.home_pods())) == 2, "two run")
    assert set(_places(bridged).values()) == {here}, "local first"
    bridged.apply(_deployment(5, cpu))
    wait_for(lambda: sum(map(is_ready, bridged.home_pods())) == 5, "five run")
    assert sorted(_places(bridged).values()) == sorted([here] * 3 + [node] * 2), "remote when full"
    bridged.kubectl("delete", "deployment", "big", "--wait=false")
    wait_for(lambda: not bridged.home_pods(), "the pods were deleted")

    _bridge(home, "offload", namespace, "--policy", "remote-only", *chosen)
    bridged.apply(_pod("must"))
    assert _ran_on(bridged, "must") == node

    _bridge(home, "offload", namespace, "--policy", "local-only")
    wish = {
        "nodeSelector": {"cluster-bridge.io/virtual-node": "true"},
        "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
    }
    bridged.apply(_pod("may-not", **wish))
    assert _ran_on(bridged, "may-not") == here

    assert _bridge(home, "unoffload", namespace)["others"] == []
    assert _left(home) == []
    assert _bridge(home, "unoffload", namespace)["written"] == []
    bridged.apply(_pod("plain"))
    assert _ran_on(bridged, "plain") == here
    plain = get_one(home, "pod", "plain", namespace=namespace)
    assert "cluster-bridge.io" not in json.dumps(plain["spec"])
    assert _places(bridged)["must"] == node, "what is there stays"


def _documents(text: str) -> Iterator[Json]:
    """Concatenated JSON objects, as printed by kubectl."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, end = decoder.raw_decode(text[at:].lstrip())
        at += len(text[at:]) - len(text[at:].lstrip()) + end
        yield found


def _normal(spec: Json) -> Json:
    """The scheduling fields of a spec, with requirements in a canonical order."""
    spec = copy.deepcopy(spec)
    kept: Json = {
        "tolerations": [
            it for it in spec.get("tolerations", ()) if "node.kubernetes.io" not in it["key"]
        ],
        "nodeSelector": spec.get("nodeSelector") or {},
        "affinity": spec.get("affinity") or {},
    }
    nodes = kept["affinity"].get("nodeAffinity") or {}
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms", ()):
        term["matchExpressions"] = sorted(map(json.dumps, term.get("matchExpressions") or ()))
    return kept


#: As in the unit tests, without fields that an API server does not know.
VALID = [it for it in SPECS if "new" not in json.dumps(it)]


def _given() -> list[Json]:
    extra = {"preferredDuringSchedulingIgnoredDuringExecution": [_SPREAD]}
    specs = [json.loads(json.dumps(it).replace('"values": "x"', '"values": ["x"]')) for it in VALID]
    return [*specs, {"affinity": {"podAntiAffinity": extra}}]


_SPREAD = {
    "weight": 7,
    "podAffinityTerm": {"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}},
}


@pytest.mark.parametrize(
    ("nodes", "tiers", "pods"),
    [
        pytest.param({}, (), {}, id="all"),
        pytest.param(SELECTOR, (), {}, id="some nodes"),
        pytest.param({}, TIERS, {"app": "a"}, id="tiers, for pods that are selected"),
        pytest.param({}, TIERS, {"app": "b"}, id="tiers, for pods that are not selected"),
    ],
)
def test_admission_policy_equals_the_translation(
    clusters: dict[str, Cluster],
    node_name: str,
    nodes: dict[str, str],
    tiers: tuple[dict[str, str], ...],
    pods: dict[str, str],
) -> None:
    """The CEL policy and the webhook's function, on the same pods."""
    home = clusters["home"]
    for policy in offload_admission_patch.POLICIES:
        namespace = f"{policy}-{node_name}"
        home.kubectl("create", "namespace", namespace)
        try:
            some = policy != "local-only"
            wanted = Offloading(policy, nodes if some else {}, tiers if some else (), pods)
            _bridge(home, "offload", namespace, "--policy", policy, *_options(wanted))
            given = [json.loads(_pod(f"p{n}", **spec)) for n, spec in enumerate(_given())]
            for pod in given:
                pod["metadata"]["labels"] = {"app": "a"}
            given.append(json.loads(_pod("copies")))
            given[-1]["metadata"]["labels"] = {"app": "a", LABEL_VOLUME_COPY: "run"}
            listed = {"apiVersion": "v1", "kind": "List", "items": given}
            answer = home.kubectl(
                *("create", "--dry-run=server", "-o", "json", "-n", namespace, "-f", "-"),
                input=json.dumps(listed),
            ).stdout
            for before, after in zip(given, _documents(answer), strict=True):
                translated = applied(before, admission_patch(before, wanted))
                assert _normal(after["spec"]) == _normal(translated["spec"]), (policy, before)
                assert admission_patch(after, wanted) == []
        finally:
            _bridge(home, "unoffload", namespace)
            home.kubectl("delete", "namespace", namespace, "--wait=false")
    assert _left(home) == []


def _options(offloading: Offloading) -> Iterator[str]:
    if offloading.nodes:
        yield f"--node-selector={selector_text(offloading.nodes)}"
    yield from (f"--tier={selector_text(tier)}" for tier in offloading.tiers)
    if offloading.pods:
        yield f"--pod-selector={selector_text(offloading.pods)}"


@contextmanager
def _webhook(home: Cluster, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running webhook; killed at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [bridge_process.BRIDGE, "webhook", "--port", "0", "--home-kubeconfig", home.kubeconfig],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "listens on" in log.read_text(), "the webhook listens")
        yield process
    finally:
        process.kill()
        process.wait()
        print(log.read_text())


def test_webhook_changes_pods_without_an_admission_policy(bridged: Bridged, tmp_path: Path) -> None:
    home, namespace, node = bridged.home, bridged.namespace, bridged.node
    chosen = ("--node-selector", f"kubernetes.io/hostname={node}")
    options = (namespace, "--policy", "remote-only", "--by", "webhook", *chosen)
    with _webhook(home, tmp_path / "webhook.log") as process:
        assert get(home, OURS) == [], "nothing is registered while nothing is offloaded"
        answer = _bridge(home, "offload", *options)
        assert answer["by"] == "webhook"
        bridged.apply(_pod("must"))
        assert _ran_on(bridged, "must") == node
        process.kill()
        process.wait()
        bridged.apply(_pod("without"))
        spec = get_one(home, "pod", "without", namespace=namespace)["spec"]
        assert "cluster-bridge.io" not in json.dumps(spec)
    with _webhook(home, tmp_path / "again.log") as process:
        _bridge(home, "offload", *options)
        process.send_signal(SIGINT)
        assert process.wait(15) == 0
        assert get(home, OURS) == [], "a clean stop takes the registration back"
    _bridge(home, "unoffload", namespace)
    assert _left(home) == []
