"""An API server's CA is rotated and the server moves while the bridge runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from e2e.clusters.cluster import Backend, Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, wait_for
from e2e.second_api_server import SecondApiServer
from e2e.workload_manifests import busybox

#: Seconds from the re-written kubeconfig until a new pod runs; the bridge has 40 of them.
FOLLOWED_SECONDS = 60.0

pytestmark = pytest.mark.timeout(600)


def _is_ready(bridged: Bridged) -> bool:
    node = get_one(bridged.home, "node", bridged.node)
    return any(
        it["type"] == "Ready" and it["status"] == "True" for it in node["status"]["conditions"]
    )


def _runs(bridged: Bridged, name: str) -> bool:
    """Whether the pod is Ready at home, which needs writes of the bridge in both clusters."""
    bridged.apply(busybox(bridged.node, name, "sleep 3600"))
    pod = get_one(bridged.home, "pod", name, namespace=bridged.namespace)
    conditions = pod.get("status", {}).get("conditions", ())
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


def _lives(pods: list[Json]) -> dict[str, tuple[str, str, int]]:
    """UID, container and restarts of each pod."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["containerID"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in pods
    }


def _followed(bridged: Bridged, side: str, folder: Path) -> None:
    cluster: Cluster = getattr(bridged.bridge, side)
    if cluster.backend is not Backend.NATIVE:
        pytest.skip("a second API server is a process of native clusters")
    with SecondApiServer(cluster, folder) as server:
        assert bridged.bridge.stop() == 0
        setattr(bridged.bridge, side, server.write_kubeconfig())
        bridged.bridge.start()
        wait_for(lambda: _runs(bridged, "stays"), "a pod runs")
        home = get_one(bridged.home, "pod", "stays", namespace=bridged.namespace)
        before = _lives(bridged.remote_pods())

        server.rotate()
        log = bridged.bridge.log
        wait_for(lambda: "is not trusted" in log.read_text(), "the new CA is not trusted yet")
        server.write_kubeconfig()
        what = "a pod runs after the CA was rotated"
        wait_for(lambda: _runs(bridged, "rotated"), what, seconds=FOLLOWED_SECONDS)

        server.move()
        server.write_kubeconfig()
        what = "a pod runs after the server moved"
        wait_for(lambda: _runs(bridged, "moved"), what, seconds=FOLLOWED_SECONDS)
        wait_for(lambda: _is_ready(bridged), "the node is Ready")
        assert bridged.kubectl("exec", "moved", "--", "echo", "hello").strip() == "hello"

        after = _lives(bridged.remote_pods())
        assert {name: after[name] for name in before} == before, "no running pod was touched"
        uid = home["metadata"]["uid"]
        home = get_one(bridged.home, "pod", "stays", namespace=bridged.namespace)
        assert home["metadata"]["uid"] == uid
        assert bridged.bridge.process is not None
        assert bridged.bridge.process.poll() is None, "it was not restarted"
        assert bridged.bridge.stop() == 0


def test_rotated_ca_and_moved_server_of_the_remote_are_followed(
    bridged: Bridged, tmp_path: Path
) -> None:
    _followed(bridged, "remote", tmp_path)


def test_rotated_ca_and_moved_server_of_home_are_followed(bridged: Bridged, tmp_path: Path) -> None:
    _followed(bridged, "home", tmp_path)


def test_kubeconfig_that_leads_to_another_cluster_is_not_followed(
    bridged: Bridged, tmp_path: Path
) -> None:
    """Home's API server instead of the remote's: the same permissions, another cluster."""
    cluster = bridged.bridge.remote
    if cluster.backend is not Backend.NATIVE:
        pytest.skip("a second API server is a process of native clusters")
    with SecondApiServer(cluster, tmp_path) as server:
        assert bridged.bridge.stop() == 0
        bridged.bridge.remote = server.write_kubeconfig()
        bridged.bridge.start()
        wait_for(lambda: _runs(bridged, "stays"), "a pod runs")
        before = _lives(bridged.remote_pods())
        path = bridged.bridge.remote.kubeconfig
        elsewhere = dataclasses.replace(bridged.home, kubeconfig=path)
        server.rotate()
        path.write_text(
            bridged.home.kubeconfig.read_text().replace(
                f": {bridged.home.context}", f": {cluster.context}"
            )
        )
        assert elsewhere.kubectl("get", "node", bridged.node).returncode == 0
        log = bridged.bridge.log
        wait_for(lambda: "leads to another cluster" in log.read_text(), "the bridge reports it")
        assert _lives(bridged.remote_pods()) == before
        server.write_kubeconfig()
        what = "a pod runs when the kubeconfig leads to the remote again"
        wait_for(lambda: _runs(bridged, "after"), what, seconds=FOLLOWED_SECONDS)
        after = _lives(bridged.remote_pods())
        assert {name: after[name] for name in before} == before
        assert bridged.bridge.stop() == 0
