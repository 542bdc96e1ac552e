"""What the Deployments of an installation have in common: the strictest of pods. Pure.

Not root, a root file system that is read-only, no capabilities, the runtime's seccomp profile (the
restricted standard of Pod Security), never on a virtual node, and apart from each other as far as
home's machines allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from translators.identity import LABEL_VIRTUAL
from translators.objects import Object

#: A container that nobody has privileges in: nobody, as distroless images call it.
USER = 65532
#: Where the address of its pod is in a container's arguments.
POD_IP = "$(POD_IP)"


def disruption_budget(meta: Object, pods: Mapping[str, str]) -> Object:
    """A PodDisruptionBudget that lets one of these pods be evicted at a time, also an only one: a
    budget of none would keep its node from being drained. Pods that are not Ready may be evicted
    at any time: with the default policy those of an installation that cannot become Ready (a remote
    that is away, say) would block every drain of their nodes."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta,
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(pods)},
        },
    }


def deployment(meta: Object, *, replicas: int, template: Object, pods: Mapping[str, str]) -> Object:
    """A Deployment of pods with the labels ``pods``; a new one is ready before an old one goes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": dict(pods)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": template,
        },
    }


def pod_spec(
    account: str, container: Object, *, pods: Mapping[str, str], volumes: Sequence[Object] = ()
) -> Object:
    """The spec of a pod with one container."""
    return {
        "serviceAccountName": account,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 20,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {
            # A bridge that ran on a node which it makes itself would end with it.
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": LABEL_VIRTUAL, "operator": "DoesNotExist"}]}
                    ]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": dict(pods)},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            },
        },
        "containers": [container],
        "volumes": [
            *volumes,
            # Readers of certificates and keys want files: not on a disk.
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        ],
    }


def container(
    name: str,
    image: str,
    arguments: Sequence[str],
    *,
    ports: Mapping[str, int],
    probed: Object,
    resources: Object,
    mounts: Sequence[Object] = (),
) -> Object:
    """One of the bridge's image. ``probed``: where it answers ``/livez`` and ``/readyz``."""

    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, **probed}, "timeoutSeconds": 5, **more}

    return {
        "name": name,
        "image": image,
        # Said, since the server's own choice stays when another image follows one without a tag.
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
        # The checks of a join come first: two clusters have 14 seconds each.
        "startupProbe": probe("/livez", periodSeconds=2, failureThreshold=30),
        "livenessProbe": probe("/livez", periodSeconds=20, failureThreshold=3),
        "readinessProbe": probe("/readyz", periodSeconds=5, failureThreshold=3),
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *mounts,
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # in the container
        ],
    }
