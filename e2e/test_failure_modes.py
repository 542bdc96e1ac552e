"""The rows of docs/explanation/failure-modes.md: what home sees, what continues, and recovery.

The documented limits are asserted; measured times are printed (`pytest -s`), and also in the
document. Every row has the same workload: a pod that runs all the time and must not be affected,
and one that must run once (`Steady`).
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get, get_events, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox, web

#: Limits of docs/explanation/failure-modes.md in seconds: until the node reports an outage of the
#: remote, until recovery after its end, and from SIGTERM to the end of the process.
REPORTED, HEALED, STOPPED = 40.0, 10.0, 10.0
#: Seconds after which home considers a silent node lost (its controller-manager's grace is 50).
LOST = 90.0
#: Seconds for waits without a documented limit.
PATIENCE = 120.0

#: The ways to cut a connection to a cluster.
_CUTS = ["network", "API server"]

#: A `bridge` that reports a later version.
OTHER_VERSION = """
from bridge.base import version
version.version = lambda: "99.0.0"
from bridge.cli import main
main()
"""


def ready(bridged: Bridged) -> tuple[str, str]:
    """The node's Ready condition: status and reason."""
    node = get_one(bridged.home, "node", bridged.node)
    found = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    return found["status"], found["reason"]


def timed(condition: Callable[[], object], what: str, *, limit: float) -> float:
    """Waits at most ``limit`` seconds; prints and returns the time."""
    began = time.monotonic()
    wait_for(condition, what, seconds=limit)
    took = time.monotonic() - began
    print(f"measured: {what}: {took:.1f} s")
    return took


class Steady:
    """Two pods that run before the failure, and must still run after it."""

    def __init__(self, bridged: Bridged) -> None:
        self._bridged = bridged
        bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
        bridged.apply(busybox(bridged.node, "once", "sleep 3600", restart="Never"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "pod/once", "--timeout=90s")
        self._there = uids(bridged.remote_pods())
        self._home = uids(bridged.home_pods())

    def runs_on(self) -> None:
        """Verifies that the remote pods are the same and nothing was restarted."""
        pods = {pod["metadata"]["name"]: pod for pod in self._bridged.remote_pods()}
        for name, uid in self._there.items():
            assert pods[name]["metadata"]["uid"] == uid
            (container,) = pods[name]["status"]["containerStatuses"]
            assert "running" in container["state"]
            assert container["restartCount"] == 0

    def is_untouched(self) -> None:
        """Ends the pods on both sides."""
        self.runs_on()
        there = uids(self._bridged.home_pods())
        assert {name: there[name] for name in self._home} == self._home

    def is_ready_at_home(self) -> bool:
        """Whether both pods are Ready at home."""
        pods = [p for p in self._bridged.home_pods() if p["metadata"]["name"] in self._home]
        return all(map(is_ready, pods))


def changed_meanwhile(bridged: Bridged) -> None:
    """During the outage one pod is deleted and another one created."""
    bridged.kubectl("delete", "pod", "goes", "--wait=false")
    bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))


def followed(bridged: Bridged) -> bool:
    """Whether the remote has the requested changes and the node reports that it is reachable.
    Readiness depends on the remote: after a long outage of its API server, its nodes must report
    first."""
    there = {pod["metadata"]["name"]: pod for pod in bridged.remote_pods()}
    gone = "goes" not in there or "deletionTimestamp" in there["goes"]["metadata"]
    status, reason = ready(bridged)
    return gone and reason != "RemoteUnreachable" and ("comes" in there or status == "False")


def healthy(bridged: Bridged) -> bool:
    """Whether the bridge reports that it is healthy, in the same process."""
    path = f"/api/v1/nodes/{bridged.node}/proxy"
    healthz = [
        bridged.home.kubectl("get", "--raw", f"{path}/{it}", check=False).stdout
        for it in ("healthz", "livez")
    ]
    process = bridged.bridge.process
    return healthz == ["ok", "ok"] and process is not None and process.poll() is None


def answers(cluster: Cluster) -> bool:
    """Whether the cluster's API server is ready."""
    return cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0


@contextmanager
def cut(cluster: Cluster, how: str) -> Iterator[None]:
    """The cluster is unreachable in the block: packets are lost, or its API server is down."""
    if how == "network":
        cluster.freeze_network()
    else:
        cluster.stop_component("kube-apiserver")
    try:
        yield
    finally:
        if how == "network":
            cluster.thaw_network()
        else:
            cluster.start_api_server()


@pytest.mark.parametrize("how", _CUTS)
def test_cut_to_the_remote(bridged: Bridged, how: str) -> None:
    """The node is NotReady with a reason, the bridge is healthy, and changes apply afterwards."""
    steady = Steady(bridged)
    bridged.apply(busybox(bridged.node, "goes", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/goes", "--timeout=60s")
    with cut(bridged.remote, how):
        timed(
            lambda: ready(bridged) == ("False", "RemoteUnreachable"),
            f"cut to the remote ({how}): the node is NotReady",
            limit=REPORTED,
        )
        assert healthy(bridged)
        changed_meanwhile(bridged)
        time.sleep(20)
        assert healthy(bridged)
        if how == "network":
            assert "goes" in uids(bridged.home_pods()), "it is not gone before it ended"
    timed(
        lambda: followed(bridged),
        f"cut to the remote ({how}): all has followed after healing",
        limit=HEALED,
    )
    steady.is_untouched()
    timed(
        lambda: ready(bridged)[0] == "True" and all(map(is_ready, bridged.home_pods())),
        f"cut to the remote ({how}): node and pods are Ready",
        limit=PATIENCE,
    )


@pytest.mark.parametrize("how", _CUTS)
def test_cut_to_home(bridged: Bridged, how: str) -> None:
    """Home considers the node lost; the remote's pods continue; home recovers afterwards."""
    steady = Steady(bridged)
    with cut(bridged.home, how):
        until = time.monotonic() + LOST
        while time.monotonic() < until:
            steady.runs_on()
            time.sleep(10)
        process = bridged.bridge.process
        assert process is not None
        assert process.poll() is None, "it goes on"
    # Without its API server, home detected nothing; the bridge corrects a late detection.
    timed(
        lambda: ready(bridged)[0] == "True" and steady.is_ready_at_home(),
        f"cut to home ({how}): node and pods are Ready again after healing",
        limit=HEALED if how == "network" else PATIENCE,
    )
    steady.is_untouched()


def test_crash(bridged: Bridged) -> None:
    """As on any node whose kubelet died: lost after a while, Ready again with the next bridge."""
    steady = Steady(bridged)
    bridged.bridge.kill()
    timed(
        lambda: ready(bridged) == ("Unknown", "NodeStatusUnknown"),
        "crash: home calls the node lost",
        limit=LOST,
    )
    steady.is_untouched()
    bridged.bridge.start()
    timed(
        lambda: ready(bridged)[0] == "True" and steady.is_ready_at_home(),
        "crash: node and pods are Ready again after the start",
        limit=HEALED,
    )
    steady.is_untouched()


@pytest.mark.core
def test_upgrade(bridged: Bridged) -> None:
    """Another version takes over running pods; the node is never NotReady."""
    steady = Steady(bridged)
    assert bridged.bridge.stop() == 0
    bridged.bridge.program = (sys.executable, "-c", OTHER_VERSION)
    bridged.bridge.start()
    timed(
        lambda: (
            "99.0.0" in get_one(bridged.home, "node", bridged.node)["status"]["nodeInfo"]["osImage"]
        ),
        "upgrade: the node names the new version after its start",
        limit=HEALED,
    )
    assert ready(bridged)[0] == "True"
    steady.is_untouched()
    events = get_events(bridged.home, bridged.node, namespace="default")
    assert "NodeNotReady" not in {event["reason"] for event in events}


def _kubeconfig(cluster: Cluster, account: str, path: Path) -> None:
    """A kubeconfig with a new token of an administrative service account."""
    cluster.kubectl("create", "serviceaccount", account, "-n", "default")
    token = cluster.kubectl("create", "token", account, "-n", "default").stdout.strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path.write_text(yaml.safe_dump(config))


def test_lost_credential_of_home(bridged: Bridged, tmp_path: Path) -> None:
    """Home considers the node lost; the bridge uses the new credential in the file."""
    home, account, path = bridged.home, bridged.node, tmp_path / "home.yaml"
    _kubeconfig(home, account, path)
    binding = ("create", "clusterrolebinding", account, "--clusterrole=cluster-admin")
    home.kubectl(*binding, f"--serviceaccount=default:{account}")
    try:
        assert bridged.bridge.stop() == 0
        bridged.bridge.home = dataclasses.replace(home, kubeconfig=path)
        bridged.bridge.start()
        steady = Steady(bridged)
        home.kubectl("delete", "serviceaccount", account, "-n", "default")
        timed(
            lambda: ready(bridged)[0] == "Unknown",
            "lost credential of home: home calls the node lost",
            limit=LOST + 20,
        )
        steady.is_untouched()
        process = bridged.bridge.process
        assert process is not None
        assert process.poll() is None, "it goes on"
        _kubeconfig(home, account, path)
        timed(
            lambda: ready(bridged)[0] == "True" and steady.is_ready_at_home(),
            "lost credential of home: all is well after a new one is in the kubeconfig",
            limit=PATIENCE,
        )
        steady.is_untouched()
    finally:
        home.kubectl("delete", "clusterrolebinding", account)
        home.kubectl("delete", "serviceaccount", account, "-n", "default", check=False)


@contextmanager
def slow(cluster: Cluster, *, asleep: float, awake: float) -> Iterator[None]:
    """Suspends the cluster's API server most of the time."""
    stop = threading.Event()

    def doze() -> None:
        while not stop.is_set():
            cluster.suspend_component("kube-apiserver")
            time.sleep(asleep)
            cluster.resume_component("kube-apiserver")
            time.sleep(awake)

    dozing = threading.Thread(target=doze)
    dozing.start()
    try:
        yield
    finally:
        stop.set()
        dozing.join()


def test_slow_remote(bridged: Bridged) -> None:
    """Requests take longer; no pod is considered lost, and nothing is repeated."""
    steady = Steady(bridged)
    reasons = set()
    with slow(bridged.remote, asleep=4.0, awake=0.7):
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            reasons.add(ready(bridged))
            assert healthy(bridged)
            time.sleep(2)
    timed(
        lambda: is_ready(get_one(bridged.home, "pod", "comes", namespace=bridged.namespace)),
        "slow remote: the pod that was made meanwhile is Ready after it",
        limit=PATIENCE,
    )
    assert {status for status, _ in reasons} == {"True"}, reasons
    assert sorted(uids(bridged.remote_pods())) == ["comes", "once", "stays"]
    steady.is_untouched()


@pytest.mark.parametrize(
    "away",
    [
        "neither",
        "home",
        "remote",
        pytest.param("both", marks=pytest.mark.core),
    ],
)
def test_stop_is_bounded(bridged: Bridged, away: str) -> None:
    """Even during outages, and with a log follower; workloads continue."""
    steady = Steady(bridged)
    process = bridged.bridge.process
    assert process is not None
    clusters = {"home": [bridged.home], "remote": [bridged.remote], "neither": []}
    gone = clusters.get(away, [bridged.home, bridged.remote])
    for cluster in gone:
        cluster.freeze_network()
    try:
        time.sleep(1)
        began = time.monotonic()
        process.terminate()
        assert process.wait(2 * STOPPED) == 0
        took = time.monotonic() - began
    finally:
        for cluster in gone:
            cluster.thaw_network()
    print(f"measured: stop with {away} away: {took:.1f} s")
    assert took <= STOPPED
    bridged.bridge.process = None
    wait_for(lambda: answers(bridged.remote), "the remote is back")
    steady.runs_on()


@pytest.mark.join("--network=relay")
def test_stop_with_a_relay_is_bounded(bridged: Bridged) -> None:
    """Home's Services lead to the bridge; it removes their EndpointSlices before it ends."""
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    selector = f"cluster-bridge.io/node={bridged.node}"
    wait_for(
        lambda: get(bridged.home, "endpointslices", namespace=bridged.namespace, selector=selector),
        "home's Service leads to the bridge",
    )
    began = time.monotonic()
    assert bridged.bridge.stop() == 0
    took = time.monotonic() - began
    print(f"measured: stop with a relay: {took:.1f} s")
    assert took <= STOPPED
