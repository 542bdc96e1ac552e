"""Datagrams of the remote's pods reach home's pods through Services, without a network between
them: UDP with `--network=relay --relay-image`.

The clusters have no routes to each other's pods while these tests run: all data goes through the
bridge.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import bridge_image, udp_programs
from e2e.clusters.cluster import silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.kubectl import is_ready, uids, wait_for
from e2e.test_relay import all_ready
from e2e.test_relay_reverse import (
    apart,  # noqa: F401  # a fixture
    loaded,  # noqa: F401  # a fixture
    relays,
    slices,
)
from e2e.workload_manifests import AGNHOST, pod

#: The longest datagram of UDP over IPv4.
LONGEST = 65507
_SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  selector: {app: NAME}
  ports:
    - {name: http, port: 80, targetPort: 8080}
    - {name: echo, port: 80, targetPort: echo, protocol: UDP}
---
"""
_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: COUNT
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      nodeSelector: {kubernetes.io/hostname: THE-NODE}
      terminationGracePeriodSeconds: 8
      containers:
        - name: main
          image: IMAGE
          args: [netexec, --http-port=8080, --udp-port=8081]
          ports: [{name: echo, containerPort: 8081, protocol: UDP}]
          lifecycle: {preStop: {sleep: {seconds: 3}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
"""


def service(name: str) -> str:
    """A Service with a TCP and a UDP port of the same number."""
    return _SERVICE.replace("NAME", name)


def deployment(name: str, node: str, count: int) -> str:
    """Pods of the Service that answer a datagram with their name."""
    text = _DEPLOYMENT.replace("NAME", name).replace("COUNT", str(count))
    return text.replace("THE-NODE", node).replace("IMAGE", AGNHOST)


def client(bridged: Bridged, image: str) -> str:
    """An offloaded pod for programs in Python."""
    container = {
        "name": "main",
        "image": image,
        "command": [udp_programs.PYTHON, "-c", "import time; time.sleep(3600)"],
    }
    return pod(bridged.node, "client", None, containers=[container]) + "\n---\n"


def run(bridged: Bridged, program: str, *args: str) -> str:
    """Runs a Python program in the client, through the remote, independent of the bridge."""
    command = ("exec", "client", "--", udp_programs.PYTHON, "-c", program, *args)
    return bridged.remote.kubectl("-n", bridged.remote_namespace, *command).stdout


def ask(
    bridged: Bridged, clients: int = 1, *, times: int = 1, seconds: float = 60.0
) -> list[list[str]]:
    """The names of the answering pods, for each client."""
    arguments = json.dumps(["web", clients, times, seconds])
    answers: list[list[str]] = json.loads(run(bridged, udp_programs.ASK, arguments))
    assert all(len(it) == times for it in answers), f"not in {seconds:.0f} s: {answers}"
    return answers


@contextmanager
def asking(bridged: Bridged) -> Iterator[dict[str, int]]:
    """One client asks from its first answer on, while the block runs, and until it is answered once
    more; afterwards the dict has who answered, and how often."""
    remote, answers = bridged.remote, dict[str, int]()
    process = subprocess.Popen(
        [
            *(remote.kubectl_path, f"--kubeconfig={remote.kubeconfig}"),
            *("-n", bridged.remote_namespace, "exec", "-i", "client", "--"),
            *(udp_programs.PYTHON, "-c", udp_programs.KEEP_ASKING, "web"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "answered\n"
        yield answers
        output, _ = process.communicate(timeout=90)
        counts, last = json.loads(output)
        assert last is not None, f"the client is not answered any more: {counts}"
        print(f"{counts}, the last after {last:.1f} s")
        answers |= counts
    finally:
        process.kill()
        process.wait()


def served(bridged: Bridged, image: str, count: int) -> None:
    """Starts a client and so many pods at home, and waits for their endpoints."""
    near = deployment("web", bridged.home.node_names[0], count)
    bridged.apply(client(bridged, image) + service("web") + near)
    all_ready(bridged, count + 1)
    wait_for(lambda: udp_ports(bridged) == [("echo", "UDP")] * count, "endpoints in the remote")


def udp_ports(bridged: Bridged) -> list[tuple[str, str]]:
    """Names and protocols of the UDP ports in slices that lead to the agent."""
    ports = [port for it in slices(bridged) for port in it["ports"] or ()]
    return [(port["name"], port["protocol"]) for port in ports if port["protocol"] == "UDP"]


def metric(bridged: Bridged, name: str) -> float:
    """The sum of a metric of the bridge over its labels."""
    text = bridged.home.kubectl(
        "get", "--raw", f"/api/v1/nodes/{bridged.node}/proxy/metrics"
    ).stdout
    found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def test_remote_pod_exchanges_datagrams_with_homes_pods(
    bridged: Bridged,
    loaded: str,  # noqa: F811
) -> None:
    """Clients are spread over home's pods, and each keeps its pod, also while the bridge is
    restarted."""
    served(bridged, loaded, 2)
    answers = ask(bridged, 16, times=3)
    assert all(len(set(it)) == 1 for it in answers), "a client keeps its pod"
    home_names = {it["metadata"]["name"] for it in bridged.home_pods()} - {"client"}
    assert {it[0] for it in answers} == home_names, "clients are spread"
    agents = uids(relays(bridged))
    assert len(agents) == 1

    with asking(bridged) as seen:
        bridged.bridge.stop()
        bridged.bridge.start()
        ask(bridged)
    assert len(seen) == 1, f"the client has answers of one pod: {seen}"
    assert seen.keys() <= home_names
    assert uids(relays(bridged)) == agents, "the next bridge took it up"
    assert not bridged.events("RelayBackLeftOut")


def test_datagrams_arrive_again_after_each_fault(
    bridged: Bridged,
    loaded: str,  # noqa: F811
) -> None:
    """The relay agent is deleted, the bridge is killed, home's pods are replaced, and the remote is
    cut off."""
    served(bridged, loaded, 2)
    ask(bridged)
    (first,) = relays(bridged)

    name = first["metadata"]["name"]
    with asking(bridged) as seen:
        bridged.remote.kubectl("-n", bridged.remote_namespace, "delete", "pod", name)
        wait_for(lambda: any(map(is_ready, relays(bridged))), "another relay agent")
        ask(bridged, 4)
    assert len(seen) == 1, f"the client keeps its pod with another agent: {seen}"
    assert name not in uids(relays(bridged))

    with asking(bridged) as seen:
        bridged.bridge.kill()
        bridged.bridge.start()
        ask(bridged, 4)
    assert len(seen) == 1, f"the client keeps its pod with another bridge: {seen}"

    before = uids(bridged.home_pods())
    bridged.kubectl("rollout", "restart", "deployment/web")
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    wait_for(lambda: uids(bridged.home_pods()).keys() & before.keys() == {"client"}, "replaced")
    answers = {name for it in ask(bridged, 4) for name in it}
    assert answers <= uids(bridged.home_pods()).keys()

    bridged.remote.freeze_network()
    time.sleep(3.0)  # datagrams are lost, and connections stall
    bridged.remote.thaw_network()
    ask(bridged, 4)

    bridged.kubectl("scale", "deployment/web", "--replicas=0")
    wait_for(lambda: not udp_ports(bridged), "no endpoint without a pod at home")


def test_many_clients_and_long_datagrams_are_answered(
    bridged: Bridged,
    loaded: str,  # noqa: F811
) -> None:
    """Each datagram is one at home, too, up to the longest."""
    bridge_image.load(bridged.home, settings_from_environment().cache, silent)
    near = bridged.home.node_names[0]
    container = {
        "name": "main",
        "image": loaded,
        "command": [udp_programs.PYTHON, "-c", udp_programs.ECHO],
        "ports": [{"name": "echo", "containerPort": 8081, "protocol": "UDP"}],
    }
    labels = {"labels": {"app": "web"}}
    echo = pod(near, "echo", labels, containers=[container])
    bridged.apply(client(bridged, loaded) + service("web") + echo)
    all_ready(bridged, 2)
    wait_for(lambda: udp_ports(bridged) == [("echo", "UDP")], "an endpoint in the remote")
    sizes = (0, 1, 512, 1232, 1472, 1473, 9000, LONGEST)
    assert run(bridged, udp_programs.LONG, json.dumps(["web", sizes])).split() == [
        str(it) for it in sizes
    ]

    clients = 300
    assert int(run(bridged, udp_programs.MANY, json.dumps(["web", clients, 60]))) == clients
    assert metric(bridged, "bridge_relay_back_flows") >= clients
    assert metric(bridged, "bridge_relay_back_datagrams_total") >= 2 * (clients + len(sizes))
    assert len(relays(bridged)) == 1
