"""Renders the objects of the offload webhook that is installed beside a bridge. Pure.

Several replicas behind a Service share a certificate, which they create and renew in a Secret that
is rendered empty; they also set the CA bundle (`bridge.offload.in_cluster_webhook`). The rendered
objects contain neither, so applying them again keeps both. The webhook configuration
is applied last and deleted first: no pod creation waits for a webhook that is not running.
"""

from __future__ import annotations

from bridge.install import pod_template
from bridge.install.installation import (
    Installation,
    webhook_metadata,
    webhook_name,
    webhook_pod_labels,
)
from bridge.offload.webhook_configuration import SERVICE_PORT, service_configuration
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account
from translators.objects import Object

PORT = 9443


def render_webhook(installation: Installation) -> list[Object]:
    """All objects of the webhook."""
    name, meta = webhook_name(installation.node), webhook_metadata(installation)
    rbac = rbac_manifests.webhook_objects(Account(installation.namespace, name))
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
                "spec": pod_template.pod_spec(name, _container(installation), pods=pods),
            },
            pods=pods,
        ),
        service_configuration(meta, installation.namespace, name),
    ]


def _container(installation: Installation) -> Object:
    return pod_template.container(
        "webhook",
        installation.image,
        [
            "webhook",
            f"--address={pod_template.POD_IP}",
            f"--port={PORT}",
            f"--service={installation.namespace}/{webhook_name(installation.node)}",
            *(it for it in installation.arguments if it.startswith("--log-format=")),
        ],
        ports={"https": PORT},
        probed={"port": "https", "scheme": "HTTPS"},
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    )
