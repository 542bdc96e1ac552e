"""The objects of the webhook of `bridge offload` beside a bridge, which changes pods where home's
API server cannot do it itself. Pure.

Several replicas behind a Service. They share a certificate, which they make and renew by themselves
in a Secret that is empty here, and tell home's API server of it
(`bridge.offload.in_cluster_webhook`). So what
is rendered is the same each time, and applying it again takes neither away. The configuration comes
last, and goes first: no pod waits for a webhook that is not there.
"""

from __future__ import annotations

from bridge.install import pod_template
from bridge.install.names import Installation, webhook_metadata, webhook_name, webhook_pod_labels
from bridge.offload import admission_policy
from bridge.rbac import manifests
from bridge.rbac.manifests import Account
from translators.objects import Object

PORT = 9443


def render_webhook(wanted: Installation) -> list[Object]:
    """All of them."""
    name = webhook_name(wanted.node)
    rights = manifests.webhook_objects(Account(wanted.namespace, name))
    for it in rights:
        it["metadata"]["labels"] = webhook_metadata(wanted)["labels"]
    pods = webhook_pod_labels(wanted.node)
    return [
        *rights,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": webhook_metadata(wanted),
            "type": "Opaque",
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": webhook_metadata(wanted),
            "spec": {
                "selector": pods,
                "ports": [
                    {"name": "https", "port": admission_policy.SERVICE_PORT, "targetPort": "https"}
                ],
            },
        },
        pod_template.disruption_budget(webhook_metadata(wanted), pods),
        pod_template.deployment(
            webhook_metadata(wanted),
            replicas=wanted.replicas,
            template={
                "metadata": {"labels": pods},
                "spec": pod_template.pod_spec(name, _container(wanted), pods=pods),
            },
            pods=pods,
        ),
        admission_policy.service_configuration(webhook_metadata(wanted), wanted.namespace, name),
    ]


def _container(wanted: Installation) -> Object:
    return pod_template.container(
        "webhook",
        wanted.image,
        [
            "webhook",
            f"--address={pod_template.POD_IP}",
            f"--port={PORT}",
            f"--service={wanted.namespace}/{webhook_name(wanted.node)}",
            *(word for word in wanted.arguments if word.startswith("--log-format=")),
        ],
        ports={"https": PORT},
        probed={"port": "https", "scheme": "HTTPS"},
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    )
