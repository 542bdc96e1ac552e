"""The objects of a bridge in the home cluster whose joins are objects: Remotes or ClusterProfiles.
Pure.

One Deployment serves all of them; its replicas divide the virtual nodes (`bridge.sharding`). The
nodes are named when the objects are rendered, because the account can write no others. Kubeconfigs
and certificates stay in the memory of each replica, which reads the Secrets when it starts. The
remotes' renewed tokens are kept in a Secret: a kubeconfig's own token may have expired when a pod
is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from bridge.base.join_settings import KUBELET_PORT
from bridge.base.recommended_labels import NAME_LABEL
from bridge.install import pod_template
from bridge.install.installation import DEFAULT_NAMESPACE, DEFAULT_REPLICAS
from bridge.install.installation_manifests import HEALTH_PORT
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account, HomePermissions
from sync.kube import renewed_token
from translators.object_accessors import Object

#: The name of the objects, and of the account: that of no installation of a node, which begins with
#: ``cluster-bridge-``.
NAME = "bridge-fleet"
#: The Secret with the renewed tokens.
TOKENS = f"{NAME}-tokens"
#: Maximum number of virtual nodes: ten times as many as were measured.
MAX_NODES = 1000
#: Ports of the kubelet APIs: each virtual node has the next free one (`bridge.fleet`). They are
#: below those that the kernel selects for the relay (net.ipv4.ip_local_port_range).
PORTS = range(KUBELET_PORT, KUBELET_PORT + MAX_NODES)
#: The container's XDG_STATE_HOME.
_STATE_HOME = PurePosixPath("/state")
_TOKENS_FOLDER = _STATE_HOME.joinpath(*renewed_token.STATE)


@dataclass(frozen=True, slots=True)
class FleetInstallation:
    """The options of `bridge fleet render`."""

    watched: str
    """The namespace of the Remotes or ClusterProfiles."""
    permissions: HomePermissions
    """With the names of the virtual nodes; `fleet_objects` adds that for the tokens."""
    image: str
    profiles: bool = False
    """Whether the joins are ClusterProfiles."""
    definitions: Sequence[Object] = ()
    """CustomResourceDefinitions to include."""
    namespace: str = DEFAULT_NAMESPACE
    replicas: int = DEFAULT_REPLICAS
    bound_namespaces: Sequence[str] = ()
    """Namespaces of home whose pods may run in the remotes."""
    all_namespaces: bool = False
    """Whether pods of all namespaces may run in the remotes."""


def fleet_objects(options: FleetInstallation) -> list[Object]:
    """All objects, in the order in which they are to be applied. The Secret is empty: applying the
    objects again keeps what the bridges wrote."""
    account = Account(options.namespace, NAME)
    labels = {NAME_LABEL: NAME}
    meta = {"name": NAME, "namespace": options.namespace, "labels": labels}
    permissions = [
        *rbac_manifests.home_objects(
            replace(options.permissions, token_secret=(options.namespace, TOKENS)),
            account,
            options.bound_namespaces,
            all_namespaces=options.all_namespaces,
        ),
        *rbac_manifests.fleet_objects(account, options.watched, (), profiles=options.profiles),
    ]
    namespaces = {it["metadata"]["name"] for it in permissions if it["kind"] == "Namespace"}
    watched = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.watched}}
    return [
        *options.definitions,
        *([] if options.watched in namespaces else [watched]),
        *permissions,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {**meta, "name": TOKENS}},
        _network_policy(meta),
        pod_template.disruption_budget(meta, labels),
        pod_template.deployment(
            meta,
            replicas=options.replicas,
            template={"metadata": {"labels": labels}, "spec": _pod_spec(options, labels)},
            pods=labels,
        ),
    ]


def _network_policy(meta: Object) -> Object:
    """Everyone may connect to the kubelet APIs and the health port: home's API server and kubelets
    connect from node addresses. The relay's listeners accept home's pods alone."""
    kubelets = {"protocol": "TCP", "port": PORTS[0], "endPort": PORTS[-1]}
    health = {"protocol": "TCP", "port": HEALTH_PORT}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta,
        "spec": {
            "podSelector": {"matchLabels": meta["labels"]},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [kubelets, health]}, {"from": [{"namespaceSelector": {}}]}],
        },
    }


def _pod_spec(options: FleetInstallation, pods: dict[str, str]) -> Object:
    # Credentials are not written to a disk.
    state = {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    tokens = {"secretName": TOKENS, "optional": True, "defaultMode": 0o440}
    return pod_template.pod_spec(
        NAME, _container(options), pods=pods, volumes=[state, {"name": "tokens", "secret": tokens}]
    )


def _container(options: FleetInstallation) -> Object:
    source = "--cluster-profiles" if options.profiles else "--remotes"
    return pod_template.container(
        "bridge",
        options.image,
        [
            "run",
            f"{source}={options.watched}",
            f"--health-port={HEALTH_PORT}",
            f"--token-secret={TOKENS}",
            "--log-format=json",
        ],
        ports={"health": HEALTH_PORT},
        probed={"port": "health"},
        resources={
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "2Gi"},
        },
        mounts=[
            {"name": "state", "mountPath": str(_TOKENS_FOLDER.parent)},
            {"name": "tokens", "mountPath": str(_TOKENS_FOLDER), "readOnly": True},
        ],
        environment={"XDG_STATE_HOME": str(_STATE_HOME)},
    )
