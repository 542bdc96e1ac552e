"""Services by name, from pods of both clusters to pods of both."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.service_accounts import of_node
from e2e.workload_manifests import pod, web

OURS = "endpointslice.kubernetes.io/managed-by=cluster-bridge"

_POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  nodeSelector: {kubernetes.io/hostname: THE-NODE}
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: registry.k8s.io/e2e-test-images/agnhost:2.56
      args: [netexec, --http-port=8080]
      readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  type: NodePort
  selector: {app: NAME}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
"""

_OTHER_SERVICES = """
apiVersion: v1
kind: Service
metadata: {name: near-headless}
spec: {clusterIP: None, selector: {app: near}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: near.THE-NAMESPACE.svc.cluster.local}
"""


def server(name: str, node: str) -> str:
    """A pod that answers with its name, and its Service, which requests a node port."""
    return _POD.replace("NAME", name).replace("THE-NODE", node)


def services(bridged: Bridged) -> dict[str, Json]:
    """The Services in the remote, by name."""
    found = get(bridged.remote, "services", namespace=bridged.remote_namespace)
    return {it["metadata"]["name"]: it for it in found}


def slices(bridged: Bridged) -> list[Json]:
    """The EndpointSlices that the bridge created there."""
    return get(bridged.remote, "endpointslices", namespace=bridged.remote_namespace, selector=OURS)


def wait_until_ready(bridged: Bridged, count: int) -> None:
    """Waits until all pods of the test exist and are Ready at home."""
    wait_for(lambda: [is_ready(pod) for pod in bridged.home_pods()] == [True] * count, "Ready")


def who_answers(
    cluster: Cluster,
    namespace: str,
    pod: str,
    host: str,
    port: int = 80,
    *,
    question: str = "hostname",
) -> str:
    """Sends a request from a pod to a host by name; returns the response, by default the name of
    the answering pod, or "" for none."""
    query = urlencode(
        {"request": question, "protocol": "http", "host": host, "port": port, "tries": 1}
    )
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/dial?{query}"
    response = cluster.kubectl("get", "--raw", path, check=False)
    answers = json.loads(response.stdout).get("responses", []) if response.returncode == 0 else []
    return str(answers[0]) if answers else ""


@pytest.mark.core
@pytest.mark.short_linger
def test_pods_reach_services_of_both_clusters_by_name(
    bridged: Bridged, home: Cluster, remote: Cluster
) -> None:
    there = bridged.remote_namespace
    bridged.apply(server("near", home.node_names[0]) + server("far", bridged.node))
    bridged.apply(_OTHER_SERVICES.replace("THE-NAMESPACE", there))
    wait_until_ready(bridged, 2)

    for host, port in (("near", 80), ("near-headless", 8080), ("alias", 80)):
        wait_for(
            lambda host=host, port=port: who_answers(remote, there, "far", host, port) == "near",  # type: ignore[misc]
            f"the remote pod reaches the home pod as {host}",
        )
    # A pod resolves its own name to its own address by /etc/hosts.
    wait_for(
        lambda: who_answers(remote, there, "far", f"far.{there}") == "far", "it reaches itself"
    )
    wait_for(
        lambda: who_answers(home, bridged.namespace, "near", "far") == "far",
        "the home pod reaches the remote pod",
    )
    copies = services(bridged)
    assert set(copies) == {"near", "far", "near-headless", "alias"}
    assert copies["far"]["spec"]["type"] == "ClusterIP"
    assert "nodePort" not in copies["far"]["spec"]["ports"][0]

    bridged.kubectl("annotate", "service", "near-headless", "cluster-bridge.io/mirror=false")
    wait_for(lambda: "near-headless" not in services(bridged), "one is kept at home")
    bridged.kubectl("delete", "pod", "near", "--wait=false")
    wait_for(lambda: not slices(bridged), "an endpoint that home deleted no longer exists")
    bridged.kubectl("delete", "pod", "far", "--wait=false")
    wait_for(lambda: not services(bridged), "the Services were deleted with the last pod")


def usable(cluster: Cluster) -> set[str]:
    """The nodes that accept any pod."""
    closed = {"NoSchedule", "NoExecute"}
    return {
        it["metadata"]["name"]
        for it in get(cluster, "nodes")
        if not closed & {taint["effect"] for taint in it["spec"].get("taints", [])}
    }


def test_pods_on_all_remote_nodes_are_reachable_by_their_ips(
    bridged: Bridged, home: Cluster, remote: Cluster
) -> None:
    """With one remote node and with several."""
    nodes = usable(remote)
    bridged.apply(server("near", min(usable(home))))
    bridged.apply(web(bridged.node))
    bridged.kubectl("scale", "deployment/web", f"--replicas={max(3, 2 * len(nodes))}")
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    pods = [it for it in bridged.home_pods() if it["metadata"]["name"] != "near"]
    addresses = {it["metadata"]["name"]: it["status"]["podIP"] for it in pods}
    assert {it["spec"]["nodeName"] for it in bridged.remote_pods()} == nodes

    for name, address in addresses.items():
        wait_for(
            lambda name=name, address=address: (  # type: ignore[misc]
                who_answers(home, bridged.namespace, "near", address, 8080) == name
            ),
            f"a pod at home reaches {name}",
        )
        assert name in bridged.kubectl("exec", name, "--", "hostname")
    there = bridged.remote_namespace
    for asking, own in addresses.items():
        for target, address in addresses.items():
            if asking != target:
                client_ip = who_answers(remote, there, asking, address, 8080, question="clientip")
                assert client_ip.partition(":")[0] == own, f"{target} sees {client_ip} for {asking}"


@pytest.mark.core
@pytest.mark.join("--network=none")
def test_no_pod_ip_is_shared_without_a_network(
    bridged: Bridged, home: Cluster, remote: Cluster
) -> None:
    there = bridged.remote_namespace
    bridged.apply(server("near", home.node_names[0]) + server("far", bridged.node))
    wait_until_ready(bridged, 2)
    far = get_one(home, "pod", "far", namespace=bridged.namespace)
    assert "podIP" not in far["status"]
    assert "podIPs" not in far["status"]
    found = get(
        home,
        "endpointslices",
        namespace=bridged.namespace,
        selector="kubernetes.io/service-name=far",
    )
    assert not any(it.get("endpoints") for it in found)
    wait_for(
        lambda: who_answers(remote, there, "far", f"far.{there}") == "far",
        "within the remote the Service leads to its pod",
    )
    assert set(services(bridged)) == {"near", "far"}
    assert slices(bridged) == []


@pytest.mark.join("--network", "flat")
def test_addresses_of_homes_nodes_and_services_are_no_pod_ips(bridged: Bridged) -> None:
    """Where the bridge's account may list both, as docs/how-to/network-flat.md grants it."""
    home, role = bridged.home, f"home-ranges-{bridged.node}"
    resources = "nodes,servicecidrs.networking.k8s.io"
    home.kubectl("create", "clusterrole", role, "--verb=list", f"--resource={resources}")
    account = str(of_node(bridged.node)).replace("/", ":")
    to_account = (f"--clusterrole={role}", f"--serviceaccount={account}")
    home.kubectl("create", "clusterrolebinding", role, *to_account)
    try:
        bridged.bridge.stop()
        bridged.bridge.start()
        bridged.apply(pod(bridged.node, "liar"))
        wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
        node = get_one(home, "node", home.node_names[0])
        service = get_one(home, "service", "kubernetes", namespace="default")["spec"]["clusterIP"]
        for ip in (_internal_ip(node), service):
            _wait_until_rejected(bridged, ip)
        messages = [it["message"] for it in bridged.events("PodIPRejected")]
        assert any("in home's Service range" in it for it in messages)
    finally:
        for kind in ("clusterrolebinding", "clusterrole"):
            home.kubectl("delete", kind, role)


def _wait_until_rejected(bridged: Bridged, ip: str) -> None:
    """Has the remote report this IP for the pod; its kubelet soon replaces it."""
    status = json.dumps({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}})
    bridged.remote.kubectl(
        *("patch", "pod", "liar", "-n", bridged.remote_namespace),
        *("--subresource=status", "--type=merge", "-p", status),
    )
    wait_for(
        lambda: any(ip in it["message"] for it in bridged.events("PodIPRejected")),
        f"{ip} is rejected",
    )


def _internal_ip(node: Json) -> str:
    addresses = node["status"]["addresses"]
    return next(str(it["address"]) for it in addresses if it["type"] == "InternalIP")
