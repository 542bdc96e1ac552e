"""The objects of an installation, as `kubectl apply` takes them in this order. Pure.

One virtual node is one installation: all of its objects are named after the node, and carry the
label `app.kubernetes.io/instance`, so that several stand in one namespace. The namespace is no part
of any of them.
"""

from __future__ import annotations

import base64
import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge import rbac
from bridge.node import ballot
from bridge.rbac import Account, HomeRights
from bridge.settings import KUBELET_PORT
from translators.naming import DOMAIN, LABEL_VIRTUAL, label_value
from translators.types import Object

DEFAULT_NAMESPACE = "cluster-bridge"
DEFAULT_REPLICAS = 2
#: Where the container has the remote's kubeconfig, and the key of the Secret that it is under.
FOLDER, KEY = "/etc/cluster-bridge", "kubeconfig"
#: Where it keeps a certificate of home's while it runs.
CERT_DIR = "/tmp/serving-certificate"  # noqa: S108  # a volume of the pod's own
HEALTH_PORT = 8081
#: A container that nobody has privileges in: nobody, as distroless images call it.
USER = 65532
#: On the pods: what they were started with, so that another credential rolls them.
ANNOTATION_HASH = f"{DOMAIN}/kubeconfig-hash"
NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
APP = "cluster-bridge"
#: On the Deployment: the virtual node's name, which a label may be too short for.
ANNOTATION_NODE = f"{DOMAIN}/node"


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to be installed."""

    node: str
    image: str
    rights: HomeRights
    """Of this node's name."""
    arguments: Sequence[str] = ()
    """Options of `bridge join` beside those that the installation decides."""
    namespace: str = DEFAULT_NAMESPACE
    replicas: int = DEFAULT_REPLICAS
    bound: Sequence[str] = ()
    """Home's namespaces whose pods may run in the remote."""
    everywhere: bool = False
    """Whether pods of all namespaces may."""
    port: int = KUBELET_PORT
    relay_from: Sequence[str] = ()
    """Who may connect to the ports that a relay listens on: namespaces of home, and networks (such
    as 10.0.0.0/16); pods of all namespaces unless given."""

    @property
    def name(self) -> str:
        """Of its objects."""
        return instance_name(self.node)

    @property
    def account(self) -> Account:
        """Who the bridge is at home."""
        return Account(self.namespace, self.name)


def instance_name(node: str) -> str:
    """The name of the objects of this virtual node's installation."""
    return ballot.lease_name(node)


def labels(node: str) -> dict[str, str]:
    """What all of its objects have."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: label_value(instance_name(node))}


def selector(node: str) -> str:
    """Which objects these are, as the API is asked."""
    return ",".join(f"{key}={value}" for key, value in labels(node).items())


def objects(wanted: Installation, kubeconfig: str) -> list[Object]:
    """All of them, with the Secret that holds the remote's kubeconfig."""
    rights = rbac.home(wanted.rights, wanted.account, wanted.bound, everywhere=wanted.everywhere)
    return [
        *(_labelled(wanted, it) for it in rights),
        _secret(wanted, kubeconfig),
        _budget(wanted),
        *([_policy(wanted)] if wanted.rights.network in ("relay", "auto") else []),
        _deployment(wanted, kubeconfig),
    ]


def _labelled(wanted: Installation, obj: Object) -> Object:
    """With the installation's labels. They stay off the namespace, which others may use too, but
    for the one that tells who made it."""
    made = copy.deepcopy(obj)
    is_namespace = made["kind"] == "Namespace"
    made["metadata"]["labels"] = {NAME_LABEL: APP} if is_namespace else labels(wanted.node)
    return made


def _meta(wanted: Installation, **more: Any) -> Object:
    meta = {"name": wanted.name, "namespace": wanted.namespace, "labels": labels(wanted.node)}
    return {**meta, **more}


def _secret(wanted: Installation, kubeconfig: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _meta(wanted),
        "type": "Opaque",
        "data": {KEY: base64.b64encode(kubeconfig.encode()).decode()},
    }


def _budget(wanted: Installation) -> Object:
    """One of them may be away at a time. An only one may, too: pods run on without a bridge, and a
    budget of none would keep its machine from being drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(wanted),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels(wanted.node)}},
    }


def _policy(wanted: Installation) -> Object:
    """Who reaches the bridges: home's API server and probes, who are machines, the two ports that
    are theirs; a relay's listeners those that are named."""
    everybody = [{"protocol": "TCP", "port": port} for port in (wanted.port, HEALTH_PORT)]
    peers = [_peer(it) for it in wanted.relay_from] or [{"namespaceSelector": {}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(wanted),
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
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(wanted, annotations={ANNOTATION_NODE: wanted.node}),
        "spec": {
            "replicas": wanted.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": labels(wanted.node)},
            # A new one stands by before an old one gives the node's lease up.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {
                    "labels": labels(wanted.node),
                    "annotations": {ANNOTATION_HASH: digest(kubeconfig)},
                },
                "spec": _pod(wanted),
            },
        },
    }


def digest(kubeconfig: str) -> str:
    """What tells one credential from another, and nothing of it."""
    return hashlib.sha256(kubeconfig.encode()).hexdigest()[:16]


def _pod(wanted: Installation) -> Object:
    return {
        "serviceAccountName": wanted.name,
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
                            "labelSelector": {"matchLabels": labels(wanted.node)},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            },
        },
        "containers": [_container(wanted)],
        "volumes": [
            {
                "name": "kubeconfig",
                "secret": {"secretName": wanted.name, "defaultMode": 0o440},
            },
            # The reader of kubeconfigs writes certificates and keys to files: not to a disk.
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        ],
    }


def arguments(wanted: Installation) -> list[str]:
    """What the container is started with."""
    rights = wanted.rights
    own = [
        f"--kubeconfig={FOLDER}/{KEY}",
        f"--name={wanted.node}",
        "--address=$(POD_IP)",
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
    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, "port": "health"}, "timeoutSeconds": 5, **more}

    return {
        "name": "bridge",
        "image": wanted.image,
        # Said, since the server's own choice stays when another image follows one without a tag.
        "imagePullPolicy": "IfNotPresent",
        "args": arguments(wanted),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [
            {"name": "kubelet", "containerPort": wanted.port},
            {"name": "health", "containerPort": HEALTH_PORT},
        ],
        # The checks of a join come first: two clusters have 14 seconds each.
        "startupProbe": probe("/livez", periodSeconds=2, failureThreshold=30),
        "livenessProbe": probe("/livez", periodSeconds=20, failureThreshold=3),
        "readinessProbe": probe("/readyz", periodSeconds=5, failureThreshold=3),
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "kubeconfig", "mountPath": FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # in the container
        ],
    }
