"""Two bridges of one node: one serves, the other takes over, and nothing is done twice.

The API servers' audit logs show which bridge wrote what and when: the bridges are two users there.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bridge_process
from e2e.bridge_process import REGISTERED
from e2e.conftest import Bridged
from e2e.faulty_server import FaultyServer
from e2e.kubectl import get, get_one, is_ready, uids, wait_for
from e2e.standby_replica import (
    StandbyBridge,
    Write,
    administrator,
    now,
    standby_bridge,
    writes,
)
from e2e.workload_manifests import busybox, web

#: Seconds from a crash of the leader to the first write of its successor.
TAKEOVER = 5.0
#: Seconds in which a resumed bridge detects that it lost its Lease.
FOUND_OUT = 3.0
#: Seconds until a bridge yields whose connections to the remote fail: 10 make it lost.
GIVES_WAY = 30.0
#: Log texts of a bridge that cannot renew its Lease, and that can again.
SHUT, OPEN = "nothing is written", "work goes on"


@pytest.fixture
def other(bridged: Bridged, tmp_path: Path) -> Iterator[StandbyBridge]:
    """A second bridge of the node, as the standby replica."""
    with standby_bridge(bridged, tmp_path) as made:
        made.stand_by()
        yield made


def _running(bridged: Bridged) -> dict[str, str]:
    """A Deployment and a run-once pod; the UIDs of the remote pods."""
    bridged.apply(web(bridged.node))
    bridged.apply(busybox(bridged.node, "once", "sleep 3600", restart="Never"))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    bridged.kubectl("wait", "--for=condition=Ready", "pod/once", "--timeout=60s")
    return uids(bridged.remote_pods())


def _made(bridged: Bridged, *, since: float) -> Counter[str]:
    """Number of creations of each pod in the remote, by either bridge."""
    found = writes(bridged.remote, since=since, namespace=bridged.remote_namespace)
    return Counter(it.name for it in found if it.resource == "pods" and it.code == 201)


def _of(other: StandbyBridge, found: list[Write], *, theirs: bool) -> list[Write]:
    """The writes of the second bridge, or those of the first."""
    return [it for it in found if (it.user == other.user) == theirs]


def _serves(bridged: Bridged) -> None:
    """Logs, exec and new pods work with the current leader."""
    assert bridged.kubectl("exec", "once", "--", "echo", "heard").strip() == "heard"
    bridged.kubectl("logs", "deployment/web", "--tail=1")
    name = f"new-{time.monotonic_ns()}"
    bridged.apply(busybox(bridged.node, name, "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    bridged.kubectl("delete", "pod", name, "--wait=false")


@pytest.mark.parametrize(
    "how", [pytest.param("kill -9", marks=pytest.mark.core), "SIGTERM", "SIGHUP"]
)
def test_standby_takes_over_and_pods_continue(
    bridged: Bridged, other: StandbyBridge, how: str
) -> None:
    """It writes new changes, and nothing twice; each remote pod was created once."""
    began = now()
    running = _running(bridged)
    assert not _of(other, writes(bridged.home, since=began), theirs=True), "it stands by"
    assert not _of(other, writes(bridged.remote, since=began), theirs=True), "it stands by"
    time.sleep(2)

    ended = now()
    if how != "kill -9":
        bridged.bridge.stop(signal.Signals[how])
    else:
        bridged.bridge.kill()
    bridged.apply(busybox(bridged.node, "meanwhile", "sleep 3600", restart="Never"))
    other.bridge.wait_for_log(REGISTERED)
    first = _of(other, writes(bridged.home, since=ended), theirs=True)[0]
    print(f"{how}: the first write of the next came after {first.at - ended:.2f} s")

    bridged.kubectl("wait", "--for=condition=Ready", "pod/meanwhile", "--timeout=60s")
    after = uids(bridged.remote_pods())
    assert {name: after[name] for name in running} == running
    rewritten = [
        it
        for it in _of(other, writes(bridged.home, since=ended), theirs=True)
        if it.resource == "pods/status" and it.name in running
    ]
    # If the second bridge has another address, it writes it once to each pod.
    assert max(Counter(it.name for it in rewritten).values(), default=0) <= 1, rewritten
    made = _made(bridged, since=began)
    assert made == dict.fromkeys({*running, "meanwhile"}, 1)
    _serves(bridged)


def test_suspended_bridge_writes_nothing_when_it_resumes(
    bridged: Bridged, other: StandbyBridge
) -> None:
    """Even though it knows first of changes in both clusters."""
    running = _running(bridged)
    bridged.bridge.signal(signal.SIGSTOP)
    stopped = now()
    try:
        other.bridge.wait_for_log(REGISTERED)
        time.sleep(max(0.0, stopped + 8 - now()))
        bridged.kubectl("delete", "pod", "once", "--wait=false")
        bridged.remote.kubectl("delete", "configmap", "web", "-n", bridged.remote_namespace)
        bridged.apply(busybox(bridged.node, "late", "sleep 3600"))
    finally:
        bridged.bridge.signal(signal.SIGCONT)
    bridged.bridge.wait_for_log("is held by")
    time.sleep(FOUND_OUT)
    for cluster in (bridged.home, bridged.remote):
        assert not _of(other, writes(cluster, since=stopped + 0.5), theirs=False)
    bridged.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=60s")
    assert "once" in running
    wait_for(lambda: "once" not in uids(bridged.remote_pods()), "the deletion was passed on")
    # It is the standby replica now, and takes over in turn.
    bridged.bridge.wait_for_log("standing by")
    other.bridge.kill()
    bridged.bridge.wait_for_log(REGISTERED, times=2)
    bridged.apply(busybox(bridged.node, "later", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/later", "--timeout=60s")
    made = _made(bridged, since=stopped)
    assert made == {"late": 1, "later": 1}


def test_bridge_cut_off_from_home_writes_nothing_to_the_remote(
    bridged: Bridged, other: StandbyBridge
) -> None:
    """Even though it reaches the remote, and sees changes to make there."""
    running = _running(bridged)
    assert bridged.bridge.stop() == 0
    other.bridge.wait_for_log(REGISTERED)
    bridged.bridge.start(until="standing by")

    other.home_proxy.cut()
    cut = now()
    bridged.bridge.wait_for_log(REGISTERED, times=2)
    taken = now()
    assert taken - cut < TAKEOVER + 1
    bridged.remote.kubectl("delete", "configmap", "web", "-n", bridged.remote_namespace)
    wait_for(
        lambda: (
            "web" in uids(get(bridged.remote, "configmaps", namespace=bridged.remote_namespace))
        ),
        "it is put right by the one that serves",
    )
    time.sleep(2)
    other.home_proxy.heal()
    other.bridge.wait_for_log("is held by", seconds=60)
    time.sleep(FOUND_OUT)
    for cluster in (bridged.home, bridged.remote):
        late = _of(other, writes(cluster, since=cut + 3.0), theirs=True)
        assert not late, late
    assert uids(bridged.remote_pods()) == running
    _serves(bridged)


def test_single_bridge_resumes_after_a_cut(bridged: Bridged, other: StandbyBridge) -> None:
    """It still holds the Lease, and nothing starts again."""
    running = _running(bridged)
    bridged.bridge.kill()
    other.bridge.wait_for_log(REGISTERED)
    other.home_proxy.cut()
    # On a busy machine it may have lost the Lease for a moment before.
    before = other.bridge.log.read_text()
    other.bridge.wait_for_log(SHUT, times=before.count(SHUT) + 1)
    shut = now()
    bridged.remote.kubectl("delete", "configmap", "web", "-n", bridged.remote_namespace)
    time.sleep(5)
    assert not writes(bridged.remote, since=shut, namespace=bridged.remote_namespace)
    other.home_proxy.heal()
    other.bridge.wait_for_log(OPEN, times=before.count(OPEN) + 1, seconds=60)
    wait_for(
        lambda: (
            "web" in uids(get(bridged.remote, "configmaps", namespace=bridged.remote_namespace))
        ),
        "it is put right",
    )
    assert other.bridge.log.read_text().count(REGISTERED) == 1
    assert uids(bridged.remote_pods()) == running
    _serves(bridged)


def test_forced_leave_ends_both_replicas(bridged: Bridged, other: StandbyBridge) -> None:
    """Without --force the error names the leader, and nothing is changed."""
    _running(bridged)
    refused = bridge_process.run("leave", bridged.node, "--yes", home=bridged.home)
    assert refused.returncode == 1
    assert "a bridge serves node" in refused.stderr
    assert "(pid " in refused.stderr

    left = bridge_process.run("leave", bridged.node, "--yes", "--force", home=bridged.home)
    assert left.returncode == 0, left.stderr
    for bridge in (bridged.bridge, other.bridge):
        assert bridge.wait_for_exit() == 1
        assert "has left" in bridge.log.read_text()
    time.sleep(FOUND_OUT)
    assert bridged.node not in uids(get(bridged.home, "nodes"))
    leases = uids(get(bridged.home, "leases", all_namespaces=True))
    assert not [name for name in leases if bridged.node in name]
    assert not bridged.remote_pods()


def test_bridge_without_the_remote_yields_to_one_that_reaches_it(
    bridged: Bridged, other: StandbyBridge, tmp_path: Path
) -> None:
    """Home keeps the node, and nothing is done twice."""
    began = now()
    running = _running(bridged)
    relay = FaultyServer(bridged.remote.server)
    name = f"far-{bridged.namespace}"
    with administrator(bridged.remote, name, tmp_path, relay.server) as through:
        assert bridged.bridge.stop() == 0
        other.bridge.wait_for_log(REGISTERED)
        bridged.bridge.remote = through
        bridged.bridge.start(until="standing by")
        assert other.bridge.stop() == 0
        bridged.bridge.wait_for_log(REGISTERED, times=2)
        other.stand_by()
        cut = now()
        relay.close()
        taken = other.bridge.wait_for_log(REGISTERED, times=2, seconds=GIVES_WAY)
        print(f"measured: taken over {taken - cut:.1f} s after the way to the remote was lost")
        assert is_ready(get_one(bridged.home, "node", bridged.node)), "nothing was seen of it"
        bridged.bridge.wait_for_log("gives node")
        _serves(bridged)
        after = uids(bridged.remote_pods())
        assert {it: after[it] for it in running} == running
        # It also stops in time while its caches do not fill.
        assert bridged.bridge.stop() == 0
    made = _made(bridged, since=began)
    assert max(made.values()) == 1
