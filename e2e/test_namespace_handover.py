"""The bridge uses remote namespaces that it created, by the record at home, and namespaces that
both sides agreed on."""

from __future__ import annotations

import json

import pytest

from e2e import hostile_tenant
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import pod, secret, shell

_LEASE = ("lease", "namespaces.cluster-bridge.io")


def _status(bridged: Bridged, name: str) -> Json:
    status: Json = get_one(bridged.home, "pod", name, namespace=bridged.namespace)["status"]
    return status


def _recorded(bridged: Bridged) -> str | None:
    """Home's namespace record of the node; None if there is none."""
    found = bridged.home.kubectl(
        *("get", *_LEASE, "-n", "cluster-bridge", "-o", "json", "--ignore-not-found")
    ).stdout
    annotations = json.loads(found or "{}").get("metadata", {}).get("annotations", {})
    text: str | None = annotations.get(f"namespaces.cluster-bridge.io/{bridged.node}")
    return text


def test_home_sends_nothing_to_a_namespace_prepared_by_a_tenant(bridged: Bridged) -> None:
    """With the mapped name, the bridge's labels and `accepts-home: *` it is not used before home
    accepts it: no Secret, no token, no pod."""
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "KEY"}}}]
    with hostile_tenant.namespace(
        bridged, bridged.remote_namespace, forged=True, accepts="*"
    ) as there:
        labels = {**hostile_tenant.owner_labels(bridged)}
        meta = {
            "name": "key",
            "labels": labels,
            "annotations": hostile_tenant.origin(bridged, "key"),
        }
        bait = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"KEY": "x"}}
        bridged.remote.kubectl("create", "-n", there, "-f", "-", input=json.dumps(bait))
        [before] = get(bridged.remote, "secrets", namespace=there)

        bridged.apply(secret("key", {"KEY": "canary"}))
        bridged.apply(pod(bridged.node, "victim", containers=[shell("main", "sleep 1d", env=env)]))
        wait_for(
            lambda: _status(bridged, "victim").get("reason") == "RemoteClash",
            "the pod waits with the reason",
        )
        assert f"--accept-namespaces {there}" in _status(bridged, "victim")["message"]
        assert bridged.remote_pods() == []
        assert get(bridged.remote, "secrets", namespace=there) == [before]

        bridged.bridge.stop()
        bridged.bridge.args = (*bridged.bridge.args, "--accept-namespaces", f"{there[:-1]}*")
        bridged.bridge.start()
        bridged.kubectl("wait", "--for=condition=Ready", "pod/victim", "--timeout=90s")
        bridged.kubectl("delete", "pod", "victim", "--timeout=60s")


@pytest.mark.core
def test_forged_pod_of_a_tenant_does_not_block_a_restart(bridged: Bridged) -> None:
    """A pod with the bridge's labels, in a namespace with them."""
    bridged.apply(pod(bridged.node, "ours"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/ours", "--timeout=90s")
    [ours] = bridged.home_pods()
    with hostile_tenant.namespace(bridged, f"tenant-{bridged.namespace}", forged=True) as there:
        meta = {"name": "ours", "labels": hostile_tenant.owner_labels(bridged)}
        meta["annotations"] = hostile_tenant.origin(bridged, "ours", ours["metadata"]["uid"])
        spec = {"containers": [shell("main", "sleep 1d")], "terminationGracePeriodSeconds": 1}
        copied = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        bridged.remote.kubectl("create", "-n", there, "-f", "-", input=json.dumps(copied))
        for end in (bridged.bridge.stop, bridged.bridge.kill):
            end()
            bridged.bridge.start()
        bridged.apply(pod(bridged.node, "later"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/later", "--timeout=90s")
        assert get_one(bridged.remote, "pod", "ours", namespace=there)
        bridged.kubectl("delete", "pod", "--all", "--timeout=60s")


@pytest.mark.core
@pytest.mark.join("--accept-namespaces=test-*")
def test_controller_of_a_granted_namespace_adopts_no_pod_of_home(bridged: Bridged) -> None:
    """It would count the pod as its own, and delete one of both."""
    with hostile_tenant.namespace(bridged, bridged.remote_namespace, forged=False, accepts="*"):
        template = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [shell("main", "sleep 1d")], "terminationGracePeriodSeconds": 1},
        }
        spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template, "replicas": 1}
        theirs = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "theirs"}}
        there = ("-n", bridged.remote_namespace)
        bridged.remote.kubectl(
            "create", *there, "-f", "-", input=json.dumps({**theirs, "spec": spec})
        )

        def own_pods() -> list[str]:
            pods = get(bridged.remote, "pods", namespace=bridged.remote_namespace)
            return [pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] != "ours"]

        wait_for(own_pods, "the controller creates its pod")
        ours = pod(bridged.node, "ours", {"labels": {"app": "web"}})
        bridged.apply(ours)
        bridged.kubectl("wait", "--for=condition=Ready", "pod/ours", "--timeout=90s")
        # Scaling up and down again makes the controller count its pods.
        bridged.remote.kubectl("scale", *there, "rs/theirs", "--replicas=2")
        wait_for(lambda: len(own_pods()) == 2, "the controller creates another")
        bridged.remote.kubectl("scale", *there, "rs/theirs", "--replicas=1")
        wait_for(lambda: len(own_pods()) == 1, "the controller deletes one")
        remote = get_one(bridged.remote, "pod", "ours", namespace=bridged.remote_namespace)
        assert [owner["kind"] for owner in remote["metadata"]["ownerReferences"]] == ["Namespace"]
        assert not remote["metadata"].get("deletionTimestamp")
        bridged.kubectl("delete", "pod", "ours", "--timeout=60s")


def test_created_namespaces_are_recognised_after_a_crash(bridged: Bridged) -> None:
    """By the record at home; if that was deleted, by their labels, once and with a log line."""
    wait_for(lambda: _recorded(bridged) == "", "the node has a record, of nothing yet")
    bridged.apply(pod(bridged.node, "first"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=90s")
    before = wait_for(lambda: _recorded(bridged) or "", "the namespace is recorded")
    bridged.bridge.kill()
    bridged.bridge.start()
    bridged.apply(pod(bridged.node, "second"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=90s")
    assert _recorded(bridged) == before

    # The record is deleted while no bridge runs; the node is not new.
    bridged.bridge.kill()
    bridged.home.kubectl("delete", *_LEASE, "-n", "cluster-bridge")
    bridged.bridge.start()
    bridged.bridge.wait_for_log("are taken for its own")
    bridged.apply(pod(bridged.node, "third"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/third", "--timeout=90s")
    recorded = wait_for(lambda: _recorded(bridged) or "", "it is recorded again")
    assert set(before.split(",")) <= set(recorded.split(","))
    bridged.kubectl("delete", "pod", "--all", "--timeout=60s")


def test_leave_removes_the_namespace_record(bridged: Bridged) -> None:
    """Except for namespaces that stay because of unmanaged objects: the next join knows them."""
    from e2e import bridge_process

    bridged.apply(pod(bridged.node, "first"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=90s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("-n", namespace, "create", "configmap", "theirs")
    leave = ("leave", bridged.node, "--yes")
    try:
        bridged.bridge.stop()
        left = bridge_process.run(*leave, home=bridged.home)
        assert left.returncode == 0, left.stderr
        assert _recorded(bridged)
        bridged.bridge.start()
        bridged.apply(pod(bridged.node, "second"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=90s")
    finally:
        bridged.remote.kubectl("-n", namespace, "delete", "configmap", "theirs")
    bridged.bridge.stop()
    left = bridge_process.run(*leave, home=bridged.home)
    assert left.returncode == 0, left.stderr
    assert _recorded(bridged) is None
