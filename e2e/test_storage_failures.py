"""Volumes when something fails: no data is lost, and no volume is provisioned twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from e2e import bridge_process, service_accounts
from e2e.bridge_process import REGISTERED, Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined, usual_options
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.provisioned_storage import DATA, ProvisionedStorage
from e2e.storage_classes import IMMEDIATE, hostpath, local_path
from e2e.workload_manifests import pod, shell, volume_claim

pytestmark = pytest.mark.usefixtures("provisioners")

#: Seconds for what follows an outage: the bridge retries with growing waits.
AFTER_OUTAGE = 120.0


def _write(storage: ProvisionedStorage, name: str, claim: str) -> None:
    """Runs a pod that writes to the claim."""
    script = "echo started >> /data/file; sleep 3600"
    storage.bridged.apply(storage.node_pod(name, claim, script))
    storage.wait_until_ready(name)
    wait_for(lambda: "started" in storage.read(name), f"{name} has written")


@pytest.mark.core
def test_killed_bridge_continues(storage: ProvisionedStorage) -> None:
    """A bridge that is killed while it provisions many volumes makes each of them once."""
    bridged = storage.bridged
    names = [f"v{number}" for number in range(8)]
    with (
        hostpath(storage.remote, binding=IMMEDIATE, parameters={"provisionDelay": "2s"}) as there,
        storage.home_class("many", remote_class=there) as name,
    ):
        for it in names:
            bridged.apply(volume_claim(it, name, "8Mi"))
            bridged.apply(storage.node_pod(it, it))
        for created in (1, 4, 7):
            wait_for(
                lambda count=created: len(storage.remote_claims()) >= count,  # type: ignore[misc]
                f"{created} volumes are being provisioned",
            )
            bridged.bridge.kill()
            bridged.bridge.start()
        storage.wait_until_ready(*names)
        assert len(storage.remote_claims()) == len(storage.volumes()) == len(names)
        assert set(storage.phases().values()) == {"Bound"}


def test_claim_deleted_during_an_outage_of_the_remote(storage: ProvisionedStorage) -> None:
    """The data is deleted when the remote is back, and data that is kept is untouched."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        for it in ("goes", "stays"):
            bridged.apply(volume_claim(it, name, "8Mi"))
            _write(storage, it, it)
        kept = {it["metadata"]["uid"] for it in storage.remote_claims() if "stays" in str(it)}
        bridged.kubectl("delete", "pod", "goes", "--wait=true")
        storage.remote.stop_component("kube-apiserver")
        try:
            bridged.kubectl("delete", "pvc", "goes", "--wait=true")
            assert len(storage.volumes()) == 2
        finally:
            storage.remote.start_api_server()
        wait_for(
            lambda: len(storage.volumes()) == 1, "the volume is reclaimed", seconds=AFTER_OUTAGE
        )
        assert {it["metadata"]["uid"] for it in storage.remote_claims()} == kept
        assert storage.read("stays") == "started\n"


def test_claim_created_during_an_outage_of_home(storage: ProvisionedStorage) -> None:
    """Provisioning continues after home's API server was away."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("data", name, "8Mi"))
        bridged.apply(storage.node_pod("a", "data"))
        storage.home.stop_component("kube-apiserver")
        storage.home.start_api_server()
        wait_for(lambda: storage.phases() == {"data": "Bound"}, "it is Bound", seconds=AFTER_OUTAGE)
        storage.wait_until_ready("a")
        assert len(storage.remote_claims()) == 1


def test_standby_takes_over(storage: ProvisionedStorage, tmp_path: Path) -> None:
    """A standby replica provisions, deletes and finds volumes as the leader did."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True), storage.home_class("some") as name:
        bridged.apply(volume_claim("first", name, "8Mi"))
        _write(storage, "first", "first")
        first = bridged.bridge
        second = Bridge(first.home, first.remote, tmp_path / "second.log", first.args)
        second.start(until="waiting for the lease")
        try:
            first.kill()
            bridged.apply(volume_claim("second", name, "8Mi"))
            _write(storage, "second", "second")
            bridged.kubectl("delete", "pod", "first", "--wait=true")
            bridged.kubectl("delete", "pvc", "first", "--wait=true")
            wait_for(lambda: len(storage.remote_claims()) == 1, "the first volume is deleted")
        finally:
            second.kill()
            print(second.log.read_text())
        first.start()
        wait_for(lambda: storage.read("second") == "started\n", "the data is there")


def test_leave_keeps_volumes_for_the_next_join(storage: ProvisionedStorage) -> None:
    """`bridge leave` refuses, and with --keep-volumes leaves every byte where it was. It deletes a
    claim of the remote that has no volume yet."""
    bridged = storage.bridged
    failing = {"provisionError": "no disk is free"}
    with (
        local_path(storage.remote, default=True),
        storage.home_class("some") as name,
        hostpath(storage.remote, "full", binding=IMMEDIATE, parameters=failing) as full,
        storage.home_class("full", remote_class=full) as home_full,
    ):
        bridged.apply(volume_claim("data", name, "8Mi"))
        _write(storage, "a", "data")
        (volume,) = storage.volumes()
        (claim,) = storage.remote_claims()
        bridged.apply(volume_claim("more", home_full, "8Mi"))
        bridged.apply(storage.node_pod("more", "more"))
        wait_for(lambda: len(storage.remote_claims()) == 2, "the bridge provisions")
        bridged.bridge.stop()
        # A node of another remote, which prepared namespaces identify, serves none of the volumes.
        other = _node_of_another_remote(f"{bridged.node}-other")
        bridged.home.kubectl("apply", "-f", "-", input=other)
        arguments = ("leave", bridged.node, "--yes")
        by_administrator = bridge_process.run(*arguments, home=bridged.home)
        bridged.home.kubectl("delete", "-f", "-", input=other)
        for refused in (by_administrator, _leave(bridged)):
            assert refused.returncode == 1
            assert f"{volume['metadata']['name']} ({bridged.namespace}/data)" in refused.stderr
        assert bridged.home_pods()
        left = _leave(bridged, "--keep-volumes")
        assert left.returncode == 0, left.stderr
        assert bridged.node not in uids(get(bridged.home, "nodes"))
        pruned = bridge_process.run("prune", "--kubeconfig", bridged.remote.kubeconfig)
        assert pruned.returncode == 0
        (same,) = storage.remote_claims()
        assert same["metadata"]["uid"] == claim["metadata"]["uid"]
        assert storage.phases() == {"data": "Bound", "more": "Pending"}
        bridged.kubectl("delete", "pod/more", "pvc/more", "--ignore-not-found")

        bridged.bridge.start(until=REGISTERED)
        bridged.wait_until_schedulable()
        _write(storage, "b", "data")
        assert storage.read("b") == "started\nstarted\n"


def _node_of_another_remote(name: str) -> str:
    options = json.dumps({"remoteNamespaces": ["shop"], "remoteIds": ["0123456789abcdef"]})
    meta = {
        "name": name,
        "labels": {"cluster-bridge.io/remote": "0123456789abcdef"},
        "annotations": {"cluster-bridge.io/options": options},
    }
    return json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta})


def _leave(bridged: Bridged, *args: str) -> subprocess.CompletedProcess[str]:
    arguments = ("leave", bridged.node, "--yes", *args)
    return bridge_process.run(*arguments, home=bridged.bridge.home)


def test_volume_of_another_driver_is_never_confused(storage: ProvisionedStorage) -> None:
    """A pod whose claim is bound elsewhere waits, although the remote has a claim of that name; the
    annotation names an existing one."""
    bridged = storage.bridged
    with local_path(storage.remote, default=True) as there, storage.home_class("some") as name:
        bridged.apply(volume_claim("first", name, "8Mi"))
        _write(storage, "first", "first")  # Creates the remote namespace.
        for claim in ("local", "shared", "shared-data"):
            storage.remote.kubectl(
                *("create", "-n", bridged.remote_namespace, "-f", "-"),
                input=volume_claim(claim, there, "8Mi"),
            )
        _bind_at_home(storage, "local")
        bridged.apply(_pod_by_name(storage, "waits", "local"))
        found = bridged.wait_for_events("VolumeNotInRemote", "Pod", "waits")
        assert "not in the remote cluster" in found["waits"]
        assert "waits" not in uids(bridged.remote_pods())
        annotation = "cluster-bridge.io/remote-pvc=shared"
        bridged.kubectl("annotate", "pvc", "local", annotation)
        storage.wait_until_ready("waits")
        remote = get_one(storage.remote, "pod", "waits", namespace=bridged.remote_namespace)
        (volume,) = [it for it in remote["spec"]["volumes"] if it["name"] == "data"]
        assert volume["persistentVolumeClaim"]["claimName"] == "shared"
        storage.home.kubectl("delete", "pv", f"local-{bridged.node}", "--wait=false")

        # The example of the documentation, for a pod that the home cluster's scheduler places.
        example = _example_of_existing_claim(storage)
        storage.home.kubectl("apply", "-f", "-", input=example)
        # The scheduler can overlook that the claim of a waiting pod is bound, for five minutes
        # (kubernetes/kubernetes#93552).
        storage.wait_until_bound("shared")
        bridged.apply(storage.node_pod("scheduled", "shared"))
        storage.wait_until_ready("scheduled")
        remote = get_one(storage.remote, "pod", "scheduled", namespace=bridged.remote_namespace)
        (volume,) = [volume for volume in remote["spec"]["volumes"] if volume["name"] == "data"]
        assert volume["persistentVolumeClaim"]["claimName"] == "shared-data"
        storage.home.kubectl("delete", "-f", "-", "--wait=false", input=example)


def _example_of_existing_claim(storage: ProvisionedStorage) -> str:
    page = Path("docs/how-to/use-volumes.md").read_text()
    section = page.partition("## Use a PVC that exists in the remote")[2]
    text = section.partition("```yaml\n")[2].partition("```")[0]
    own = {
        "burst": storage.bridged.node,
        "shop": storage.bridged.namespace,
        "8Gi": "8Mi",
        "ReadWriteMany": "ReadWriteOnce",
    }
    for example, actual in own.items():
        text = text.replace(example, actual)
    return text


def _bind_at_home(storage: ProvisionedStorage, claim: str) -> None:
    """Binds a claim to a directory of home's nodes."""
    name = f"local-{storage.bridged.node}"
    volume: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "8Mi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/tmp/{name}"},
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    storage.home.kubectl("create", "-f", "-", input=json.dumps(volume))
    storage.bridged.apply(volume_claim(claim, name, "8Mi"))
    storage.wait_until_bound(claim)


def _pod_by_name(storage: ProvisionedStorage, name: str, claim: str) -> str:
    """A pod that is bound by its ``nodeName``."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    main = shell("main", "sleep 3600", volumeMounts=DATA)
    return pod(storage.bridged.node, name, containers=[main], volumes=volumes)


def test_capacity_of_remote_steers_home(storage: ProvisionedStorage) -> None:
    """Home's scheduler does not choose the remote for a claim that is too large for it."""
    bridged = storage.bridged
    with (
        hostpath(storage.remote, parameters={"capacity": "32Mi"}) as there,
        storage.home_class("small", remote_class=there) as name,
    ):
        # Until the provisioner has reported a capacity, the class has no limit.
        wait_for(lambda: storage.capacity(name) == "32Mi", "the home cluster has the capacity")
        bridged.apply(volume_claim("large", name, "64Mi"))
        bridged.apply(storage.node_pod("large", "large"))
        found = bridged.wait_for_events("FailedScheduling", "Pod", "large")
        assert "did not have enough free storage" in found["large"]
        assert not storage.remote_claims()
        bridged.apply(volume_claim("small", name, "8Mi"))
        bridged.apply(storage.node_pod("small", "small"))
        storage.wait_until_ready("small")


def test_shared_volume_and_clone(storage: ProvisionedStorage) -> None:
    """Pods of a Deployment share a ReadWriteMany claim; a clone has the data of its source."""
    bridged = storage.bridged
    with (
        hostpath(storage.remote) as there,
        storage.home_class("any", remote_class=there) as it,
    ):
        bridged.apply(volume_claim("shared", it, "8Mi", "ReadWriteMany"))
        bridged.apply(_deployment(storage, "shared", 3))
        wait_for(
            lambda: (
                bridged.kubectl(
                    *("get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
                )
                == "3"
            ),
            "all replicas are ready",
        )
        assert len(storage.remote_claims()) == 1
        source = {"kind": "PersistentVolumeClaim", "name": "shared"}
        bridged.apply(volume_claim("clone", it, "8Mi", dataSource=source))
        bridged.apply(storage.node_pod("clone", "clone"))
        storage.wait_until_ready("clone")
        lines = storage.read("clone").split()
        assert lines == ["started"] * 3


def test_source_of_a_clone_is_kept_until_the_clone_has_its_data(
    storage: ProvisionedStorage,
) -> None:
    """The clone is Bound in the home cluster before the remote, whose class waits for a pod, has
    copied it."""
    bridged = storage.bridged
    with (
        hostpath(storage.remote) as there,
        storage.home_class("any", remote_class=there) as name,
    ):
        bridged.apply(volume_claim("source", name, "8Mi"))
        _write(storage, "writes", "source")
        (source,) = storage.remote_claims()
        data_source = {"kind": "PersistentVolumeClaim", "name": "source"}
        bridged.apply(volume_claim("clone", name, "8Mi", dataSource=data_source))
        selected = f"volume.kubernetes.io/selected-node={bridged.node}"
        bridged.kubectl("annotate", "pvc", "clone", selected)
        storage.wait_until_bound("clone")
        bridged.kubectl("delete", "pod/writes", "pvc/source")

        def is_held() -> bool:
            events = get(storage.home, "events", namespace="default")
            volume = f"pvc-{source['metadata']['annotations']['cluster-bridge.io/home-uid']}"
            return any(
                event["involvedObject"].get("name") == volume
                and event["reason"] == "VolumeFailedDelete"
                for event in events
            )

        wait_for(is_held, "the bridge keeps the source")
        assert uids([source]).items() < uids(storage.remote_claims()).items()
        bridged.apply(storage.node_pod("clone", "clone"))
        storage.wait_until_ready("clone")
        assert storage.read("clone") == "started\n"
        wait_for(lambda: len(storage.volumes()) == 1, "the source's volume is deleted")
        assert len(storage.remote_claims()) == 1


def _deployment(storage: ProvisionedStorage, claim: str, replicas: int) -> str:
    script = "echo started >> /data/file; sleep 3600"
    labels = {"app": "web"}
    spec = storage.node_pod_object("web", claim, script)["spec"]
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    )


def test_volume_in_a_prepared_namespace(
    limited: Limited, home: Cluster, remote: Cluster, node_name: str, tmp_path: Path
) -> None:
    """With Roles in one namespace, and reads of StorageClasses and capacities alone, volumes are
    provisioned and deleted."""
    there = f"test-{node_name.rpartition('-')[2]}-e2e"
    account = service_accounts.in_prepared(node_name)
    meta = {"name": there, "annotations": {"cluster-bridge.io/accepts-home": "*"}}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    remote.kubectl("create", "-f", "-", input=json.dumps(body))
    granted = ("remote", "--namespace", there, "--storage", "provision")
    options = ("--remote-namespaces", there, "--limits", "cpu=2,memory=1Gi,pods=9")
    bridge = Bridge(
        limited.at_home(node_name),
        service_accounts.granted(remote, tmp_path, *granted, account=account),
        tmp_path / "bridge.log",
        (*usual_options(node_name), *options, "--storage", "provision"),
    )
    leave = ("--remote-namespaces", there)
    try:
        with (
            local_path(remote, default=True),
            joined(bridge, node_name, home=home, remote=remote, leave_options=leave) as bridged,
        ):
            storage = ProvisionedStorage(bridged)
            bridged.wait_until_schedulable()
            with storage.home_class("some") as name:
                bridged.apply(volume_claim("data", name, "8Mi"))
                _write(storage, "a", "data")
                storage.clear()
    finally:
        print(bridge.log.read_text())
        remote.kubectl("delete", "namespace", there, "--wait=false")
        service_accounts.take_away(remote, account)
