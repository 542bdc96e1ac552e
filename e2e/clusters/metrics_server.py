"""metrics-server in a cluster: what `kubectl top` and HorizontalPodAutoscalers ask.

A process beside the other components, like CoreDNS (`e2e.clusters.coredns`): the API server
reaches it at the endpoint of a Service without selector, by the APIService of the upstream
manifest. It asks every node's kubelet, a virtual node's too, every `RESOLUTION` seconds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import API_SERVER
from e2e.clusters.native_control_plane import METRICS
from e2e.clusters.native_site import Site

COMPONENTS = (METRICS,)

PORT = 4443
#: Seconds between two scrapes, metrics-server's minimum.
RESOLUTION = 10

START_TIMEOUT = 60.0

_NAMESPACE = "kube-system"
_USER = f"system:{METRICS}"
_RBAC = "rbac.authorization.k8s.io"
_API = "/apis/metrics.k8s.io/v1beta1/nodes"


def start(site: Site, folder: Path) -> None:
    """Starts metrics-server unless it runs, and waits until the API server reaches it.

    :raises StartFailed: it ended, or did not answer in time.
    """
    api = site.api
    if METRICS in site.supervisor.names():
        site.supervisor.start_again(METRICS)
    else:
        kubeconfig, certificates = site.kubeconfig(METRICS), site.folder / "metrics-server-pki"
        site.supervisor.start(METRICS, command(folder / METRICS, kubeconfig, certificates))
    for path, body in objects(str(site.plan.node.ip)):
        made = functools.partial(api.create_if_absent, path, body)
        site.wait(f"POST {path} was accepted", made, (API_SERVER,), START_TIMEOUT)
    answers = functools.partial(api.exists, _API)
    site.wait("the metrics API answered", answers, COMPONENTS, START_TIMEOUT)
    api.close()


def command(
    program: str | Path, kubeconfig: str | Path, certificates: str | Path
) -> list[str | Path]:
    """Its command line; it creates its certificate in the folder `certificates`."""
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--secure-port={PORT}",
        f"--cert-dir={certificates}",
        "--kubelet-insecure-tls",
        "--kubelet-use-node-status-port",
        "--kubelet-preferred-address-types=InternalIP",
        f"--metric-resolution={RESOLUTION}s",
        f"--kubelet-request-timeout={RESOLUTION - 1}s",
    ]


def objects(address: str) -> list[tuple[str, dict[str, Any]]]:
    """The API objects of metrics-server, which listens at `address`: (path to post to, object)."""
    core = f"/api/v1/namespaces/{_NAMESPACE}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{_NAMESPACE}/endpointslices"
    ports = [{"name": "https", "protocol": "TCP", "port": PORT}]
    subjects = [{"apiGroup": _RBAC, "kind": "User", "name": _USER}]
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    roles = [
        (_USER, "ClusterRole", _USER),
        (f"{_USER}:system:auth-delegator", "ClusterRole", "system:auth-delegator"),
    ]
    reader = "extension-apiserver-authentication-reader"
    return [
        (f"/apis/{_RBAC}/v1/clusterroles", {"metadata": {"name": _USER}, "rules": rules}),
        *(
            (f"/apis/{_RBAC}/v1/clusterrolebindings", _binding(name, kind, role, subjects))
            for name, kind, role in roles
        ),
        (
            f"/apis/{_RBAC}/v1/namespaces/{_NAMESPACE}/rolebindings",
            _binding(f"{METRICS}-auth-reader", "Role", reader, subjects),
        ),
        (f"{core}/services", {"metadata": {"name": METRICS}, "spec": {"ports": ports}}),
        (
            slices,
            {
                "metadata": {"name": METRICS, "labels": {"kubernetes.io/service-name": METRICS}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
                "ports": ports,
            },
        ),
        (
            "/apis/apiregistration.k8s.io/v1/apiservices",
            {
                "metadata": {"name": "v1beta1.metrics.k8s.io"},
                "spec": {
                    "service": {"name": METRICS, "namespace": _NAMESPACE, "port": PORT},
                    "group": "metrics.k8s.io",
                    "version": "v1beta1",
                    "insecureSkipTLSVerify": True,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                },
            },
        ),
    ]


def _binding(name: str, kind: str, role: str, subjects: list[dict[str, str]]) -> dict[str, Any]:
    reference = {"apiGroup": _RBAC, "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
