"""Referenced ConfigMaps and Secrets are copied, and no others."""

from __future__ import annotations

import json
import threading

import pytest

from e2e.admission_policies import validating
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import config_map, pod, secret, shell

pytestmark = pytest.mark.core


@pytest.mark.short_linger
def test_references_of_every_kind_are_copied_and_nothing_else(bridged: Bridged) -> None:
    """Environment, volumes, projected volumes, pull secrets; optional and immutable ones, binary
    data and types; service account tokens stay at home."""
    for name in ("env", "env-from", "volume", "unused"):
        bridged.apply(config_map(name, {"KEY": name}))
        bridged.apply(secret(name, {"KEY": name}))
    bridged.apply(config_map("projected", {"KEY": "fixed"}, immutable=True))
    bridged.apply(config_map("binary", {}, binaryData={"bytes": "AP8Q"}))
    pull = {".dockerconfigjson": '{"auths":{}}'}
    bridged.apply(secret("pull", pull, type="kubernetes.io/dockerconfigjson"))
    bridged.apply(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/service-account-token",
                "metadata": {
                    "name": "token",
                    "annotations": {"kubernetes.io/service-account.name": "default"},
                },
            }
        )
    )
    bridged.apply(_all_kinds(bridged.node))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/refers", "--timeout=60s")
    script = (
        "echo $A $B $C_KEY $D_KEY; cat /cm/KEY /secret/KEY /projected/KEY; "
        "od -An -tx1 /binary/bytes; ls /token /missing"
    )
    output = bridged.kubectl("exec", "refers", "--", "sh", "-c", script)
    assert output.split() == [
        *("env", "env", "env-from", "env-from", "volumevolumefixed"),
        *("00", "ff", "10", "/missing:", "/token:"),
    ]
    assert _copies(bridged, "configmaps") == {"env", "env-from", "volume", "projected", "binary"}
    assert _copies(bridged, "secrets") == {"env", "env-from", "volume", "pull"}
    copied = {it["metadata"]["name"]: it for it in _in_remote(bridged, "configmaps,secrets")}
    assert copied["projected"]["immutable"] is True
    assert copied["pull"]["type"] == "kubernetes.io/dockerconfigjson"

    bridged.kubectl("delete", "pod", "refers", "--wait=false")
    wait_for(lambda: not _in_remote(bridged, "configmaps,secrets"), "they go after the last pod")


def _all_kinds(node: str) -> str:
    key = {"name": "env", "key": "KEY"}
    volumes: Json = {
        "cm": {"configMap": {"name": "volume"}},
        "secret": {"secret": {"secretName": "volume"}},
        "projected": {"projected": {"sources": [{"configMap": {"name": "projected"}}]}},
        "binary": {"configMap": {"name": "binary"}},
        "token": {"secret": {"secretName": "token", "optional": True}},
        "missing": {"configMap": {"name": "missing", "optional": True}},
    }
    main = shell(
        "main",
        "sleep 3600",
        env=[
            {"name": "A", "valueFrom": {"configMapKeyRef": key}},
            {"name": "B", "valueFrom": {"secretKeyRef": key}},
            {"name": "E", "valueFrom": {"secretKeyRef": {**key, "name": "no", "optional": True}}},
        ],
        envFrom=[
            {"prefix": "C_", "configMapRef": {"name": "env-from"}},
            {"prefix": "D_", "secretRef": {"name": "env-from"}},
        ],
        volumeMounts=[{"name": name, "mountPath": f"/{name}"} for name in volumes],
    )
    return pod(
        node,
        "refers",
        containers=[main],
        imagePullSecrets=[{"name": "pull"}],
        volumes=[{"name": name, **source} for name, source in volumes.items()],
    )


def test_copy_survives_an_update_that_a_policy_rejects(bridged: Bridged) -> None:
    """The running pod's ConfigMap stays as it was, and follows after the policy."""
    bridged.apply(config_map("conf", {"KEY": "first"}))
    mounts = [{"name": "conf", "mountPath": "/conf"}]
    main = shell("main", "sleep 3600", volumeMounts=mounts)
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}]
    bridged.apply(pod(bridged.node, "reads", containers=[main], volumes=volumes))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/reads", "--timeout=60s")

    def copy() -> Json:
        return get_one(bridged.remote, "configmap", "conf", namespace=bridged.remote_namespace)

    before = copy()
    with validating(
        bridged.remote,
        bridged.remote_namespace,
        "configmaps",
        "object.data.KEY != 'second'",
        violation=json.dumps({**before, "data": {"KEY": "second"}}),
    ):
        bridged.apply(config_map("conf", {"KEY": "second"}))
        (event,) = wait_for(lambda: bridged.events("UpdateRefused"), "the rejection is reported")
        assert event["involvedObject"]["kind"] == "ConfigMap"
        assert copy() == before
    bridged.apply(config_map("conf", {"KEY": "third"}))
    wait_for(lambda: copy()["data"] == {"KEY": "third"}, "the copy follows")
    assert copy()["metadata"]["uid"] == before["metadata"]["uid"]


def test_config_map_that_both_clusters_publish_is_the_remotes(bridged: Bridged) -> None:
    """As Istio does: its controller sets the content back in every namespace."""
    name = "istio-ca-root-cert"
    there = ("-n", bridged.remote_namespace)
    bridged.apply(config_map(name, {"root-cert.pem": "ours"}))
    stop = threading.Event()

    def publish() -> None:
        theirs = json.dumps({"data": {"root-cert.pem": "theirs"}})
        while not stop.wait(0.1):
            found = bridged.remote.kubectl("get", *there, "cm", name, "-o", "json", check=False)
            if found.returncode == 0 and json.loads(found.stdout)["data"] != json.loads(theirs):
                patch = ("patch", *there, "cm", name, "--type=merge", "-p", theirs)
                bridged.remote.kubectl(*patch, check=False)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for pod_name in ("first", "second"):
            env = [{"configMapRef": {"name": name}}]
            main = shell("main", "sleep 3600", envFrom=env)
            bridged.apply(pod(bridged.node, pod_name, containers=[main]))
            bridged.kubectl("wait", "--for=condition=Ready", f"pod/{pod_name}", "--timeout=60s")

        def left() -> bool:
            copy = get_one(bridged.remote, "configmap", name, namespace=bridged.remote_namespace)
            labels = copy["metadata"].get("labels") or {}
            return copy["data"] == {"root-cert.pem": "theirs"} and not labels

        wait_for(left, "the bridge leaves it to the remote")
        assert bridged.events("RemoteOverwrites") == bridged.events("RemoteClash") == []
    finally:
        stop.set()
        thread.join()


def test_missing_reference_blocks_the_pod_as_with_a_kubelet(bridged: Bridged) -> None:
    """The pod exists without a running container, and starts when the Secret appears."""
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "KEY"}}}]
    bridged.apply(pod(bridged.node, "waits", containers=[shell("main", "sleep 3600", env=env)]))
    wait_for(
        lambda: _waits_for(bridged) == "CreateContainerConfigError",
        "the status has the missing object",
    )
    bridged.apply(secret("late", {"KEY": "here"}))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/waits", "--timeout=60s")
    assert bridged.kubectl("exec", "waits", "--", "sh", "-c", "echo $KEY") == "here\n"

    patch = {"stringData": {"KEY": "changed"}}
    bridged.kubectl("patch", "secret", "late", "-p", json.dumps(patch))
    wait_for(
        lambda: _in_remote(bridged, "secrets")[0]["data"] == {"KEY": "Y2hhbmdlZA=="},
        "the edit is in the remote",
    )


def _waits_for(bridged: Bridged) -> str | None:
    [found] = bridged.home_pods()
    statuses = found["status"].get("containerStatuses") or [{}]
    waiting = (statuses[0].get("state") or {}).get("waiting") or {}
    reason: str | None = waiting.get("reason")
    return reason


def _copies(bridged: Bridged, kind: str) -> set[str]:
    return {it["metadata"]["name"] for it in _in_remote(bridged, kind)}


def _in_remote(bridged: Bridged, kinds: str) -> list[Json]:
    """The copies, without the Secret of the pod's own tokens."""
    selector = f"cluster-bridge.io/node={bridged.node}"
    found = get(bridged.remote, kinds, namespace=bridged.remote_namespace, selector=selector)
    return [it for it in found if "cluster-bridge.io/home-name" in it["metadata"]["annotations"]]
