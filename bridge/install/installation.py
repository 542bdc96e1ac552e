"""Describes an installation, and names and labels its objects. Pure.

One virtual node is one installation. Its objects are named after the node and share the label
`app.kubernetes.io/instance`, so several installations fit into one namespace. The namespace itself
belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.base.join_settings import KUBELET_PORT, HomeIdentity, HomeIdentityChoice
from bridge.base.recommended_labels import APP, INSTANCE_LABEL, NAME_LABEL
from bridge.rbac.rbac_manifests import Account, HomePermissions
from translators.derived_names import DNS_LABEL_MAX, hashed_name, label_value, truncated_name
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN

DEFAULT_NAMESPACE = "cluster-bridge"
DEFAULT_REPLICAS = 2
#: The key of the remote's kubeconfig in the Secret.
KUBECONFIG_KEY = "kubeconfig"
#: On the pods: the digest of the kubeconfig, so that a new credential starts a rollout.
ANNOTATION_HASH = f"{DOMAIN}/kubeconfig-hash"
#: On the Deployment: the virtual node's name, which can be too long for a label.
ANNOTATION_NODE = f"{DOMAIN}/node"
COMPONENT_LABEL = "app.kubernetes.io/component"
#: The component label's value of the webhook's objects.
WEBHOOK_COMPONENT = "offload-webhook"


@dataclass(frozen=True, slots=True)
class Installation:
    """The parameters of an installation."""

    node: str
    image: str
    permissions: HomePermissions
    """For this node's name; `home_permissions` completes them."""
    arguments: Sequence[str] = ()
    """Options of `bridge join`, without those that the installation sets."""
    home_identity: HomeIdentityChoice = "auto"
    """With ``node``, the account does not get the permissions to act in place of the node."""
    keeps_permissions: bool = False
    """Whether it gets them with ``node`` too, until earlier bridges have been replaced."""
    namespace: str = DEFAULT_NAMESPACE
    replicas: int = DEFAULT_REPLICAS
    bound_namespaces: Sequence[str] = ()
    """Namespaces of home whose pods may run in the remote."""
    all_namespaces: bool = False
    """Whether pods of all namespaces may run in the remote."""
    port: int = KUBELET_PORT
    relay_from: Sequence[str] = ()
    """Sources that may connect to the relay's listeners: namespaces of home and CIDRs (such as
    10.0.0.0/16). If empty, pods of all namespaces may."""
    offload_webhook: bool = False
    """Whether `bridge webhook` is installed too, with the same number of replicas."""

    @property
    def name(self) -> str:
        return instance_name(self.node)

    @property
    def account(self) -> Account:
        """The bridge's ServiceAccount at home."""
        return Account(self.namespace, self.name)

    @property
    def home_permissions(self) -> HomePermissions:
        """All permissions of the account at home."""
        is_node = self.home_identity == "node" and not self.keeps_permissions
        identity: HomeIdentity = "node" if is_node else "service-account"
        return replace(self.permissions, identity=identity, state_secret=self.state_secret)

    @property
    def state_secret(self) -> tuple[str, str]:
        """Namespace and name of the Secret that the bridges write."""
        return self.namespace, state_secret_name(self.node)

    @property
    def deployment_names(self) -> tuple[str, ...]:
        return (self.name, webhook_name(self.node)) if self.offload_webhook else (self.name,)


def instance_name(node: str) -> str:
    """The name of the objects of this virtual node's bridge."""
    return truncated_name(f"{APP}-{node}", unique=node)


def state_secret_name(node: str) -> str:
    """The name of the Secret that the bridges of this virtual node write: the remote's renewed
    token, and the certificate of the node's identity. No `instance_name` has this prefix."""
    return truncated_name(f"bridge-state-{node}", unique=node)


def webhook_name(node: str) -> str:
    """The name of the objects of its webhook, a DNS label: one of them is a Service."""
    name = f"{instance_name(node)}-offload"
    plain = name.replace(".", "-")
    if plain == name and len(name) <= DNS_LABEL_MAX:
        return name
    return hashed_name(plain, name, max_length=DNS_LABEL_MAX)


def labels(node: str) -> dict[str, str]:
    """The labels of all objects of the installation."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: label_value(instance_name(node))}


def label_selector(node: str) -> str:
    """Selects all objects of the installation. Of the pods it selects the bridges only."""
    return format_selector(labels(node))


def webhook_label_selector(node: str) -> str:
    return format_selector({**labels(node), COMPONENT_LABEL: WEBHOOK_COMPONENT})


def webhook_pod_labels(node: str) -> dict[str, str]:
    """The labels of the webhook's pods; the bridges' Deployment and budget must not select them."""
    return {**labels(node), NAME_LABEL: f"{APP}-{WEBHOOK_COMPONENT}"}


def format_selector(pod_labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in pod_labels.items())


def object_metadata(installation: Installation, **more: Any) -> Object:
    """The metadata of the bridge's objects."""
    return {
        "name": installation.name,
        "namespace": installation.namespace,
        "labels": labels(installation.node),
        **more,
    }


def webhook_metadata(installation: Installation) -> Object:
    """The metadata of the webhook's objects."""
    return {
        "name": webhook_name(installation.node),
        "namespace": installation.namespace,
        "labels": {**labels(installation.node), COMPONENT_LABEL: WEBHOOK_COMPONENT},
    }
