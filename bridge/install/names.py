"""What is to be installed for one virtual node, and how its objects are called. Pure.

One virtual node is one installation: all of its objects are named after the node, and carry the
label `app.kubernetes.io/instance`, so that several stand in one namespace. The namespace is no part
of any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.base.app_labels import APP, INSTANCE_LABEL, NAME_LABEL
from bridge.base.settings import KUBELET_PORT
from bridge.election import election_record
from bridge.rbac.manifests import Account, HomePermissions
from translators.identity import DOMAIN
from translators.names import DNS_LABEL_MAX, hashed_name, label_value
from translators.objects import Object

DEFAULT_NAMESPACE = "cluster-bridge"
DEFAULT_REPLICAS = 2
#: The key of the Secret that the remote's kubeconfig is under.
KUBECONFIG_KEY = "kubeconfig"
#: On the pods: what they were started with, so that another credential rolls them.
ANNOTATION_HASH = f"{DOMAIN}/kubeconfig-hash"
#: On the Deployment: the virtual node's name, which a label may be too short for.
ANNOTATION_NODE = f"{DOMAIN}/node"
COMPONENT_LABEL = "app.kubernetes.io/component"
#: The component that is no bridge.
WEBHOOK_COMPONENT = "offload-webhook"


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to be installed."""

    node: str
    image: str
    permissions: HomePermissions
    """Of this node's name."""
    arguments: Sequence[str] = ()
    """Options of `bridge join` beside those that the installation decides."""
    namespace: str = DEFAULT_NAMESPACE
    replicas: int = DEFAULT_REPLICAS
    bound_namespaces: Sequence[str] = ()
    """Home's namespaces whose pods may run in the remote."""
    all_namespaces: bool = False
    """Whether pods of all namespaces may."""
    port: int = KUBELET_PORT
    relay_from: Sequence[str] = ()
    """Who may connect to the ports that a relay listens on: namespaces of home, and networks (such
    as 10.0.0.0/16); pods of all namespaces unless given."""
    offload_webhook: bool = False
    """Whether `bridge webhook` runs beside the bridge, with as many replicas."""

    @property
    def name(self) -> str:
        """Of its objects."""
        return instance_name(self.node)

    @property
    def account(self) -> Account:
        """Who the bridge is at home."""
        return Account(self.namespace, self.name)

    @property
    def deployment_names(self) -> tuple[str, ...]:
        """The names of its Deployments."""
        return (self.name, webhook_name(self.node)) if self.offload_webhook else (self.name,)


def instance_name(node: str) -> str:
    """The name of the objects of this virtual node's installation."""
    return election_record.election_lease_name(node)


def webhook_name(node: str) -> str:
    """The name of the objects of its webhook. A Service is one of them: its name is a DNS label."""
    name = f"{instance_name(node)}-offload"
    plain = name.replace(".", "-")
    if plain == name and len(name) <= DNS_LABEL_MAX:
        return name
    return hashed_name(plain, name, max_length=DNS_LABEL_MAX)


def labels(node: str) -> dict[str, str]:
    """What all of its objects have."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: label_value(instance_name(node))}


def label_selector(node: str) -> str:
    """Which objects these are, as the API is asked. Of pods: the bridges alone."""
    return format_selector(labels(node))


def webhook_label_selector(node: str) -> str:
    """Which of them are the webhook's."""
    return format_selector({**labels(node), COMPONENT_LABEL: WEBHOOK_COMPONENT})


def webhook_pod_labels(node: str) -> dict[str, str]:
    """What the webhook's pods have. The bridges' Deployment and budget select by `labels`, and
    these are none of theirs."""
    return {**labels(node), NAME_LABEL: f"{APP}-{WEBHOOK_COMPONENT}"}


def format_selector(wanted: dict[str, str]) -> str:
    """Labels as a selector in text."""
    return ",".join(f"{key}={value}" for key, value in wanted.items())


def object_metadata(wanted: Installation, **more: Any) -> Object:
    """The metadata of one of the bridge's objects."""
    found = {"name": wanted.name, "namespace": wanted.namespace, "labels": labels(wanted.node)}
    return {**found, **more}


def webhook_metadata(wanted: Installation, **more: Any) -> Object:
    """The metadata of one of its webhook's objects."""
    own = {**labels(wanted.node), COMPONENT_LABEL: WEBHOOK_COMPONENT}
    found = {"name": webhook_name(wanted.node), "namespace": wanted.namespace, "labels": own}
    return {**found, **more}
