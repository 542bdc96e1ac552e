"""The resources that the bridge reads or writes, and their API paths."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from translators.object_accessors import Object as Object  # noqa: PLC0414  # re-exported


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of objects: ``v1`` or ``discovery.k8s.io/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def manifest(self, metadata: Object, **fields: Any) -> Object:
        """A new object with its ``apiVersion`` and ``kind``."""
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **fields}

    def path(
        self,
        name: str | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """The URL path, each part quoted: the collection without ``name``, over all namespaces
        without ``namespace``."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_cluster_scoped = functools.partial(Resource, namespaced=False)

NAMESPACES = _cluster_scoped("", "v1", "namespaces", "Namespace")
NODES = _cluster_scoped("", "v1", "nodes", "Node")
PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("", "v1", "events", "Event")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CERTIFICATE_SIGNING_REQUESTS = _cluster_scoped(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest"
)
#: Exists in access reviews and Roles only: ``approve`` permits approvals for a signer.
SIGNERS = _cluster_scoped("certificates.k8s.io", "v1", "signers", "Signer")
PRIORITY_CLASSES = _cluster_scoped("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
RUNTIME_CLASSES = _cluster_scoped("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = _cluster_scoped("", "v1", "persistentvolumes", "PersistentVolume")
STORAGE_CLASSES = _cluster_scoped("storage.k8s.io", "v1", "storageclasses", "StorageClass")
CSI_DRIVERS = _cluster_scoped("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
CSI_STORAGE_CAPACITIES = Resource(
    "storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"
)
VOLUME_SNAPSHOTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot")
VOLUME_SNAPSHOT_CONTENTS = _cluster_scoped(
    "snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", "VolumeSnapshotContent"
)
VOLUME_SNAPSHOT_CLASSES = _cluster_scoped(
    "snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", "VolumeSnapshotClass"
)
SERVICE_CIDRS = _cluster_scoped("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR")
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
TOKEN_REVIEWS = _cluster_scoped("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
SUBJECT_ACCESS_REVIEWS = _cluster_scoped(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)
SELF_SUBJECT_ACCESS_REVIEWS = _cluster_scoped(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"
)
MUTATING_WEBHOOKS = _cluster_scoped(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = _cluster_scoped("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
CLUSTER_ROLE_BINDINGS = _cluster_scoped(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding"
)
VALIDATING_POLICIES = _cluster_scoped(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
)
VALIDATING_POLICY_BINDINGS = _cluster_scoped(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
)
