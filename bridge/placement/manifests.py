"""The objects that install placement by policy at home. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.crds import placement_policy_crd
from bridge.install import pod_template
from bridge.placement import admission_policy
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account
from translators.object_accessors import Object

#: The name of the placer's objects.
NAME = "cluster-bridge-placement"
#: The port of the pods' probes and metrics.
PORT = 8443


@dataclass(frozen=True, slots=True)
class PlacementInstallation:
    """The options of `bridge placement render`."""

    image: str = ""
    """The bridge's image; "" omits the Deployment."""
    namespace: str = "cluster-bridge"
    replicas: int = 2
    admission: str = "v1"
    """The version of the API MutatingAdmissionPolicy; "" omits the policy."""
    release_by: Sequence[Account] = ()
    """Accounts of bridges that release held pods when no placer runs."""


def placement_objects(options: PlacementInstallation) -> list[Object]:
    """All objects, in the order in which they are to be applied."""
    account = Account(options.namespace, NAME)
    admission = admission_policy.admission_objects(options.admission) if options.admission else []
    return [
        placement_policy_crd.definition(),
        *rbac_manifests.placer_objects(account, options.release_by),
        *(_deployment(options) if options.image else ()),
        *admission,
    ]


def _deployment(options: PlacementInstallation) -> list[Object]:
    labels = {"app.kubernetes.io/name": NAME}
    meta = {"name": NAME, "namespace": options.namespace, "labels": labels}
    container = pod_template.container(
        "placement",
        options.image,
        ["placement", "run", "--log-format=json", f"--port={PORT}"],
        ports={"https": PORT},
        probed={"port": "https", "scheme": "HTTPS"},
        resources={"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
    )
    template = {
        "metadata": {"labels": labels},
        "spec": pod_template.pod_spec(NAME, container, pods=labels),
    }
    return [
        pod_template.deployment(meta, replicas=options.replicas, template=template, pods=labels),
        pod_template.disruption_budget(meta, labels),
    ]
