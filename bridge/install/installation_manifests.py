"""Renders the objects of an installation, in the order in which they are applied. Pure."""

from __future__ import annotations

import base64
import hashlib

from bridge.base.recommended_labels import APP, NAME_LABEL
from bridge.install import pod_template
from bridge.install.installation import (
    ANNOTATION_HASH,
    ANNOTATION_NODE,
    KUBECONFIG_KEY,
    Installation,
    labels,
    object_metadata,
    webhook_metadata,
    webhook_name,
    webhook_pod_labels,
)
from bridge.offload.webhook_configuration import SERVICE_PORT, service_configuration
from bridge.rbac import rbac_manifests
from sync.kube.kubeconfig_ref import RENEWED_TOKEN_FILE
from translators.object_accessors import Object

#: The container's folder with the remote's kubeconfig.
KUBECONFIG_FOLDER = "/etc/cluster-bridge"
#: The container's folder for a certificate that home signed; a memory volume.
CERT_DIR = "/tmp/serving-certificate"  # noqa: S108  # in the container
HEALTH_PORT = 8081
WEBHOOK_PORT = 9443


def render(installation: Installation, kubeconfig: str) -> list[Object]:
    """All objects, including the Secret with the remote's kubeconfig, and the offload webhook's if
    the installation has one.

    The state Secret is rendered empty: applying the objects again keeps what the bridges wrote.
    """
    rbac = rbac_manifests.home_objects(
        installation.home_permissions,
        installation.account,
        installation.bound_namespaces,
        all_namespaces=installation.all_namespaces,
    )
    objects = [
        *(_labelled(installation, it) for it in rbac),
        _kubeconfig_secret(installation, kubeconfig),
        _state_secret(installation),
        pod_template.disruption_budget(object_metadata(installation), labels(installation.node)),
    ]
    if installation.permissions.network in ("relay", "auto"):
        objects.append(_network_policy(installation))
    objects.append(_deployment(installation, kubeconfig))
    if installation.offload_webhook:
        objects += render_webhook(installation)
    return objects


def _labelled(installation: Installation, obj: Object) -> Object:
    """The object with the installation's labels. The namespace, which may be shared, only gets the
    label that marks it as created by a bridge."""
    is_namespace = obj["kind"] == "Namespace"
    own = {NAME_LABEL: APP} if is_namespace else labels(installation.node)
    return {**obj, "metadata": {**obj["metadata"], "labels": own}}


def _kubeconfig_secret(installation: Installation, kubeconfig: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(installation),
        "type": "Opaque",
        "data": {KUBECONFIG_KEY: base64.b64encode(kubeconfig.encode()).decode()},
    }


def _state_secret(installation: Installation) -> Object:
    namespace, name = installation.state_secret
    meta = {"name": name, "namespace": namespace, "labels": labels(installation.node)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque"}


def _network_policy(installation: Installation) -> Object:
    """Everyone may connect to the kubelet API and the health port: home's API server and kubelets
    connect from node addresses. The relay's listeners only accept ``relay_from``."""
    open_ports = [{"protocol": "TCP", "port": port} for port in (installation.port, HEALTH_PORT)]
    peers = [_peer(it) for it in installation.relay_from] or [{"namespaceSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(installation),
        "spec": {
            "podSelector": {"matchLabels": labels(installation.node)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": open_ports}, {"from": peers}],
        },
    }


def _peer(source: str) -> Object:
    if "/" in source:
        return {"ipBlock": {"cidr": source}}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": source}}}


def _deployment(installation: Installation, kubeconfig: str) -> Object:
    pod_labels = labels(installation.node)
    spec = pod_template.pod_spec(
        installation.name,
        _bridge_container(installation),
        pods=pod_labels,
        volumes=[_kubeconfig_volume(installation)],
    )
    # The digest distinguishes credentials and reveals none.
    digest = hashlib.sha256(kubeconfig.encode()).hexdigest()[:16]
    annotations = {ANNOTATION_HASH: digest}
    return pod_template.deployment(
        object_metadata(installation, annotations={ANNOTATION_NODE: installation.node}),
        replicas=installation.replicas,
        template={"metadata": {"labels": pod_labels, "annotations": annotations}, "spec": spec},
        pods=pod_labels,
    )


def _kubeconfig_volume(installation: Installation) -> Object:
    """The kubeconfig, and beside it the renewed token, where `sync.kube.bearer_token` reads it."""
    token = {
        "name": installation.state_secret[1],
        "items": [{"key": RENEWED_TOKEN_FILE, "path": RENEWED_TOKEN_FILE}],
        "optional": True,
    }
    sources = [{"secret": {"name": installation.name}}, {"secret": token}]
    return {"name": "kubeconfig", "projected": {"sources": sources, "defaultMode": 0o440}}


def container_arguments(installation: Installation) -> list[str]:
    """The arguments of the bridge's container."""
    permissions = installation.permissions
    arguments = [
        f"--kubeconfig={KUBECONFIG_FOLDER}/{KUBECONFIG_KEY}",
        f"--name={installation.node}",
        f"--address={pod_template.POD_IP}",
        f"--port={installation.port}",
        f"--health-port={HEALTH_PORT}",
        f"--state-secret={installation.state_secret[1]}",
    ]
    if installation.home_identity != "auto":
        arguments.append(f"--home-identity={installation.home_identity}")
    if permissions.network != "auto":
        arguments.append(f"--network={permissions.network}")
    if permissions.service_accounts != "home":
        arguments.append(f"--service-accounts={permissions.service_accounts}")
    if permissions.storage != "auto":
        arguments.append(f"--storage={permissions.storage}")
    if permissions.serving != "auto":
        arguments.append(f"--serving-certificate={permissions.serving}")
    if permissions.serving != "self-signed":
        arguments.append(f"--cert-dir={CERT_DIR}")
    # The kubelet expands $(NAME); $$ escapes it.
    return ["join", *arguments, *(it.replace("$(", "$$(") for it in installation.arguments)]


def _bridge_container(installation: Installation) -> Object:
    return pod_template.container(
        "bridge",
        installation.image,
        container_arguments(installation),
        ports={"kubelet": installation.port, "health": HEALTH_PORT},
        probed={"port": "health"},
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        mounts=[{"name": "kubeconfig", "mountPath": KUBECONFIG_FOLDER, "readOnly": True}],
    )


# -- offload webhook -----------------------------------------------------------------------


def render_webhook(installation: Installation) -> list[Object]:
    """The objects of the offload webhook.

    Its replicas create and renew a shared certificate in the Secret, which is rendered empty, and
    set the CA bundle (`bridge.offload.in_cluster_webhook`): applying the objects again keeps both.
    The webhook configuration is applied last and deleted first: no pod creation waits for a webhook
    that is not running.
    """
    name, meta = webhook_name(installation.node), webhook_metadata(installation)
    rbac = rbac_manifests.webhook_objects(rbac_manifests.Account(installation.namespace, name))
    for obj in rbac:
        obj["metadata"]["labels"] = meta["labels"]
    pods = webhook_pod_labels(installation.node)
    return [
        *rbac,
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque"},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "selector": pods,
                "ports": [{"name": "https", "port": SERVICE_PORT, "targetPort": "https"}],
            },
        },
        pod_template.disruption_budget(meta, pods),
        pod_template.deployment(
            meta,
            replicas=installation.replicas,
            template={
                "metadata": {"labels": pods},
                "spec": pod_template.pod_spec(name, _webhook_container(installation), pods=pods),
            },
            pods=pods,
        ),
        service_configuration(meta, installation.namespace, name),
    ]


def _webhook_container(installation: Installation) -> Object:
    return pod_template.container(
        "webhook",
        installation.image,
        [
            "webhook",
            f"--address={pod_template.POD_IP}",
            f"--port={WEBHOOK_PORT}",
            f"--service={installation.namespace}/{webhook_name(installation.node)}",
            *(it for it in installation.arguments if it.startswith("--log-format=")),
        ],
        ports={"https": WEBHOOK_PORT},
        probed={"port": "https", "scheme": "HTTPS"},
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    )
