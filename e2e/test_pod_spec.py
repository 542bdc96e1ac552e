"""Pod specs: kept fields work in the remote, and dropped fields are reported at home."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, is_ready, wait_for
from e2e.workload_manifests import pod, shell
from translators.pods.field_rules import rule_for

#: Seconds until a kubelet that syncs every 10 s has refreshed a volume, with a margin.
VOLUME_SECONDS = 100.0


@pytest.mark.core
def test_every_field_of_this_api_server_is_decided(home: Cluster) -> None:
    """The table of fields equals the schema that the API server publishes."""
    published = json.loads(home.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout)
    schemas = published["components"]["schemas"]
    undecided = [path for path in _fields(schemas, "Pod") if rule_for(path) is None]
    assert undecided == []


def _fields(schemas: Json, kind: str) -> Iterator[str]:
    [name] = [name for name in schemas if name.endswith(f".core.v1.{kind}")]
    yield from _below(schemas, schemas[name], "")


def _below(schemas: Json, schema: Json, path: str) -> Iterator[str]:
    for key, field in schema["properties"].items():
        at = f"{path}.{key}".removeprefix(".")
        items = field.get("items")
        referred = _referred(schemas, items or field)
        if "properties" in referred:
            yield from _below(schemas, referred, f"{at}[]" if items else at)
        else:
            yield at


def _referred(schemas: Json, field: Json) -> Json:
    refs = [part["$ref"] for part in (field, *field.get("allOf", ())) if "$ref" in part]
    found: Json = schemas[refs[0].rpartition("/")[2]] if refs else {}
    return found


def test_pod_with_a_large_spec_runs_as_at_home(bridged: Bridged) -> None:
    """Init container, sidecar, probes, hooks, security, names, DNS and placement."""
    bridged.apply(_rich(bridged.node))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/rich", "--timeout=90s")
    output = _exec(
        bridged,
        "cat /common/order; id -u; id -G; hostname; grep alias.example /etc/hosts; "
        "cat /etc/resolv.conf; cat /common/started; touch /no 2>/dev/null || echo read-only; "
        "ps | grep -c '[s]leep 7777'",
    ).splitlines()
    assert output[:3] == ["init", "sidecar", "1000"]
    assert set(output[3].split()) >= {"1000", "2000", "3000"}
    assert output[4] == "box"
    assert output[5].split() == ["192.0.2.9", "alias.example"]
    assert set(output) >= {"nameserver 192.0.2.53", "search one.example two.example", "read-only"}
    assert output[-1] == "1", "processes of the sidecar are seen"
    assert "postStart" in output

    [remote] = bridged.remote_pods()
    spec = remote["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    required = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [label] = required[0]["namespaceSelector"]["matchLabels"]
    assert label == "cluster-bridge.io/home"
    status = get_one(bridged.home, "pod", "rich", namespace=bridged.namespace)["status"]
    assert [s["name"] for s in status["initContainerStatuses"]] == ["first", "sidecar"]
    assert status["initContainerStatuses"][1]["started"] is True

    lost = [it for it in bridged.events("FieldDropped") if "did not keep" in it["message"]]
    assert lost == [], "the API server's own defaults and changes are no lost fields"

    _exec(bridged, "rm /common/ready")
    wait_for(lambda: not is_ready(_home(bridged, "rich")), "the readiness probe fails at home")
    _exec(bridged, "touch /common/ready; rm /common/alive")
    wait_for(
        lambda: _home(bridged, "rich")["status"]["containerStatuses"][0]["restartCount"] == 1,
        "the liveness probe has the container restarted",
    )


def _rich(node: str) -> str:
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/common"}]}
    every_second = {"periodSeconds": 1, "failureThreshold": 2}
    script = "touch /common/ready /common/alive; trap 'exit 0' TERM; while true; do sleep 1; done"
    return pod(
        node,
        "rich",
        {"labels": {"app": "rich", "tier": "one"}},
        nodeSelector={"kubernetes.io/hostname": node, "kubernetes.io/os": "linux"},
        hostname="box",
        hostAliases=[{"ip": "192.0.2.9", "hostnames": ["alias.example"]}],
        dnsPolicy="None",
        dnsConfig={"nameservers": ["192.0.2.53"], "searches": ["one.example", "two.example"]},
        shareProcessNamespace=True,
        securityContext={
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 2000,
            "supplementalGroups": [3000],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        topologySpreadConstraints=[
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "rich"}},
                "matchLabelKeys": ["tier"],
            }
        ],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": [node]}
                            ]
                        }
                    ]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app": "none"}},
                        "namespaceSelector": {},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            },
        },
        volumes=[{"name": "work", "emptyDir": {}}],
        initContainers=[
            shell("first", "echo init >>/common/order", **mount),
            shell(
                "sidecar",
                "echo sidecar >>/common/order; sleep 7777",
                restartPolicy="Always",
                startupProbe={"exec": {"command": ["grep", "sidecar", "/common/order"]}},
                **mount,
            ),
        ],
        containers=[
            shell(
                "main",
                script,
                readinessProbe={"exec": {"command": ["cat", "/common/ready"]}, **every_second},
                livenessProbe={
                    "exec": {"command": ["cat", "/common/alive"]},
                    "initialDelaySeconds": 2,
                    **every_second,
                },
                lifecycle={
                    "postStart": {
                        "exec": {"command": ["sh", "-c", "echo postStart >/common/started"]}
                    },
                    "preStop": {"sleep": {"seconds": 1}},
                },
                securityContext={
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                **mount,
            )
        ],
    )


def test_downward_api_files_have_homes_values_and_are_updated(bridged: Bridged) -> None:
    """The bridge's own labels in the remote are hidden, and edits appear."""
    items = [
        {"path": field, "fieldRef": {"fieldPath": f"metadata.{field}"}}
        for field in ("labels", "annotations")
    ]
    bridged.apply(
        pod(
            bridged.node,
            "reads",
            {"labels": {"b": "2", "a": "1"}, "annotations": {"note": 'say "hi"\n'}},
            volumes=[{"name": "me", "downwardAPI": {"items": items}}],
            containers=[
                shell("main", "sleep 3600", volumeMounts=[{"name": "me", "mountPath": "/me"}])
            ],
        )
    )
    bridged.kubectl("wait", "--for=condition=Ready", "pod/reads", "--timeout=60s")
    assert _exec(bridged, "cat /me/labels", "reads") == 'a="1"\nb="2"'
    annotations = _exec(bridged, "cat /me/annotations", "reads").splitlines()
    assert 'note="say \\"hi\\"\\n"' in annotations
    assert not [line for line in annotations if line.startswith("cluster-bridge.io/")]
    bridged.kubectl("label", "pod", "reads", "a-", "c=3")
    wait_for(
        lambda: _exec(bridged, "cat /me/labels", "reads") == 'b="2"\nc="3"',
        "the edit is in the file",
        seconds=VOLUME_SECONDS,
    )


@pytest.fixture
def urgent(home: Cluster, remote: Cluster) -> Iterator[str]:
    """A priority class of both clusters with different values; home also has ``missing``."""
    made = ((home, "e2e-both", 7), (home, "e2e-missing", 8), (remote, "e2e-both", 9))
    for cluster, name, value in made:
        cluster.kubectl("create", "priorityclass", name, f"--value={value}")
    yield "e2e-both"
    home.kubectl("delete", "priorityclass", "e2e-both", "e2e-missing")
    remote.kubectl("delete", "priorityclass", "e2e-both")


@pytest.mark.core
def test_priority_is_resolved_in_the_remote_and_drops_are_reported(
    bridged: Bridged, urgent: str
) -> None:
    """A class is kept by name if the remote has it; otherwise one Event names the field."""
    bridged.apply(pod(bridged.node, "known", priorityClassName=urgent))
    bridged.apply(pod(bridged.node, "unknown", priorityClassName="e2e-missing"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/known", "pod/unknown", "--timeout=60s")
    specs = {it["metadata"]["name"]: it["spec"] for it in bridged.remote_pods()}
    assert (specs["known"]["priorityClassName"], specs["known"]["priority"]) == (urgent, 9)
    assert specs["unknown"]["priority"] == 0
    [event] = wait_for(lambda: bridged.events("FieldDropped"), "the Event names the field")
    assert event["involvedObject"]["name"] == "unknown"
    assert event["message"].startswith("spec.priorityClassName: e2e-missing is not a PriorityClass")


@pytest.mark.core
def test_rejected_pod_has_a_reason_and_its_successor_runs(bridged: Bridged) -> None:
    """It waits with the reason in status and an Event; the remote has no object of it."""
    claims = [{"name": "gpu", "resourceClaimName": "none"}]
    # Home's scheduler would wait for the PVC; a pod with nodeName does not pass through it.
    bridged.apply(pod(bridged.node, "resourceclaims", nodeName=bridged.node, resourceClaims=claims))
    bridged.apply(pod(bridged.node, "hostnetwork", hostNetwork=True))
    bridged.apply(pod(bridged.node, "hostpid", hostPID=True))
    refused = wait_for(lambda: _refused(bridged), "their status has the reason")
    for it in refused:
        assert it["status"]["phase"] == "Pending"
        message = it["status"]["message"].lower()
        assert message.startswith(f"spec.{it['metadata']['name']}: ")
    wait_for(lambda: len(bridged.events("FieldRefused")) == 3, "each has an Event")
    assert not bridged.remote_pods()
    bridged.kubectl("delete", "pod", "hostpid", "--timeout=30s")
    bridged.apply(pod(bridged.node, "hostpid"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/hostpid", "--timeout=60s")
    assert [event.get("count") for event in bridged.events("FieldRefused")] == [1, 1, 1]


def _refused(bridged: Bridged) -> list[Json]:
    """Deletes all three after their rejection."""
    found = bridged.home_pods()
    reasons = [it["status"].get("reason") for it in found]
    return found if reasons == ["FieldRefused"] * 3 else []


def _exec(bridged: Bridged, script: str, name: str = "rich") -> str:
    return bridged.kubectl("exec", name, "-c", "main", "--", "sh", "-c", script)


def _home(bridged: Bridged, name: str) -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)
