"""The objects of an installation, as `kubectl apply` takes them in this order. Pure."""

from __future__ import annotations

import base64
import copy
import hashlib

from bridge.base.app_labels import APP, NAME_LABEL
from bridge.install import pod_template, webhook_manifests
from bridge.install.names import (
    ANNOTATION_HASH,
    ANNOTATION_NODE,
    KUBECONFIG_KEY,
    Installation,
    labels,
    object_metadata,
)
from bridge.rbac import manifests
from translators.objects import Object

#: Where the container has the remote's kubeconfig.
FOLDER = "/etc/cluster-bridge"
#: Where it keeps a certificate of home's while it runs.
CERT_DIR = "/tmp/serving-certificate"  # noqa: S108  # a volume of the pod's own
HEALTH_PORT = 8081


def render(wanted: Installation, kubeconfig: str) -> list[Object]:
    """All of them, with the Secret that holds the remote's kubeconfig."""
    rights = manifests.home_objects(
        wanted.permissions,
        wanted.account,
        wanted.bound_namespaces,
        all_namespaces=wanted.all_namespaces,
    )
    made = [
        *(_labelled(wanted, it) for it in rights),
        _secret(wanted, kubeconfig),
        pod_template.disruption_budget(object_metadata(wanted), labels(wanted.node)),
        *([_policy(wanted)] if wanted.permissions.network in ("relay", "auto") else []),
        _deployment(wanted, kubeconfig),
    ]
    return made + webhook_manifests.render_webhook(wanted) if wanted.offload_webhook else made


def _labelled(wanted: Installation, obj: Object) -> Object:
    """With the installation's labels. They stay off the namespace, which others may use too, but
    for the one that tells who made it."""
    made = copy.deepcopy(obj)
    is_namespace = made["kind"] == "Namespace"
    made["metadata"]["labels"] = {NAME_LABEL: APP} if is_namespace else labels(wanted.node)
    return made


def _secret(wanted: Installation, kubeconfig: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(wanted),
        "type": "Opaque",
        "data": {KUBECONFIG_KEY: base64.b64encode(kubeconfig.encode()).decode()},
    }


def _policy(wanted: Installation) -> Object:
    """Who reaches the bridges: home's API server and probes, who are machines, the two ports that
    are theirs; a relay's listeners those that are named."""
    everybody = [{"protocol": "TCP", "port": port} for port in (wanted.port, HEALTH_PORT)]
    peers = [_peer(it) for it in wanted.relay_from] or [{"namespaceSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(wanted),
        "spec": {
            "podSelector": {"matchLabels": labels(wanted.node)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": everybody}, {"from": peers}],
        },
    }


def _peer(who: str) -> Object:
    if "/" in who:
        return {"ipBlock": {"cidr": who}}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": who}}}


def _deployment(wanted: Installation, kubeconfig: str) -> Object:
    own = labels(wanted.node)
    secret = {"secretName": wanted.name, "defaultMode": 0o440}
    spec = pod_template.pod_spec(
        wanted.name,
        _container(wanted),
        pods=own,
        volumes=[{"name": "kubeconfig", "secret": secret}],
    )
    annotations = {ANNOTATION_HASH: kubeconfig_digest(kubeconfig)}
    return pod_template.deployment(
        object_metadata(wanted, annotations={ANNOTATION_NODE: wanted.node}),
        replicas=wanted.replicas,
        template={"metadata": {"labels": own, "annotations": annotations}, "spec": spec},
        pods=own,
    )


def kubeconfig_digest(kubeconfig: str) -> str:
    """What tells one credential from another, and nothing of it."""
    return hashlib.sha256(kubeconfig.encode()).hexdigest()[:16]


def container_arguments(wanted: Installation) -> list[str]:
    """What the container is started with."""
    rights = wanted.permissions
    own = [
        f"--kubeconfig={FOLDER}/{KUBECONFIG_KEY}",
        f"--name={wanted.node}",
        f"--address={pod_template.POD_IP}",
        f"--port={wanted.port}",
        f"--health-port={HEALTH_PORT}",
    ]
    if rights.network != "flat":
        own.append(f"--network={rights.network}")
    if rights.service_accounts != "home":
        own.append(f"--service-accounts={rights.service_accounts}")
    if rights.serving == "csr":
        own += [f"--serving-certificate={rights.serving}", f"--cert-dir={CERT_DIR}"]
    # A kubelet puts variables in for $(NAME).
    return ["join", *own, *(word.replace("$(", "$$(") for word in wanted.arguments)]


def _container(wanted: Installation) -> Object:
    return pod_template.container(
        "bridge",
        wanted.image,
        container_arguments(wanted),
        ports={"kubelet": wanted.port, "health": HEALTH_PORT},
        probed={"port": "health"},
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        mounts=[{"name": "kubeconfig", "mountPath": FOLDER, "readOnly": True}],
    )
