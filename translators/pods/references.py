"""Lists the ConfigMaps and Secrets that a pod references and that the remote needs to run the pod.

``kube-root-ca.crt`` is never copied, because each cluster publishes its own in every namespace. A
Secret with the name prefix of the bridge's token Secrets is not copied either, since it could
replace one of them; a pod that references such a Secret could read the tokens of another pod, and
is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from translators.field_paths import CONTAINERS
from translators.object_accessors import Object

Kind = Literal["ConfigMap", "Secret"]

#: The fields of a pod that `references` reads.
REFERENCE_FIELDS = (
    "spec.containers",
    "spec.initContainers",
    "spec.ephemeralContainers",
    "spec.volumes",
    "spec.imagePullSecrets",
)
#: Published in every namespace by the controller-manager (its root-ca-cert-publisher).
ROOT_CA = "kube-root-ca.crt"
#: Published in every namespace by components that a cluster may have: OpenShift's publisher of the
#: CA for Services, and Istio.
PUBLISHED = frozenset({"openshift-service-ca.crt", "istio-ca-root-cert"})
#: Name prefix of the bridge's Secrets with tokens of pods (`translators.pods.service_accounts`).
TOKEN_PREFIX = "cluster-bridge-token-"  # noqa: S105  # a name

#: Volume sources with a ``secretName``.
_VOLUME_SECRETS = ("azureFile", "secret")
#: Volume sources with a ``secretRef: {name}``; CSI has its own name for it.
_VOLUME_SECRET_REFS = ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
_VOLUMES = frozenset({"configMap", "projected", "csi", *_VOLUME_SECRETS, *_VOLUME_SECRET_REFS})


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A ConfigMap or Secret in the pod's namespace."""

    kind: Kind
    name: str


def references(pod: Object) -> frozenset[Reference]:
    """All ConfigMaps and Secrets that a pod (of either cluster) references and that are copied."""
    found = _all_references(pod.get("spec") or {}) - {Reference("ConfigMap", ROOT_CA)}
    return frozenset(ref for ref in found if not _is_reserved(ref))


def reserved_secrets(spec: Object) -> list[str]:
    """The names of token Secrets of the bridge that a pod's spec references."""
    return sorted(ref.name for ref in _all_references(spec) if _is_reserved(ref))


def _all_references(spec: Object) -> set[Reference]:
    found = set(_from_containers(spec))
    for volume in spec.get("volumes") or ():
        for kind in volume.keys() & _VOLUMES:
            found.update(_from_volume(kind, volume[kind] or {}))
    for item in spec.get("imagePullSecrets") or ():
        found.update(_named("Secret", item))
    return found


def _is_reserved(ref: Reference) -> bool:
    return ref.kind == "Secret" and ref.name.startswith(TOKEN_PREFIX)


def all_containers(spec: Object) -> Iterator[Object]:
    """All containers of a pod's spec: regular, init (including sidecars) and ephemeral."""
    for field in CONTAINERS:
        yield from spec.get(field) or ()


def _from_containers(spec: Object) -> Iterator[Reference]:
    for container in all_containers(spec):
        for source in container.get("envFrom") or ():
            yield from _named("ConfigMap", source.get("configMapRef"))
            yield from _named("Secret", source.get("secretRef"))
        for variable in container.get("env") or ():
            source = variable.get("valueFrom") or {}
            yield from _named("ConfigMap", source.get("configMapKeyRef"))
            yield from _named("Secret", source.get("secretKeyRef"))


def _from_volume(kind: str, volume: Object) -> Iterator[Reference]:
    if kind == "configMap":
        yield from _named("ConfigMap", volume)
    elif kind == "projected":
        for source in volume.get("sources") or ():
            yield from _named("ConfigMap", source.get("configMap"))
            yield from _named("Secret", source.get("secret"))
    elif kind in _VOLUME_SECRETS:
        yield from _named("Secret", volume, "secretName")
    elif kind == "csi":
        yield from _named("Secret", volume.get("nodePublishSecretRef"))
    else:
        yield from _named("Secret", volume.get("secretRef"))


def _named(kind: Kind, source: Object | None, key: str = "name") -> Iterator[Reference]:
    name = (source or {}).get(key)
    if name:
        yield Reference(kind, name)
