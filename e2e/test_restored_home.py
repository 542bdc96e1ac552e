"""A home that was restored from a backup beside the original, with the same remote.

With the kind backend this test uses separate native clusters: kind keeps etcd in a node's container
(`e2e.restored_home`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e import bridge_process, certificate_approver, service_accounts
from e2e.bridge_process import REGISTERED, REJECTED_SECONDS, Bridge
from e2e.clusters import specs
from e2e.clusters.cluster import Backend, Cluster
from e2e.clusters.pytest_fixture import running, settings_from_environment
from e2e.conftest import Bridged, joined, usual_options
from e2e.kubectl import Json, get, get_events, uids, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.restored_home import restored, saved
from e2e.standby_replica import now, writes
from e2e.storage_classes import hostpath
from e2e.workload_manifests import busybox, volume_claim, web

#: The columns of a rejected bridge.
_ID = re.compile(r"--take-over-claim ([0-9a-f]{16})")


@pytest.fixture
def native(
    request: pytest.FixtureRequest, clusters: dict[str, Cluster]
) -> Iterator[dict[str, Cluster]]:
    """The clusters of the other tests if they are native, else a separate pair."""
    if all(it.backend is Backend.NATIVE for it in clusters.values()):
        yield clusters
        return
    usual = settings_from_environment()
    settings = replace(usual, prefix=f"{usual.prefix[:5]}back", backend=Backend.NATIVE)
    with running(request, specs(), settings) as found:
        yield found


@pytest.fixture
def original(native: dict[str, Cluster], node_name: str, tmp_path: Path) -> Iterator[Bridged]:
    """A bridge with the permissions that `bridge rbac` prints."""
    home, remote = native["home"], native["remote"]
    bridge = Bridge(
        service_accounts.at_home(home, tmp_path, node_name),
        service_accounts.in_remote(remote, tmp_path),
        tmp_path / "bridge.log",
        usual_options(node_name),
    )
    try:
        with (
            certificate_approver.approving(home),
            joined(bridge, node_name, home=home, remote=remote) as found,
        ):
            yield found
    finally:
        print(bridge.log.read_text())
        service_accounts.take_away_at_home(home, node_name)


def _claim(bridged: Bridged) -> Json:
    """The claim's Lease in the remote."""
    leases = get(
        bridged.remote,
        "leases",
        namespace="kube-node-lease",
        selector=f"cluster-bridge.io/node={bridged.node}",
    )
    assert len(leases) == 1, leases
    return leases[0]


def _sequence(bridged: Bridged) -> int:
    return int(_claim(bridged)["metadata"]["annotations"]["cluster-bridge.io/claim"].split()[0])


def _renewed(bridged: Bridged) -> None:
    """Waits until the bridge with the claim has renewed it twice."""
    before = _sequence(bridged)
    wait_for(lambda: _sequence(bridged) >= before + 2, "the claim is renewed")


def _starts(pods: list[Json]) -> dict[str, tuple[str, str]]:
    """Pod name → UID, and start time of the container."""
    return {
        it["metadata"]["name"]: (
            it["metadata"]["uid"],
            it["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
        )
        for it in pods
    }


def _refused(bridge: Bridge) -> tuple[str, str]:
    """Joins; returns the error and the ID in it."""
    begin = bridge.launch()
    assert bridge.wait_for_exit(seconds=REJECTED_SECONDS) == 1
    text = bridge.log.read_text()[begin:]
    assert REGISTERED not in text
    [line] = [it for it in text.splitlines() if it.startswith("error: ")]
    found = _ID.search(line)
    assert found, line
    return line, found[1]


@pytest.mark.core
def test_restored_home_touches_no_pod_without_takeover(original: Bridged, tmp_path: Path) -> None:
    """The error explains the cause. A deliberate takeover works, ends the original bridge, and can
    be reversed."""
    original.apply(web(original.node))
    original.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    data = saved(original.home, tmp_path / "etcd")
    original.apply(busybox(original.node, "later", "sleep 3600", restart="Never"))
    original.kubectl("wait", "--for=condition=Ready", "pod/later", "--timeout=60s")
    _renewed(original)
    before = _starts(original.remote_pods())
    began = now()

    with restored(original.home, data, original.bridge.home) as (other, limited):
        names = uids(get(other, "pods", namespace=original.namespace))
        assert "later" not in names, "the backup is older than this pod"
        second = replace(original.bridge, home=limited, log=tmp_path / "second.log", process=None)
        try:
            error, taken = _refused(second)
            assert "restored from a backup or cloned" in error
            assert taken in _claim(original)["metadata"]["annotations"]["cluster-bridge.io/claim"]
            # The same applies to a retry and to leaving.
            _refused(second)
            left = bridge_process.run(
                *("leave", original.node, "--yes", "--force"),
                *("--kubeconfig", original.bridge.remote.kubeconfig),
                home=limited,
            )
            assert left.returncode == 1, left.stderr
            assert "nothing was removed" in left.stderr

            assert _starts(original.remote_pods()) == before
            wrote = writes(original.remote, since=began, namespace=original.remote_namespace)
            assert not [it for it in wrote if it.verb == "delete" and it.resource == "pods"]
            assert original.kubectl("exec", "later", "--", "echo", "heard").strip() == "heard"
            _renewed(original)

            usual = second.args
            second.args = (*usual, "--take-over-claim", taken)
            second.start()
            assert original.bridge.wait_for_exit() == 1
            assert "is not this bridge's" in original.bridge.log.read_text()
            wait_for(
                lambda: "later" not in uids(original.remote_pods()),
                "the pod that the restored home does not know is deleted",
                seconds=60,
            )
            kept = {name: it for name, it in before.items() if name != "later"}
            assert _starts(original.remote_pods()) == kept
            # The option may stay in place: it has no effect on the next claim.
            assert second.stop() == 0
            second.start()
            assert second.stop() == 0
        finally:
            second.kill()
            print(second.log.read_text())

    # The reversal.
    _, taken = _refused(original.bridge)
    usual = original.bridge.args
    original.bridge.args = (*usual, "--take-over-claim", taken)
    original.bridge.start()
    assert _starts(original.remote_pods()).items() >= kept.items()


def test_restored_home_deletes_no_volume(original: Bridged, tmp_path: Path) -> None:
    """A volume that was created after the backup stays, even after a deliberate takeover, and one
    that was deleted after it gets no empty volume in its place."""
    original.wait_until_schedulable()
    storage = ProvisionedStorage(original)
    with hostpath(original.remote, default=True), storage.home_class("some") as name:
        _store(storage, name, "early", "dropped")
        data = saved(original.home, tmp_path / "etcd")
        _store(storage, name, "late")
        original.kubectl("delete", "pod/dropped", "pvc/dropped", "--wait=true")
        wait_for(lambda: len(storage.remote_claims()) == 2, "the dropped volume is deleted")
        _renewed(original)
        before, began = _versions(storage), now()

        with restored(original.home, data, original.bridge.home) as (other, limited):
            second = replace(
                original.bridge, home=limited, log=tmp_path / "second.log", process=None
            )
            try:
                _, taken = _refused(second)
                assert _versions(storage) == before
                second.args = (*second.args, "--take-over-claim", taken)
                second.start()
                assert original.bridge.wait_for_exit() == 1
                wait_for(
                    lambda: "late" not in uids(original.remote_pods()),
                    "the pod that the restored home does not know is deleted",
                    seconds=60,
                )
                wait_for(
                    lambda: _has_event(other, original.namespace, "VolumeNotInRemote", "dropped"),
                    "the pod whose volume no longer exists waits",
                )
            finally:
                second.kill()
                print(second.log.read_text())
        assert _versions(storage) == before
        wrote = writes(original.remote, since=began, namespace=original.remote_namespace)
        assert not [it for it in wrote if it.resource == "persistentvolumeclaims"]

        _, taken = _refused(original.bridge)
        usual = original.bridge.args
        original.bridge.args = (*usual, "--take-over-claim", taken)
        original.bridge.start()
        assert storage.read("early") == "early\n"
        storage.clear()


def test_clone_under_another_node_name_gets_no_volume(original: Bridged, tmp_path: Path) -> None:
    """While the original's bridge runs; the bridge of the clone ends before it writes anything."""
    original.wait_until_schedulable()
    storage, drill = ProvisionedStorage(original), f"{original.node}-drill"
    with hostpath(original.remote, default=True), storage.home_class("some") as name:
        _store(storage, name, "early")
        data = saved(original.home, tmp_path / "etcd")
        _renewed(original)
        before, began = _versions(storage), now()
        with restored(original.home, data) as (other,):
            limited = service_accounts.in_place_of_node(other, tmp_path, drill)
            options = (*usual_options(drill), "--home-identity", "service-account")
            second = replace(
                original.bridge,
                home=limited,
                log=tmp_path / "second.log",
                process=None,
                args=options,
            )
            try:
                second.launch()
                assert second.wait_for_exit(seconds=REJECTED_SECONDS) == 1
                text = second.log.read_text()
                assert f"serves node {original.node}" in text
                assert REGISTERED not in text
            finally:
                second.kill()
                print(second.log.read_text())
        assert _versions(storage) == before
        wrote = writes(original.remote, since=began, namespace=original.remote_namespace)
        assert not any(entry.resource == "persistentvolumeclaims" for entry in wrote)
        storage.clear()


def _store(storage: ProvisionedStorage, storage_class: str, *names: str) -> None:
    """A PVC for each name, and a pod that writes the name to it."""
    for name in names:
        storage.bridged.apply(volume_claim(name, storage_class, "8Mi"))
        script = f"echo {name} > /data/file; sleep 3600"
        storage.bridged.apply(storage.node_pod(name, name, script))
    storage.wait_until_ready(*names)


def _versions(storage: ProvisionedStorage) -> dict[str, tuple[str, str]]:
    """Remote PVC → UID and resource version."""
    found = [it["metadata"] for it in storage.remote_claims()]
    return {it["name"]: (it["uid"], it["resourceVersion"]) for it in found}


def _has_event(cluster: Cluster, namespace: str, reason: str, name: str) -> bool:
    events = get_events(cluster, name, namespace=namespace)
    return any(event["reason"] == reason for event in events)
