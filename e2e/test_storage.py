"""PersistentVolumeClaims follow pods: provisioned in the remote, mounted there, bound at home."""

from __future__ import annotations

import json

import pytest

from e2e import bridge_process
from e2e.kubectl import get, get_one, wait_for
from e2e.provisioned_storage import DATA, ProvisionedStorage
from e2e.storage_classes import IMMEDIATE, hostpath, local_path
from e2e.workload_manifests import pod, shell, volume_claim

pytestmark = pytest.mark.usefixtures("provisioners")


def _stateful_set(storage: ProvisionedStorage, storage_class: str, replicas: int) -> str:
    """A StatefulSet whose pods append their start to a file."""
    script = "echo started >> /data/file; sleep 3600"
    labels = {"app": "db"}
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "16Mi"}},
        },
    }
    spec = {"containers": [shell("main", script, volumeMounts=DATA)], **storage.placement()}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db",
                "replicas": replicas,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
                "volumeClaimTemplates": [claim],
            },
        }
    )


@pytest.mark.core
def test_stateful_set_keeps_its_data(storage: ProvisionedStorage) -> None:
    """Each ordinal has a volume in the remote; the data outlives pods, scale to zero and the
    bridge, and is deleted with the claims."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("db") as name:
        bridged.apply(_stateful_set(storage, name, 2))
        storage.wait_until_ready("db-0", "db-1")
        assert storage.phases() == {"data-db-0": "Bound", "data-db-1": "Bound"}
        assert len(storage.remote_claims()) == 2
        uids = {it["metadata"]["uid"] for it in storage.remote_claims()}

        bridged.kubectl("delete", "pod", "db-0", "--wait=true")
        storage.wait_until_ready("db-0")
        wait_for(lambda: storage.read("db-0").split() == ["started"] * 2, "data outlives the pod")

        bridged.kubectl("scale", "statefulset/db", "--replicas=0")
        wait_for(lambda: not bridged.home_pods(), "no pod is left")
        bridged.bridge.stop()
        bridged.bridge.start()
        bridged.kubectl("scale", "statefulset/db", "--replicas=2")
        storage.wait_until_ready("db-0", "db-1")
        wait_for(lambda: storage.read("db-0").split() == ["started"] * 3, "data outlives a restart")
        assert {it["metadata"]["uid"] for it in storage.remote_claims()} == uids

        storage.clear()
        assert not get(storage.remote, "persistentvolumeclaims", namespace=bridged.remote_namespace)


def test_capacity_of_remote_is_shown_and_grows(storage: ProvisionedStorage) -> None:
    """The true capacity appears at home, with either binding mode; expansions and labels follow,
    and the commands show where the data is."""
    bridged = storage.bridged
    rounding = {"roundUpTo": "4Mi"}
    with (
        hostpath(storage.remote, "now", binding=IMMEDIATE, parameters=rounding) as now,
        hostpath(storage.remote, "later", parameters=rounding) as later,
        storage.home_class("now", remote_class=now) as home_now,
        storage.home_class("later", remote_class=later) as home_later,
    ):
        for name, of_class in (("a", home_now), ("b", home_later)):
            bridged.apply(volume_claim(name, of_class, "10Mi"))
            bridged.apply(storage.node_pod(name, name))
        storage.wait_until_ready("a", "b")

        def capacities() -> list[str]:
            return [it["status"]["capacity"]["storage"] for it in storage.claims().values()]

        wait_for(lambda: capacities() == ["12Mi", "12Mi"], "the true capacity is shown")
        assert {it["spec"]["capacity"]["storage"] for it in storage.volumes()} == {"12Mi"}
        grow = {"spec": {"resources": {"requests": {"storage": "20Mi"}}}}
        for name in ("a", "b"):
            bridged.kubectl("patch", "pvc", name, "-p", json.dumps(grow))
        wait_for(lambda: capacities() == ["20Mi", "20Mi"], "the volumes have grown")

        def teams() -> list[str]:
            labels = [it["metadata"]["labels"] for it in storage.remote_claims()]
            return sorted(it["team"] for it in labels if "team" in it)

        bridged.kubectl("label", "pvc", "a", "team=blue")
        wait_for(lambda: teams() == ["blue"], "the label follows")
        bridged.kubectl("label", "pvc", "a", "team-")
        wait_for(lambda: teams() == [], "its removal follows")
        _check_commands(storage, now)


def _check_commands(storage: ProvisionedStorage, remote_class: str) -> None:
    """`bridge explain pvc` and `bridge status` show the volumes."""
    bridged = storage.bridged
    done = bridge_process.run(
        *("explain", "pvc/a", "-n", bridged.namespace, "-o", "json"),
        *("--kubeconfig", bridged.remote.kubeconfig),
        home=bridged.home,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["waitsFor"], found["pods"]) == ("Bound", None, ["a"])
    remote = found["remote"]
    assert (remote["storageClass"], remote["capacity"]) == (remote_class, "20Mi")
    assert remote["name"] in {it["metadata"]["name"] for it in storage.remote_claims()}
    done = bridge_process.run("status", bridged.node, "-o", "json", home=bridged.home)
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["volumes"]["total"] >= 2
    assert node["volumes"]["pending"] == 0


def test_pod_bound_by_node_name_and_ephemeral_volume(storage: ProvisionedStorage) -> None:
    """A pod without a scheduler gets its volume; a generic ephemeral volume has one PVC, which is
    deleted with the pod."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("fixed", name, "8Mi"))
        fixed = [{"name": "data", "persistentVolumeClaim": {"claimName": "fixed"}}]
        main = shell("main", "echo fixed > /data/file; sleep 3600", volumeMounts=DATA)
        bridged.apply(pod(bridged.node, "fixed", containers=[main], volumes=fixed))
        storage.wait_until_ready("fixed")
        wait_for(lambda: storage.read("fixed") == "fixed\n", "the pod writes")
        template = {
            "spec": {
                "storageClassName": name,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "8Mi"}},
            }
        }
        scratch = [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]
        bridged.apply(storage.node_pod("scratch", "", volumes=scratch))
        storage.wait_until_ready("scratch")
        assert storage.phases() == {"fixed": "Bound", "scratch-data": "Bound"}
        assert len(storage.remote_claims()) == 2
        bridged.kubectl("delete", "pod", "scratch", "--wait=true")
        wait_for(lambda: len(storage.remote_claims()) == 1, "the ephemeral volume is deleted")


def test_retained_data_stays_in_remote(storage: ProvisionedStorage) -> None:
    """With Retain the remote claim outlives home's claim and volume, and its namespace stays."""
    bridged = storage.bridged
    with (
        local_path(storage.remote, default=True),
        storage.home_class("kept", retain=True) as name,
    ):
        bridged.apply(volume_claim("kept", name, "8Mi"))
        bridged.apply(storage.node_pod("a", "kept", "echo data > /data/file; sleep 3600"))
        storage.wait_until_ready("a")
        bridged.kubectl("delete", "pod", "a", "--wait=true")
        bridged.kubectl("delete", "pvc", "kept", "--wait=true")
        (volume,) = storage.volumes()
        wait_for(
            lambda: (
                get_one(storage.home, "pv", volume["metadata"]["name"])["status"]["phase"]
                == "Released"
            ),
            "the volume is Released",
        )
        storage.home.kubectl("delete", "pv", volume["metadata"]["name"], "--wait=true")
        (claim,) = storage.remote_claims()
        assert claim["status"]["phase"] == "Bound"


def test_rejected_volume_is_reported_and_schedules_elsewhere(storage: ProvisionedStorage) -> None:
    """A quota of the remote is an Event with the remote's message, and the scheduler is free to
    choose another node."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(storage.node_pod("first", "small"))
        bridged.apply(volume_claim("small", name, "8Mi"))
        storage.wait_until_ready("first")
        quota = ("create", "quota", "small", "--hard=requests.storage=10Mi")
        storage.remote.kubectl("-n", bridged.remote_namespace, *quota)
        bridged.apply(volume_claim("large", name, "64Mi"))
        bridged.apply(storage.node_pod("second", "large"))
        found = bridged.wait_for_events("ProvisioningFailed", "PersistentVolumeClaim", "large")
        assert "exceeded quota" in found["large"]
        assert len(storage.remote_claims()) == 1
        storage.remote.kubectl("-n", bridged.remote_namespace, "delete", "quota", "small")
        storage.wait_until_ready("second")


@pytest.mark.core
@pytest.mark.unbound
def test_unbound_namespace_gets_nothing_in_remote(storage: ProvisionedStorage) -> None:
    """Nothing is created in the remote for a namespace that is not bound to the bridge; the Event
    shows the command that binds it."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("waits", name, "8Mi"))
        bridged.apply(storage.node_pod("waits", "waits"))
        found = bridged.wait_for_events("ProvisioningFailed", "PersistentVolumeClaim", "waits")
        assert f"bridge rbac namespace {bridged.namespace}" in found["waits"]
        namespaces = [it["metadata"]["name"] for it in get(storage.remote, "namespaces")]
        assert bridged.remote_namespace not in namespaces
