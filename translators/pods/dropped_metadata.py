"""Drops labels and annotations of pods that act on nodes, networks or identities of the remote.

Components of a cluster read such keys and act with their own permissions: attach a pod to another
network, give it an address or a cloud identity, mount a device, or add a container. A tenant of
home must not reach them through the bridge.

- A key is dropped if it matches a pattern of the table below, or one with ``drop`` of
  ``--pod-metadata``, and none with ``keep``. In a pattern, ``*`` stands for any characters and
  ``?`` for one.
- The list counts when the remote pod is created. A running pod keeps what it has, and such keys
  that are added to its home pod are not sent.
- Everything else is kept. AppArmor and seccomp annotations restrict a container, and Pod Security
  decides about those that do not. ``kubernetes.io/ingress-bandwidth`` and the like only limit the
  pod itself.
- The downward API of the pod still has the values of home. A Service, affinity or topology spread
  that selects pods by a dropped label does not select them in the remote.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterator, Mapping

from translators.field_paths import FieldMessage
from translators.object_accessors import Object
from translators.ownership_labels import copied_annotations, copied_labels
from translators.translation_options import PodMetadata, Policy

#: Patterns by what their keys do.
TABLE: Mapping[str, tuple[str, ...]] = {
    "attach networks, and choose addresses, routes or policies of the pod network": (
        "k8s.v1.cni.cncf.io/*",
        "v1.multus-cni.io/*",
        "cni.projectcalico.org/*",
        "*.cilium.io/*",
        "ovn.kubernetes.io/*",
        "k8s.ovn.org/*",
        "ipam.antrea.io/*",
        "ipam.spidernet.io/*",
        "networking.gke.io/*",
        "vpc.amazonaws.com/*",
    ),
    "give the pod an identity of the cloud": (
        "iam.amazonaws.com/*",
        "eks.amazonaws.com/*",
        "azure.workload.identity/*",
        "aadpodidbinding",
    ),
    "configure the container runtime, or give containers devices of the node": (
        "cdi.k8s.io/*",
        "*.nri.io/*",
        "*.noderesource.dev/*",
        "io.kubernetes.cri-o.*",
        "*.crio.io",
        "*.crio.io/*",
        "io.katacontainers.*",
        "dev.gvisor.*",
    ),
    "add or configure containers (sidecar injectors)": (
        "istio.io/rev",
        "istio.io/dataplane-mode",
        "sidecar.istio.io/*",
        "inject.istio.io/*",
        "proxy.istio.io/*",
        "ambient.istio.io/*",
        "traffic.sidecar.istio.io/*",
        "linkerd.io/inject",
        "config.linkerd.io/*",
        "config.alpha.linkerd.io/*",
        "consul.hashicorp.com/*",
        "vault.hashicorp.com/*",
        "vault.security.banzaicloud.io/*",
        "kuma.io/*",
        "dapr.io/*",
        "openservicemesh.io/*",
        "appmesh.k8s.aws/*",
        "gke-gcsfuse/*",
        "sidecar.opentelemetry.io/*",
        "instrumentation.opentelemetry.io/*",
        "sidecar.jaegertracing.io/*",
        "admission.datadoghq.com/*",
    ),
}
_PATTERNS = tuple(pattern for patterns in TABLE.values() for pattern in patterns)
_REASON = "acts on nodes, networks or identities of the remote (--pod-metadata KEY=keep keeps it)"


def kept_keys(values: Mapping[str, str], policy: Policy) -> dict[str, str]:
    """The labels or annotations that are not dropped."""
    return {key: value for key, value in values.items() if not is_dropped(key, policy)}


def is_dropped(key: str, policy: Policy) -> bool:
    return _is_dropped(key, policy.pod_metadata)


def dropped_messages(home: Object, policy: Policy) -> Iterator[FieldMessage]:
    """A message for each dropped label and annotation of the home pod."""
    for field, key, _ in _dropped(home, policy):
        yield FieldMessage(f"metadata.{field}[{key}]", _REASON)


def dropped_values(home: Object, policy: Policy) -> dict[str, str]:
    """The values of the dropped labels and annotations, by their ``fieldPath``."""
    return {f"metadata.{field}['{key}']": value for field, key, value in _dropped(home, policy)}


def _dropped(home: Object, policy: Policy) -> Iterator[tuple[str, str, str]]:
    copied = {"labels": copied_labels(home), "annotations": copied_annotations(home)}
    for field, values in copied.items():
        for key, value in values.items():
            if is_dropped(key, policy):
                yield field, key, value


def is_in_table(key: str) -> bool:
    """Whether the key is dropped unless ``--pod-metadata`` keeps it."""
    return _matches(key, _PATTERNS)


@functools.lru_cache(maxsize=4096)  # Pods of one template have the same keys.
def _is_dropped(key: str, patterns: PodMetadata) -> bool:
    return _matches(key, (*_PATTERNS, *patterns.drop)) and not _matches(key, patterns.keep)


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return _compiled(patterns).fullmatch(key) is not None


@functools.lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all patterns; it matches nothing if there is none."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")
