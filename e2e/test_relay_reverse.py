"""Pods of the remote reach home's pods through Services, without a network between them:
`--network=relay --relay-image`.

The clusters have no routes to each other's pods while these tests run: all data goes through the
bridge.
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
from e2e.bench.pods.process_usage import processes
from e2e.bridge_process import REGISTERED
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.installed_bridge import Install
from e2e.kubectl import Json, get, is_ready, uids, wait_for
from e2e.standby_replica import StandbyBridge, standby_bridge
from e2e.test_relay import all_ready, deployment, files, service
from e2e.workload_manifests import pod, shell

#: Selectors of the relay agents, and of the slices that lead to them.
RELAYS = "cluster-bridge.io/relay=pod"
SLICES = "cluster-bridge.io/relay!=pod,cluster-bridge.io/relay"
#: Seconds until a hanging relay agent is replaced.
REPLACED = 60.0
#: Requirements of the restricted Pod Security Standard.
_RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_BOUND = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def loaded(clusters: dict[str, Cluster]) -> str:
    """The bridge's image, built from the current sources and loaded into the remote's node."""
    return bridge_image.load(clusters["remote"], settings_from_environment().cache, silent)


@pytest.fixture(autouse=True)
def apart(
    request: pytest.FixtureRequest, loaded: str, home: Cluster, remote: Cluster
) -> Iterator[None]:
    """The clusters without routes between their pods, and a bridge with the image."""
    request.node.add_marker(pytest.mark.join("--network=relay", f"--relay-image={loaded}"))
    with without_routes(home, remote):
        yield


def relays(bridged: Bridged | Install) -> list[Json]:
    """The relay agents in the remote."""
    return get(bridged.remote, "pods", namespace=bridged.remote_namespace, selector=RELAYS)


def slices(bridged: Bridged) -> list[Json]:
    """The EndpointSlices that lead to the relay agents."""
    found = bridged.remote_namespace
    return get(bridged.remote, "endpointslices", namespace=found, selector=SLICES)


def client(bridged: Bridged | Install) -> str:
    """An offloaded client pod."""
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    container = shell("main", "sleep 3600", securityContext=_BOUND, volumeMounts=mounts)
    volumes = [{"name": "tmp", "emptyDir": {}}]
    found: Json = {"containers": [container], "volumes": volumes, "securityContext": _RESTRICTED}
    return pod(bridged.node, "client", None, **found) + "\n"


def run(bridged: Bridged | Install, script: str) -> str:
    """Runs a command in the client, through the remote, independent of the bridge."""
    command = ("exec", "client", "--", "sh", "-c", script)
    done = bridged.remote.kubectl("-n", bridged.remote_namespace, *command, check=False)
    return done.stdout.strip()


def ask(bridged: Bridged | Install, name: str = "web") -> str:
    """The name of the answering pod, by the Service's name; "" for none."""
    return run(bridged, f"timeout 3 wget -q -O - http://{name}/hostname")


def whole(bridged: Bridged, count: int) -> None:
    """Whether so many endpoints lead to home's pods, in the remote."""
    wait_for(lambda: len(slices(bridged)) == count, f"{count} endpoints in the remote")


class RequestLoop:
    """Sends requests from the client to the Service's name while the test continues, one connection
    each: so many, and until `finish`."""

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

    def finish(self, seconds: float = 90.0) -> Counter[str]:
        """Answer → count; failures are counted by their error."""
        run(self._bridged, "touch /tmp/enough")
        output, _ = self._process.communicate(timeout=seconds)
        return Counter(output.split("\n")[:-1])


@pytest.mark.core
def test_remote_pod_reaches_homes_service_through_faults(bridged: Bridged) -> None:
    """A rollout at home, the deletion of the relay agent and a restart of the bridge without a
    failed request; in a namespace that enforces `restricted` pods."""
    bridged.apply(client(bridged))
    wait_for(lambda: any(map(is_ready, bridged.remote_pods())), "the client runs")
    strict = "pod-security.kubernetes.io/enforce=restricted"
    bridged.remote.kubectl("label", "namespace", bridged.remote_namespace, strict, "--overwrite")
    assert not relays(bridged), "no relay agent runs without need"

    bridged.apply(service("web") + deployment("web", "near", bridged.home.node_names[0], 2))
    all_ready(bridged, 3)
    whole(bridged, 2)
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    (first,) = relays(bridged)
    assert not first["spec"].get("volumes"), "no token"
    asking = RequestLoop(bridged, 200)

    bridged.kubectl("rollout", "restart", "deployment/web-near")
    bridged.kubectl("rollout", "status", "deployment/web-near", "--timeout=60s")
    name = first["metadata"]["name"]
    bridged.remote.kubectl("-n", bridged.remote_namespace, "delete", "pod", name, "--wait=false")
    wait_for(
        lambda: [it for it in relays(bridged) if is_ready(it) and it["metadata"]["name"] != name],
        "another relay agent",
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
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    away = f"{began - stopped:.1f} s"
    print(f"served {time.monotonic() - began:.2f} s after a restart that took {away}")
    seen = asking.finish()

    failed = {answer: count for answer, count in seen.items() if not answer.startswith("web-near")}
    assert not failed, failed
    assert sum(seen.values()) >= 200
    print(f"{sum(seen.values())} requests, none of which failed")
    assert uids(relays(bridged)) == uids([next_one]), "the next bridge took it up"


@pytest.fixture
def other(bridged: Bridged, tmp_path: Path) -> Iterator[StandbyBridge]:
    """A second bridge of the node, as the standby replica."""
    with standby_bridge(bridged, tmp_path) as made:
        made.stand_by()
        yield made


def test_successor_fetches_connections_held_by_the_relay_agent(
    bridged: Bridged, other: StandbyBridge
) -> None:
    """The leader is killed; its relay agent continues with the successor."""
    bridged.apply(client(bridged) + service("web"))
    bridged.apply(deployment("web", "near", bridged.home.node_names[0], 2))
    all_ready(bridged, 3)
    whole(bridged, 2)
    wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
    before = uids(relays(bridged))

    bridged.bridge.kill()
    answer = run(bridged, "timeout 30 wget -q -O - http://web/hostname")
    assert answer.startswith("web-near"), (
        "the connection waits in the relay agent for the successor"
    )
    other.bridge.wait_for_log(REGISTERED)
    seen = RequestLoop(bridged, 100).finish()
    assert all(name.startswith("web-near") for name in seen), seen
    assert uids(relays(bridged)) == before
    assert len(slices(bridged)) == 2


def test_hanging_relay_agent_is_replaced(bridged: Bridged) -> None:
    """Its process is suspended, and the remote considers it Ready."""
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
            "another relay agent",
            seconds=REPLACED,
        )
        wait_for(lambda: ask(bridged).startswith("web-near"), "home's pods answer")
        print(f"home's pods answer {time.monotonic() - began:.1f} s after it hangs")
    finally:
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    (event,) = wait_for(lambda: bridged.events("RelayBackSilent"), "an Event has the reason")
    assert first["metadata"]["name"] in event["message"]
    wait_for(lambda: len(relays(bridged)) == 1, "the first has ended")


def test_relayed_data_is_complete_and_headless_services_are_reported(bridged: Bridged) -> None:
    """Large bodies in both directions, a half-close, a closed port, a Service with pods on both
    sides, a crash of the bridge, and the clean-up when no Service needs the relay."""
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
    # The pod at home responds after its client's half-close, with complete data.
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
    reasons = bridged.wait_for_events("RelayBackLeftOut", "Service", "headless")
    assert "headless" in reasons["headless"]
    left_out = {it["involvedObject"]["name"] for it in bridged.events("RelayBackLeftOut")}
    assert left_out == {"headless"}, "all ports of the other Services are forwarded"

    # Pods of both sides serve one Service.
    seen = Counter("-".join(ask(bridged).split("-")[:2]) for _ in range(20))
    assert set(seen) == {"web-near", "web-far"}, seen

    # The Service is corrected.
    ours = slices(bridged)[0]
    name, there = ours["metadata"]["name"], bridged.remote_namespace
    empty = json.dumps({"endpoints": []})
    bridged.remote.kubectl("-n", there, "patch", "endpointslice", name, "--type=merge", "-p", empty)
    wait_for(lambda: slices(bridged)[0]["endpoints"] == ours["endpoints"], "as it was")

    before = uids(relays(bridged))
    bridged.bridge.kill()
    bridged.bridge.start()
    began = time.monotonic()
    wait_for(lambda: run(bridged, "timeout 2 wget -q -O - http://file/sum"), "it serves")
    print(f"served {time.monotonic() - began:.2f} s after the crash")
    assert uids(relays(bridged)) == before

    # Without home's pods there are no endpoints, and connections are rejected at once.
    bridged.kubectl("delete", "deployment", "web-near", "--wait=false")
    bridged.kubectl("delete", "pod", "file", "--grace-period=0", "--force")
    whole(bridged, 0)
    assert ask(bridged).startswith("web-far"), "the remote's own pods serve"


def test_bridge_in_homes_cluster_reaches_homes_pods(
    installing: Install,
    loaded: str,
) -> None:
    """The documented set-up for a bridge's machine without a route to home's pods."""
    it = installing
    # The bridge is one of home's pods, and no NAT hides it behind home's node.
    it.remote.route_pods(it.home, routed=True)
    bridge_image.load(it.home, settings_from_environment().cache, silent)
    joined = it.install("--network", "relay", "--relay-image", loaded, "--replicas", "1")
    assert joined.returncode == 0, joined.stderr
    near = deployment("web", "near", it.home.node_names[0], 1)
    text = client(it) + service("web") + near
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=text)
    wait_for(lambda: any(map(is_ready, it.remote_pods())), "the client runs")
    wait_for(lambda: ask(it).startswith("web-near"), "home's pods answer")
    everything = get(it.remote, "endpointslices", namespace=it.remote_namespace)
    to = {end["addresses"][0] for one in everything for end in one["endpoints"] or []}
    assert to == {one["status"]["podIP"] for one in relays(it)}, "through the relay agent"
