"""API server restarts and network cuts do not affect running pods."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest

from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from e2e.bridge_process import REGISTERED
from e2e.conftest import Bridged
from e2e.kubectl import get_one, uids, wait_for
from e2e.workload_manifests import busybox

#: Seconds until an outage is reported: a dead peer is detected in 20, an outage reported 15 later.
REPORT_SECONDS = 60.0
#: Seconds until a hanging API server is reported (docs/explanation/failure-modes.md): 8 until a
#: renewal of the claim has no response, 10 to 30 until a watch has none, and 15 more.
HANG_SECONDS = 60.0


def _ready(bridged: Bridged) -> tuple[str, str]:
    node = get_one(bridged.home, "node", bridged.node)
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    return ready["status"], ready["reason"]


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(False, id="API server is down", marks=pytest.mark.core),
        pytest.param(True, id="network is cut"),
    ],
)
def test_remote_outage_is_reported_and_harms_nothing(bridged: Bridged, cut: bool) -> None:
    """The node reports it, pods keep UIDs and start times, and later changes are applied."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.apply(busybox(bridged.node, "goes", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "pod/goes", "--timeout=60s")
    before = uids(bridged.remote_pods())

    if cut:
        bridged.remote.freeze_network()
    else:
        bridged.remote.stop_component("kube-apiserver")
    try:
        wait_for(
            lambda: _ready(bridged) == ("False", "RemoteUnreachable"),
            "the node reports the outage",
            seconds=REPORT_SECONDS,
        )
        bridged.kubectl("delete", "pod", "goes", "--wait=false")
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
    finally:
        if cut:
            bridged.remote.thaw_network()
        else:
            bridged.remote.start_api_server()

    wait_for(
        lambda: _ready(bridged)[0] == "True", "the node is Ready again", seconds=REPORT_SECONDS
    )
    ready = ("wait", "--for=condition=Ready", "pod/comes", "pod/stays", "--timeout=10s")
    wait_for(
        lambda: bridged.kubectl(*ready, check=False).count("condition met") == 2,
        "both pods are Ready",
        seconds=90,
    )
    wait_for(lambda: "goes" not in uids(bridged.remote_pods()), "the deletion was passed on")
    assert uids(bridged.remote_pods())["stays"] == before["stays"]
    pod = get_one(bridged.home, "pod", "stays", namespace=bridged.namespace)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_bridge_started_during_a_remote_outage_waits(bridged: Bridged) -> None:
    """Its probes respond and report the reason; then it continues normally."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = uids(bridged.remote_pods())
    bridged.bridge.stop()
    with socket.create_server(("", 0)) as free:
        port = int(free.getsockname()[1])

    def probe(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    bridged.remote.stop_component("kube-apiserver")
    try:
        bridged.bridge.args = [*bridged.bridge.args, f"--health-port={port}"]
        bridged.bridge.launch()
        bridged.bridge.wait_for_log(WAITING_SUFFIX)
        assert probe("/livez")[0] == 200
        code, why = probe("/readyz")
        assert code == 503
        assert why.startswith("remote: ")
    finally:
        bridged.remote.start_api_server()
    bridged.bridge.wait_for_log(REGISTERED, times=2)
    wait_for(lambda: _ready(bridged)[0] == "True", "the node is Ready again")
    wait_for(lambda: probe("/readyz")[0] == 200, "it is ready")
    assert uids(bridged.remote_pods()) == before


@pytest.mark.timeout(420)
def test_hanging_api_server_of_the_remote_is_reported(bridged: Bridged) -> None:
    """The server accepts connections and does not answer. No watch has had a bookmark, and no pod
    causes requests meanwhile."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = uids(bridged.remote_pods())
    bridged.remote.suspend_component("kube-apiserver")
    began = time.monotonic()
    try:
        wait_for(
            lambda: _ready(bridged) == ("False", "RemoteUnreachable"),
            "the node reports that its remote hangs",
            seconds=HANG_SECONDS,
        )
        print(f"measured: a hanging API server is reported after {time.monotonic() - began:.1f} s")
    finally:
        bridged.remote.resume_component("kube-apiserver")
        # The kubelet may have considered a static pod dead, and started another.
        bridged.remote.start_api_server()
    wait_for(
        lambda: _ready(bridged)[0] == "True", "the node is Ready again", seconds=REPORT_SECONDS
    )
    assert uids(bridged.remote_pods()) == before


@pytest.mark.core
def test_home_outage_harms_nothing(bridged: Bridged) -> None:
    """Home's API server restarts: bridge and pods continue."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = uids(bridged.remote_pods())
    bridged.home.stop_component("kube-apiserver")
    bridged.home.start_api_server()
    bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/comes", "pod/stays", "--timeout=90s")
    assert uids(bridged.remote_pods())["stays"] == before["stays"]
    assert _ready(bridged)[0] == "True"
