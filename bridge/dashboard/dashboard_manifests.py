"""The objects that install the dashboard in home's cluster. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.install import pod_template
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account
from translators.object_accessors import Object

#: The name of the dashboard's objects.
NAME = "cluster-bridge-dashboard"
#: The port of the pod, and of its Service.
PORT, SERVICE_PORT = 8443, 443
#: Where the Secret of ``tls_secret`` is mounted.
_TLS_FOLDER = "/etc/cluster-bridge/tls"
_LABELS = {"app.kubernetes.io/name": NAME}


@dataclass(frozen=True, slots=True)
class DashboardInstallation:
    """The options of `bridge dashboard-server render`."""

    image: str
    namespace: str = "cluster-bridge"
    nodes: Sequence[str] = ()
    """Virtual nodes whose bridges the dashboard may query."""
    tls_secret: str = ""
    """A Secret of type kubernetes.io/tls; "" for a self-signed certificate."""
    allow_from: Sequence[str] = ()
    """Namespaces whose pods may connect; none needs to for `kubectl port-forward`."""


def dashboard_objects(options: DashboardInstallation) -> list[Object]:
    """All objects, in the order in which they are to be applied."""
    account = Account(options.namespace, NAME)
    return [
        *rbac_manifests.dashboard_objects(account, options.nodes),
        _network_policy(options),
        _service(options),
        _deployment(options),
    ]


def _meta(options: DashboardInstallation) -> Object:
    return {"name": NAME, "namespace": options.namespace, "labels": _LABELS}


def _network_policy(options: DashboardInstallation) -> Object:
    sources = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": it}}}
        for it in options.allow_from
    ]
    port = {"protocol": "TCP", "port": PORT}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(options),
        "spec": {
            "podSelector": {"matchLabels": _LABELS},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": sources, "ports": [port]}] if sources else [],
        },
    }


def _service(options: DashboardInstallation) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(options),
        "spec": {
            "selector": _LABELS,
            "ports": [{"name": "https", "port": SERVICE_PORT, "targetPort": "https"}],
        },
    }


def _deployment(options: DashboardInstallation) -> Object:
    volumes, mounts, tls = [], [], []
    if options.tls_secret:
        volumes = [{"name": "tls", "secret": {"secretName": options.tls_secret}}]
        mounts = [{"name": "tls", "mountPath": _TLS_FOLDER, "readOnly": True}]
        tls = [
            f"--tls-cert-file={_TLS_FOLDER}/tls.crt",
            f"--tls-private-key-file={_TLS_FOLDER}/tls.key",
        ]
    container = pod_template.container(
        "dashboard",
        options.image,
        [
            *("dashboard-server", "run", "--log-format=json", f"--port={PORT}"),
            f"--service={options.namespace}/{NAME}",
            *tls,
        ],
        ports={"https": PORT},
        probed={"port": "https", "scheme": "HTTPS"},
        # python -m e2e.dashboard_bench: 98 MB with 5,000 pods, and 9% of a core while 100 a second
        # change and a page is open.
        resources={"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        mounts=mounts,
    )
    template = {
        "metadata": {"labels": _LABELS},
        "spec": pod_template.pod_spec(NAME, container, pods=_LABELS, volumes=volumes),
    }
    # One replica: sessions and the last hour are in its memory.
    return pod_template.deployment(_meta(options), replicas=1, template=template, pods=_LABELS)
