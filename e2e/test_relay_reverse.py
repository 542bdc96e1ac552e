"""Pods of the remote reach home's pods through Services, where no network leads there:
`--network=relay --relay-image`.

The clusters have no way to each other's pods while these tests run: what arrives, the bridge has
carried.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bridge_image
from e2e.bridge_process import REGISTERED
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import Json, get, is_ready, uids, wait_for
from e2e.pod_processes import processes
from e2e.standby_replica import StandbyBridge, standby_bridge
from e2e.test_in_cluster import Install, installing  # noqa: F401  # a fixture
from e2e.test_relay import all_ready, deployment, files, service
from e2e.workload_manifests import pod, shell

#: The relay pods, and the slices that lead to them.
RELAYS = "cluster-bridge.io/relay=pod"
SLICES = "cluster-bridge.io/relay!=pod,cluster-bridge.io/relay"
#: Seconds after a restart in which new connections work.
BACK = 2.0
#: Seconds until there is another relay pod when one hangs.
REPLACED = 60.0
#: What Pod Security's strictest standard asks of a pod.
_RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_BOUND = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def loaded(clusters: dict[str, Cluster]) -> str:
    """The bridge's image, made of the sources as they are: the remote's node has it."""
    return bridge_image.load(clusters["remote"], settings_from_environment().cache, silent)


@pytest.fixture(autouse=True)
def apart(
    request: pytest.FixtureRequest, loaded: str, home: Cluster, remote: Cluster
) -> Iterator[None]:
    """The clusters without a way between their pods, and a bridge that has the image."""
    request.node.add_marker(pytest.mark.join("--network=relay", f"--relay-image={loaded}"))
    with without_routes(home, remote):
        yield


def relays(bridged: Bridged | Install) -> list[Json]:
    """The bridge's own pods in the remote."""
    return get(bridged.remote, "pods", namespace=bridged.remote_namespace, selector=RELAYS)


def slices(bridged: Bridged) -> list[Json]:
    """What leads to them."""
    found = bridged.remote_namespace
    return get(bridged.remote, "endpointslices", namespace=found, selector=SLICES)


def client(bridged: Bridged | Install) -> str:
    """An offloaded pod that asks."""
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    container = shell("main", "sleep 3600", securityContext=_BOUND, volumeMounts=mounts)
    volumes = [{"name": "tmp", "emptyDir": {}}]
    found: Json = {"containers": [container], "volumes": volumes, "securityContext": _RESTRICTED}
    return pod(bridged.node, "client", None, **found) + "\n"


def run(bridged: Bridged | Install, script: str) -> str:
    """Has the client run it: in the remote, whatever becomes of the bridge."""
    command = ("exec", "client", "--", "sh", "-c", script)
    said = bridged.remote.kubectl("-n", bridged.remote_namespace, *command, check=False)
    return said.stdout.strip()


def ask(bridged: Bridged | Install, name: str = "web") -> str:
    """Who answers, by the Service's name; "" for nobody."""
    return run(bridged, f"timeout 3 wget -q -O - http://{name}/hostname")


def whole(bridged: Bridged, count: int) -> None:
    """So many endpoints lead to home's pods, as the remote knows."""
    wait_for(lambda: len(slices(bridged)) == count, f"{count} endpoints in the remote")


class Asking:
    """The client asks by the Service's name, one connection each, while the test does other
    things: so often, and until it is `enough`."""

    def __init__(self, bridged: Bridged, times: int) -> None:
        self._bridged = bridged
        one = 'timeout 30 wget -q -O - http://web/hostname 2>&1 || echo " FAILED $(date +%T)"; echo'
        until = f"[ $i -lt {times} ] || [ ! -e /tmp/enough ]"
        script = f"i=0; while {until}; do i=$((i+1)); {one}; sleep 0.05; done"
        remote = bridged.remote
        self._process = subprocess.Popen(
            [
                *(remote.kubectl_path, f"--kubeconfig={remote.kubeconfig}"),
                *("-n", bridged.remote_namespace, "exec", "client", "--", "sh", "-c", script),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def enough(self, seconds: float = 90.0) -> Counter[str]:
        """Who answered how often; failures under what was said."""
        run(self._bridged, "touch /tmp/enough")
        said, _ = self._process.communicate(timeout=seconds)
        return Counter(said.split("\n")[:-1])


def test_remote_pod_reaches_homes_service_through_faults(bridged: Bridged) -> None:
    """A rollout at home, the relay pod's deletion and a restart of the bridge, and no request
    fails; in a namespace that takes nothing but `restricted` pods."""
    bridged.apply(client(bridged))
    wait_for(lambda: any(map(is_ready, bridged.remote_pods())), "the client runs")
    strict = "pod-security.kubernetes.io/enforce=restricted"
    bridged.remote.kubectl("label", "namespace", bridged.remote_namespace, strict)
    assert not relays(bridged), "nothing of ours runs there where nothing needs it"

    bridged.apply(service("web") + deployment("web", "near", bridged.home.node_names[0], 2))
    all_ready(bridged, 3)
    whole(bridged, 2)
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    (first,) = relays(bridged)
    assert not first["spec"].get("volumes"), "no token"
    asking = Asking(bridged, 200)

    bridged.kubectl("rollout", "restart", "deployment/web-near")
    bridged.kubectl("rollout", "status", "deployment/web-near", "--timeout=60s")
    name = first["metadata"]["name"]
    bridged.remote.kubectl("-n", bridged.remote_namespace, "delete", "pod", name, "--wait=false")
    wait_for(
        lambda: [it for it in relays(bridged) if is_ready(it) and it["metadata"]["name"] != name],
        "another relay pod",
    )
    wait_for(lambda: name not in uids(relays(bridged)), "the first has ended")
    (next_one,) = relays(bridged)
    stopped = time.monotonic()
    bridged.bridge.stop()
    assert uids(relays(bridged)) == uids([next_one]), (
        "it holds what arrives until the bridge is back"
    )
    bridged.bridge.start()
    began = time.monotonic()
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer", seconds=BACK)
    away = f"{began - stopped:.1f} s"
    print(f"served {time.monotonic() - began:.2f} s after a restart that took {away}")
    seen = asking.enough()

    failed = {said: count for said, count in seen.items() if not said.startswith("web-near")}
    assert not failed, failed
    assert sum(seen.values()) >= 200
    print(f"{sum(seen.values())} requests, none of which failed")
    assert uids(relays(bridged)) == uids([next_one]), "the next bridge took it up"


@pytest.fixture
def other(bridged: Bridged, tmp_path: Path) -> Iterator[StandbyBridge]:
    """A second bridge of the node, standing by."""
    with standby_bridge(bridged, tmp_path) as made:
        made.stand_by()
        yield made


def test_successor_fetches_connections_held_by_the_relay_agent(
    bridged: Bridged, other: StandbyBridge
) -> None:
    """The bridge that serves is killed; its relay pod goes on with the other."""
    bridged.apply(client(bridged) + service("web"))
    bridged.apply(deployment("web", "near", bridged.home.node_names[0], 2))
    all_ready(bridged, 3)
    whole(bridged, 2)
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    before = uids(relays(bridged))

    bridged.bridge.kill()
    said = run(bridged, "timeout 30 wget -q -O - http://web/hostname")
    assert said.startswith("web-near"), "it waits in the relay pod for who takes over"
    other.bridge.wait_for_log(REGISTERED, seconds=15)
    seen = Asking(bridged, 100).enough()
    assert all(name.startswith("web-near") for name in seen), seen
    assert uids(relays(bridged)) == before
    assert len(slices(bridged)) == 2


def test_hanging_relay_agent_is_replaced(bridged: Bridged) -> None:
    """Its process stands still, and the remote takes it for Ready."""
    bridged.apply(client(bridged) + service("web"))
    bridged.apply(deployment("web", "near", bridged.home.node_names[0], 1))
    all_ready(bridged, 2)
    whole(bridged, 1)
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    (first,) = relays(bridged)
    stopped = processes(first)
    assert stopped
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        wait_for(
            lambda: any(
                it["metadata"]["uid"] != first["metadata"]["uid"] for it in relays(bridged)
            ),
            "another relay pod",
            seconds=REPLACED,
        )
        wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
        print(f"home's pods answer {time.monotonic() - began:.1f} s after it hangs")
    finally:
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    (said,) = [
        it
        for it in get(bridged.home, "events", namespace=bridged.namespace)
        if it["reason"] == "RelayBackSilent"
    ]
    assert first["metadata"]["name"] in said["message"]
    wait_for(lambda: len(relays(bridged)) == 1, "the first has ended")


def test_relayed_data_is_complete_and_unsupported_ports_are_reported(bridged: Bridged) -> None:
    """Large bodies both ways, an end of one direction, a port on which nothing listens, a Service
    with pods on both sides, a crash of the bridge, and what is left when nothing needs it."""
    near, far = bridged.home.node_names[0], bridged.node
    text = files(near, "sha256sum; sleep 1; echo late")
    both = service("web") + deployment("web", "near", near, 1) + deployment("web", "far", far, 1)
    bridged.apply(text + both + client(bridged))
    all_ready(bridged, 4)
    whole(bridged, 2)
    got = wait_for(lambda: run(bridged, "timeout 5 wget -q -O - http://file/sum"), "it serves")
    expected = got.split()[0]
    began = time.monotonic()
    assert (
        run(bridged, "timeout 60 wget -q -O - http://file/big | sha256sum").split()[0] == expected
    )
    print(f"60 MB in {time.monotonic() - began:.2f} s")
    # The pod at home answers when its client has ended, and so has all of it.
    sent = run(
        bridged,
        "head -c 20000000 /dev/zero | tr '\\0' x >/tmp/it; sha256sum </tmp/it; "
        "timeout 30 nc file 90 </tmp/it",
    ).split()
    assert sent[0] == sent[2], sent
    assert sent[-1] == "late"
    began = time.monotonic()
    assert run(bridged, "timeout 20 wget -q -O - http://file:91/ || echo FAILED") == "FAILED"
    assert time.monotonic() - began < 5, "it fails fast"
    told = {
        it["involvedObject"]["name"]: it["message"]
        for it in get(bridged.home, "events", namespace=bridged.namespace)
        if it["reason"] == "RelayBackLeftOut"
    }
    assert "port 92 is UDP" in told["file"]
    assert "headless" in told["headless"]

    # Pods of both sides serve one Service.
    seen = Counter("-".join(ask(bridged).split("-")[:2]) for _ in range(20))
    assert set(seen) == {"web-near", "web-far"}, seen

    # Somebody's mistake is put right.
    ours = slices(bridged)[0]
    name, there = ours["metadata"]["name"], bridged.remote_namespace
    empty = json.dumps({"endpoints": []})
    bridged.remote.kubectl("-n", there, "patch", "endpointslice", name, "--type=merge", "-p", empty)
    wait_for(lambda: slices(bridged)[0]["endpoints"] == ours["endpoints"], "as it was")

    before = uids(relays(bridged))
    bridged.bridge.kill()
    bridged.bridge.start()
    began = time.monotonic()
    wait_for(
        lambda: run(bridged, "timeout 2 wget -q -O - http://file/sum"), "it serves", seconds=BACK
    )
    print(f"served {time.monotonic() - began:.2f} s after the crash")
    assert uids(relays(bridged)) == before

    # Without home's pods there are no endpoints, and clients are refused at once.
    bridged.kubectl("delete", "deployment", "web-near", "--wait=false")
    bridged.kubectl("delete", "pod", "file", "--grace-period=0", "--force")
    whole(bridged, 0)
    assert ask(bridged).startswith("web-far"), "the remote's own pods serve"


def test_bridge_in_homes_cluster_reaches_homes_pods(
    installing: Install,  # noqa: F811
    loaded: str,
) -> None:
    """What the documents advise where the bridge's machine has no way to them."""
    it = installing
    # The bridge is one of home's pods, and nothing here hides it behind home's node.
    it.remote.route_pods(it.home, routed=True)
    bridge_image.load(it.home, settings_from_environment().cache, silent)
    joined = it.join("--network", "relay", "--relay-image", loaded, "--replicas", "1")
    assert joined.returncode == 0, joined.stderr
    near = deployment("web", "near", it.home.node_names[0], 1)
    text = client(it) + service("web") + near
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=text)
    wait_for(lambda: any(map(is_ready, it.remote_pods())), "the client runs")
    wait_for(lambda: ask(it).startswith("web-near"), "home's pods answer")
    everything = get(it.remote, "endpointslices", namespace=it.remote_namespace)
    to = {end["addresses"][0] for one in everything for end in one["endpoints"] or []}
    assert to == {one["status"]["podIP"] for one in relays(it)}, "by the relay pod"
