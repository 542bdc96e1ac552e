"""Services with pods in the remote, without a network between them: `--network=relay`.

The clusters have no routes to each other's pods while these tests run: all data goes through the
bridge.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.clusters.cluster import Cluster
from e2e.clusters.run_command import run
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import AGNHOST, BUSYBOX

OURS = "endpointslice.kubernetes.io/managed-by=cluster-bridge-relay"
#: Seconds until a Service has lost the pods of an unreachable remote.
CUT_OFF = 10.0

_SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  selector: {app: NAME}
  ports: [{name: http, port: 80, targetPort: http}]
---
"""
_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME-WHERE}
spec:
  replicas: COUNT
  selector: {matchLabels: {app: NAME, where: WHERE}}
  template:
    metadata: {labels: {app: NAME, where: WHERE}}
    spec:
      nodeSelector: {kubernetes.io/hostname: THE-NODE}
      tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
      terminationGracePeriodSeconds: 8
      containers:
        - name: web
          image: IMAGE
          args: [netexec, --http-port=8080]
          ports: [{name: http, containerPort: 8080}]
          lifecycle: {preStop: {sleep: {seconds: 3}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
"""
_CLIENT = """
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeSelector: {kubernetes.io/hostname: THE-NODE}
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"]}]
---
"""


@pytest.fixture(autouse=True)
def apart(home: Cluster, remote: Cluster) -> Iterator[None]:
    """The clusters without routes between their pods."""
    with without_routes(home, remote):
        yield


def service(name: str) -> str:
    """A Service with one port, by name."""
    return _SERVICE.replace("NAME", name)


def deployment(name: str, where: str, node: str, count: int) -> str:
    """Pods of the Service that answer with their name, and terminate gracefully."""
    text = _DEPLOYMENT.replace("NAME", name).replace("WHERE", where).replace("COUNT", str(count))
    return text.replace("THE-NODE", node).replace("IMAGE", AGNHOST)


def client(bridged: Bridged) -> str:
    """A client pod at home."""
    return _CLIENT.replace("THE-NODE", bridged.home.node_names[0]).replace("IMAGE", BUSYBOX)


def slices(bridged: Bridged) -> list[Json]:
    """EndpointSlices that the bridge publishes at home."""
    return get(bridged.home, "endpointslices", namespace=bridged.namespace, selector=OURS)


def address(bridged: Bridged, name: str) -> str:
    """The address of the Service."""
    found = get_one(bridged.home, "service", name, namespace=bridged.namespace)
    return str(found["spec"]["clusterIP"])


def all_ready(bridged: Bridged, count: int) -> None:
    """Whether so many pods exist and are Ready at home."""
    wait_for(lambda: [is_ready(it) for it in bridged.home_pods()] == [True] * count, "Ready")


class RequestLoop:
    """Sends requests from the client while the test continues, one connection each: so many, and
    until `finish`."""

    def __init__(self, bridged: Bridged, host: str, times: int) -> None:
        self._bridged = bridged
        one = f'timeout 5 wget -q -O - http://{host}/hostname 2>&1 || echo " FAILED after $i"; echo'
        until = f"[ $i -lt {times} ] || [ ! -e /enough ]"
        script = f"i=0; while {until}; do i=$((i+1)); {one}; done"
        home = bridged.home
        self._process = subprocess.Popen(
            [
                *(home.kubectl_path, f"--kubeconfig={home.kubeconfig}", "-n", bridged.namespace),
                *("exec", "client", "--", "sh", "-c", script),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(self, seconds: float = 120.0) -> Counter[str]:
        """Answer → count; failures are counted by their error."""
        self._bridged.kubectl("exec", "client", "--", "touch", "/enough")
        output, _ = self._process.communicate(timeout=seconds)
        return Counter(output.split("\n")[:-1])


def ask(bridged: Bridged, host: str) -> str:
    """One response; "" for none."""
    script = f"timeout 2 wget -q -O - http://{host}/hostname"
    return bridged.kubectl("exec", "client", "--", "sh", "-c", script, check=False)


@pytest.mark.core
@pytest.mark.join("--network=relay")
def test_pods_of_both_clusters_serve_one_service_through_faults(
    bridged: Bridged,
) -> None:
    """Scaling, a rolling update and a restart of the bridge without a failed request."""
    bridged.apply(
        service("web")
        + deployment("web", "near", bridged.home.node_names[0], 2)
        + deployment("web", "far", bridged.node, 2)
        + client(bridged)
    )
    all_ready(bridged, 5)
    wait_for(lambda: len(slices(bridged)) == 2, "an endpoint for each pod in the remote")
    far = [it for it in bridged.home_pods() if it["metadata"]["name"].startswith("web-far-")]
    assert len(far) == 2
    assert all("podIP" not in it["status"] for it in far), "no client at home could reach it"
    host = address(bridged, "web")
    # A request before kube-proxy knows the Service is lost, and so are its retransmissions.
    wait_for(lambda: ask(bridged, host), "the Service answers")
    asking = RequestLoop(bridged, host, 1000)

    bridged.kubectl("scale", "deployment/web-far", "--replicas=4")
    wait_for(lambda: len(slices(bridged)) == 4, "the Service follows")
    bridged.kubectl("scale", "deployment/web-far", "--replicas=1")
    wait_for(lambda: len(slices(bridged)) == 1, "the Service follows")
    bridged.kubectl("rollout", "restart", "deployment/web-far")
    bridged.kubectl("rollout", "status", "deployment/web-far", "--timeout=60s")
    bridged.bridge.stop()
    assert slices(bridged) == [], "a bridge that stops takes back what it published"
    bridged.bridge.start()
    wait_for(lambda: slices(bridged), "the Service is back")
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "the remote's pod answers")
    seen = asking.finish()

    failed = {answer: count for answer, count in seen.items() if not answer.startswith("web-")}
    assert not failed, failed
    assert sum(seen.values()) >= 1000
    print(f"{sum(seen.values())} requests, none of which failed")
    where = Counter("-".join(name.split("-")[:2]) for name in seen.elements())
    # The distribution depends on the time without a bridge, when only home's pods answer.
    assert where["web-near"] > 20
    assert where["web-far"] > 20


@pytest.mark.join("--network=relay")
def test_unreachable_remote_leaves_the_service_to_homes_pods(bridged: Bridged) -> None:
    bridged.apply(
        service("web")
        + deployment("web", "near", bridged.home.node_names[0], 1)
        + deployment("web", "far", bridged.node, 1)
        + client(bridged)
    )
    all_ready(bridged, 3)
    wait_for(lambda: slices(bridged), "an endpoint for the pod in the remote")
    host = address(bridged, "web")
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "the remote's pod answers")
    bridged.remote.freeze_network()
    try:
        began = time.monotonic()
        wait_for(lambda: not slices(bridged), "the remote's pod has left", seconds=CUT_OFF)
        print(f"left after {time.monotonic() - began:.1f} s")
        time.sleep(1)  # for kube-proxy
        seen = RequestLoop(bridged, host, 50).finish()
        assert all(name.startswith("web-near") for name in seen), seen
    finally:
        bridged.remote.thaw_network()
    wait_for(lambda: slices(bridged), "it is back")
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "the remote's pod answers")


class RelayedConnection:
    """A connection to the bridge's port for the Service, from this machine."""

    def __init__(self, bridged: Bridged, port: str) -> None:
        (ours,) = slices(bridged)
        (number,) = [each["port"] for each in ours["ports"] if each["name"] == port]
        self._sock = socket.create_connection((ours["endpoints"][0]["addresses"][0], number), 5)
        self._sock.settimeout(60)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def read(self, count: int) -> bytes:
        """So many bytes, or fewer before EOF. Raises ConnectionResetError."""
        data = b""
        while len(data) < count and (part := self._sock.recv(min(count - len(data), 1 << 16))):
            data += part
        return data

    def reset(self) -> None:
        """Gives up, as a client that waits no longer."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


def ports_to_the_remote(bridged: Bridged) -> set[str]:
    """The bridge's local ports with a connection to the remote."""
    assert bridged.bridge.process is not None
    owner = f"pid={bridged.bridge.process.pid},"
    listed = run(["ss", "-tnpH", "state", "established", "dst", bridged.remote.node_ip]).stdout
    lines = (line.split() for line in listed.splitlines() if owner in line)
    return {line[2].rpartition(":")[2] for line in lines}


@contextmanager
def packets_lost(bridged: Bridged, ports: set[str]) -> Iterator[None]:
    """Drops the packets of these connections to the remote, and of no others, as a router that has
    forgotten them."""
    assert ports, "the bridge has opened no connection"
    rules = [
        (chain, of_remote, bridged.remote.node_ip, "-p", "tcp", of_bridge, port, "-j", "DROP")
        for port in ports
        for chain, of_remote, of_bridge in (("OUTPUT", "-d", "--sport"), ("INPUT", "-s", "--dport"))
    ]
    try:
        for rule in rules:
            run(["iptables", "-w", "-I", *rule])
        yield
    finally:
        for rule in rules:
            run(["iptables", "-w", "-D", *rule], check=False)


@pytest.mark.join("--network=relay")
def test_dead_connection_to_the_remote_resets_its_client_and_serves_no_other(
    bridged: Bridged,
) -> None:
    """No client takes a part for the whole, and none waits for what is dead."""
    endless = "while sleep 0.1; do head -c 1000 /dev/zero; done"
    bridged.apply(files(bridged.node, endless))
    all_ready(bridged, 1)
    wait_for(lambda: slices(bridged), "an endpoint")

    before = ports_to_the_remote(bridged)
    first = RelayedConnection(bridged, "http")
    first.send(b"GET /sum HTTP/1.0\r\n")
    time.sleep(1)  # the session is open, and everything acknowledged
    with packets_lost(bridged, ports_to_the_remote(bridged) - before):
        first.send(b"X-More: x\r\n")
        time.sleep(1)
        first.reset()
        time.sleep(0.5)
        following = RelayedConnection(bridged, "http")
        began = time.monotonic()
        following.send(b"GET /sum HTTP/1.0\r\n\r\n")
        assert following.read(12).endswith(b" 200")
        assert time.monotonic() - began < 3
        following.reset()

    download = RelayedConnection(bridged, "late")
    assert len(download.read(5000)) == 5000
    with packets_lost(bridged, ports_to_the_remote(bridged) - before):
        began = time.monotonic()
        download.send(b"x")
        with pytest.raises(ConnectionResetError):
            download.read(10**9)
        print(f"reset after {time.monotonic() - began:.1f} s")
    download.reset()


_FILE = """
apiVersion: v1
kind: Pod
metadata: {name: file, labels: {app: file}}
spec:
  nodeSelector: {kubernetes.io/hostname: THE-NODE}
  tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: IMAGE
      command: [sh, -c, "mkdir /www; head -c 60000000 /dev/urandom >/www/big; sha256sum /www/big
        >/www/sum; (while true; do nc -l -p 9000 -e sh -c 'THE-ANSWER'; done) &
        httpd -f -p 8080 -h /www"]
      ports: [{name: http, containerPort: 8080}]
      readinessProbe: {httpGet: {path: /sum, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: file}
spec:
  selector: {app: file}
  ports:
    - {name: http, port: 80, targetPort: http}
    - {name: late, port: 90, targetPort: 9000}
    - {name: dead, port: 91, targetPort: 9999}
    - {name: udp, port: 92, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: file}, ports: [{port: 8080}]}
---
"""


def files(node: str, answer: str) -> str:
    """A pod that serves a large file and its checksum, and a script at another port; with Services,
    some of which are unsupported."""
    text = _FILE.replace("THE-NODE", node).replace("THE-ANSWER", answer)
    return text.replace("IMAGE", BUSYBOX)


# Ports outside the ephemeral range: they are still free after the crash.
@pytest.mark.join("--network=relay", "--relay-ports=20000-20099")
def test_relayed_data_is_complete_and_unsupported_ports_are_reported(bridged: Bridged) -> None:
    """A large body, a response after the client's half-close, a closed port, a crash of the bridge,
    and its leaving."""
    bridged.apply(files(bridged.node, "head -n 1; sleep 2; echo late") + client(bridged))
    all_ready(bridged, 2)
    wait_for(lambda: slices(bridged), "an endpoint")
    host = address(bridged, "file")

    def run(script: str) -> str:
        return bridged.kubectl("exec", "client", "--", "sh", "-c", script, check=False).strip()

    expected = wait_for(
        lambda: run(f"timeout 5 wget -q -O - http://{host}/sum"), "it serves"
    ).split()[0]
    began = time.monotonic()
    got = run(f"timeout 30 wget -q -O - http://{host}/big | sha256sum").split()[0]
    print(f"60 MB in {time.monotonic() - began:.2f} s")
    assert got == expected
    assert got != hashlib.sha256().hexdigest()
    for end in (":", "sleep 1"):  # before its first response, and after
        asks = f"(echo asked; {end}) | timeout 20 nc {host} 90"
        assert run(asks).split() == ["asked", "late"], end
    began = time.monotonic()
    assert run(f"timeout 20 wget -q -O - http://{host}:91/ 2>&1 || echo FAILED").endswith("FAILED")
    assert time.monotonic() - began < 5, "it fails fast"
    reasons = bridged.wait_for_events("RelayLeftOut", "Service", "file", "headless")
    assert "port 92 is UDP" in reasons["file"]
    assert "headless" in reasons["headless"]

    # The Service is corrected.
    (ours,) = slices(bridged)
    name, empty = ours["metadata"]["name"], '{"endpoints": []}'
    bridged.kubectl("patch", "endpointslice", name, "--type=merge", "-p", empty)
    wait_for(lambda: slices(bridged)[0]["endpoints"] == ours["endpoints"], "as it was")

    ports = [it["ports"] for it in slices(bridged)]
    bridged.bridge.kill()
    bridged.bridge.start()
    began = time.monotonic()
    wait_for(lambda: run(f"timeout 2 wget -q -O - http://{host}/sum"), "it serves")
    print(f"served {time.monotonic() - began:.2f} s after the restart")
    assert [it["ports"] for it in slices(bridged)] == ports, "on the previous ports"
    node = get_one(bridged.home, "node", bridged.node)
    options = json.loads(node["metadata"]["annotations"]["cluster-bridge.io/options"])
    assert options["network"] == "relay"
