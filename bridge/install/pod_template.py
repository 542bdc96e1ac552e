"""Builds the pods, Deployments and PodDisruptionBudgets that installations have in common. Pure.

The pods meet the Pod Security Standard ``restricted`` (non-root, no capabilities, RuntimeDefault
seccomp) and have a read-only root file system. They never run on a virtual node, and are spread
over nodes where possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from translators.object_accessors import Object
from translators.ownership_labels import LABEL_VIRTUAL

#: The user ``nonroot`` of distroless images.
USER = 65532
#: Expands to the pod's IP in a container's arguments.
POD_IP = "$(POD_IP)"


def disruption_budget(meta: Object, pods: Mapping[str, str]) -> Object:
    """A PodDisruptionBudget that allows one eviction at a time, even of a single replica, so that
    every node can be drained. Pods that are not Ready can always be evicted: with the default
    policy, pods that cannot become Ready (because the remote is unreachable) would block drains."""
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
    """A Deployment of pods with the labels ``pods``, updated without unavailable replicas."""
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
    """A pod spec with one container."""
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
            # A bridge on its own virtual node would depend on itself.
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
            # The TLS library reads certificates and keys from files; keep them off the disk.
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
    """A container of the bridge's image. ``probed`` is the port (and scheme) of its probes."""

    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, **probed}, "timeoutSeconds": 5, **more}

    return {
        "name": name,
        "image": image,
        # Explicit: the API server's default depends on the first image's tag and stays.
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
        # The join checks run before the server starts, up to 14 seconds for each cluster.
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
