"""Pods of the remote by their own names, without a network between them: `--relay-cidr`.

The clusters have no routes to each other's pods while these tests run; home's nodes route the range
to the bridge's machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.bridge_process import REGISTERED
from e2e.clusters.cluster import Cluster
from e2e.clusters.run_command import run
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import get_one, uids, wait_for
from e2e.standby_replica import StandbyBridge, standby_bridge
from e2e.test_leave import leave
from e2e.test_relay import all_ready, ask, client, slices
from e2e.workload_manifests import AGNHOST

_WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 8080}, {name: udp, port: 53, protocol: UDP}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: THE-NODE}
      tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: IMAGE
          args: [netexec, --http-port=8080]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
"""


@pytest.fixture
def cidr(node_name: str) -> str:
    """An unused range of those for benchmarks (RFC 2544), distinct for each run."""
    number = int(node_name.rpartition("-")[2], 16)
    return f"198.{18 + number % 2}.{number // 2 % 256}.0/24"


@pytest.fixture(autouse=True)
def apart(
    request: pytest.FixtureRequest, cidr: str, home: Cluster, remote: Cluster
) -> Iterator[None]:
    """The clusters without routes between their pods, and a route to the range in home's nodes."""
    request.node.add_marker(pytest.mark.join("--network=relay", f"--relay-cidr={cidr}"))
    with without_routes(home, remote):
        home.control.route(cidr, home.host_address)
        yield
        home.control.route(cidr, None)


def here(cidr: str) -> bool:
    """Whether the range is routed to this machine."""
    return cidr in run(["ip", "route", "show", "table", "local"]).stdout


def addresses(bridged: Bridged) -> dict[str, str]:
    """Hostname → published address."""
    ends = [end for it in slices(bridged) for end in it["endpoints"]]
    return {end["hostname"]: end["addresses"][0] for end in ends if end["conditions"]["ready"]}


def left_out(bridged: Bridged) -> list[str]:
    """Ports that are reported as unsupported."""
    return [it["message"] for it in bridged.events("RelayLeftOut")]


def both_answer(bridged: Bridged) -> None:
    """Each name leads to its pod."""
    names = ["web-0", "web-1"]
    wait_for(
        lambda: [ask(bridged, f"{name}.web:8080") for name in names] == names,
        "each answers by its name",
    )


@contextmanager
def forged_slice(bridged: Bridged, address: str) -> Iterator[None]:
    """A slice of a user with the bridge's labels, for a pod of their own, that cannot be deleted.
    Its namespace sorts before that of the pods."""
    namespace = f"a-{bridged.namespace}"
    made = slices(bridged)[0]
    (end,) = made["endpoints"]
    target = {"kind": "Pod", "name": "evil", "namespace": namespace}
    made["metadata"] = {
        "name": "web-evil",
        "namespace": namespace,
        "labels": made["metadata"]["labels"],
        "finalizers": ["example.com/never"],
    }
    made["endpoints"] = [{**end, "addresses": [address], "targetRef": target}]
    kubectl = bridged.home.kubectl
    kubectl("create", "namespace", namespace)
    try:
        kubectl("create", "-f", "-", input=json.dumps(made))
        yield
    finally:
        patch = '{"metadata": {"finalizers": null}}'
        name = ("endpointslice", "web-evil", "-n", namespace)
        kubectl("patch", *name, "--type=merge", "-p", patch, check=False)
        kubectl("delete", "namespace", namespace, "--wait=false")


def test_each_pod_of_a_statefulset_is_reachable_by_name(bridged: Bridged, cidr: str) -> None:
    """Across a restart and a crash of the bridge, a re-created pod, and leaving."""
    bridged.apply(
        _WEB.replace("THE-NODE", bridged.node).replace("IMAGE", AGNHOST) + client(bridged)
    )
    all_ready(bridged, 3)
    found = wait_for(lambda: len(known := addresses(bridged)) == 2 and known, "both have one")
    assert isinstance(found, dict)
    assert set(found) == {"web-0", "web-1"}
    assert len(set(found.values())) == 2
    both_answer(bridged)
    wait_for(lambda: ask(bridged, "web:8080") in found, "so does the Service's own, to one of them")
    assert ask(bridged, "web-0.web:9999") == "", "a port that no Service names"
    ports = wait_for(lambda: left_out(bridged), "UDP is reported as unsupported")
    assert all("port 53 is UDP" in it and "headless" not in it for it in ports)
    node = get_one(bridged.home, "node", bridged.node)
    options = json.loads(node["metadata"]["annotations"]["cluster-bridge.io/options"])
    assert options["relayCidr"] == cidr

    bridged.bridge.stop()
    assert addresses(bridged) == {}, "a stopped bridge publishes no endpoint"
    assert not here(cidr), "and takes the addresses away"
    with forged_slice(bridged, found["web-0"]):
        bridged.bridge.start()
        wait_for(lambda: addresses(bridged) == found, "a user of another namespace takes none")
    both_answer(bridged)

    bridged.bridge.kill()
    assert here(cidr), "what a crash leaves is taken up"
    bridged.bridge.start()
    before = uids(bridged.home_pods())["web-0"]
    bridged.kubectl("delete", "pod", "web-0", "--wait=false")
    wait_for(lambda: uids(bridged.home_pods()).get("web-0", before) != before, "another web-0")
    all_ready(bridged, 3)
    wait_for(lambda: addresses(bridged) == found, "where web-0 was before")
    both_answer(bridged)

    bridged.bridge.kill()
    left = leave(bridged, "--force")
    assert left.returncode == 0, left.stderr
    assert not here(cidr)
    assert slices(bridged) == []


@pytest.fixture
def other(bridged: Bridged, tmp_path: Path) -> Iterator[StandbyBridge]:
    """A second bridge of the node on the same machine, as the standby replica."""
    with standby_bridge(bridged, tmp_path) as made:
        made.stand_by()
        yield made


def test_successor_takes_over_the_addresses(
    bridged: Bridged, other: StandbyBridge, cidr: str
) -> None:
    """After a crash, and back again after a stop."""
    bridged.apply(
        _WEB.replace("THE-NODE", bridged.node).replace("IMAGE", AGNHOST) + client(bridged)
    )
    all_ready(bridged, 3)
    found = wait_for(lambda: len(known := addresses(bridged)) == 2 and known, "both have one")
    both_answer(bridged)

    bridged.bridge.kill()
    other.bridge.wait_for_log(REGISTERED)
    both_answer(bridged)
    assert addresses(bridged) == found

    bridged.bridge.start(until="standing by")
    registered = bridged.bridge.log.read_text().count(REGISTERED)
    other.bridge.stop()
    bridged.bridge.wait_for_log(REGISTERED, times=registered + 1)
    wait_for(lambda: addresses(bridged) == found, "the previous addresses")
    both_answer(bridged)
    assert here(cidr)
