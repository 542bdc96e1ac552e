"""Reads the parameters of an installation back from its objects at home, for `bridge upgrade`.

The inverse of `bridge.install.installation_manifests`, except for the arguments that it sets
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bridge.base.command_error import PreflightError
from bridge.base.recommended_labels import INSTANCE_LABEL
from bridge.install import installation
from bridge.install.installation_lookup import ExistingInstallation, find_installation
from bridge.rbac.rbac_manifests import Account
from sync.kube.api_resources import (
    CLUSTER_ROLE_BINDINGS,
    NETWORK_POLICIES,
    NODES,
    ROLE_BINDINGS,
    Resource,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata, name_of, namespace_of

#: The image of an installation that named none.
_DEFAULT_IMAGE = re.compile(r"cluster-bridge:[0-9][^/]*")
#: Arguments that the installation sets, whatever the options are.
_SET_BY_INSTALLATION = (
    "--kubeconfig=",
    "--name=",
    "--address=",
    "--health-port=",
    "--state-secret=",
    "--cert-dir=",
)


@dataclass(frozen=True, slots=True)
class InstalledOptions:
    """The parameters of an existing installation."""

    namespace: str
    image: str | None
    """None if the installation named none: each version has its own default."""
    replicas: int
    arguments: Sequence[str]
    """Options of `bridge join`, without those that the installation sets."""
    bound_namespaces: Sequence[str]
    all_namespaces: bool
    offload_webhook: bool
    relay_from: Sequence[str]
    kubeconfig: str | None = field(repr=False)
    """The remote's kubeconfig; None if the Secret has no valid one."""


async def find_installed_options(home: KubeClient, node: str) -> InstalledOptions:
    """The parameters of the node's installation. Raises KubeError, and PreflightError if there is
    none, or the credential may not list its objects."""
    registered = await home.find(NODES, node)
    found = await find_installation(home, node, registered, warn=lambda _: None)
    bridges = [] if found is None else _named(found.deployments, installation.instance_name(node))
    if found is None or not bridges:
        raise PreflightError(
            f"home: no installation of node {node} was found, or the credential may not list its "
            "objects; install it first, with bridge install"
        )
    return _read(found, bridges[0])


def _read(found: ExistingInstallation, deployment: Object) -> InstalledOptions:
    namespace = namespace_of(deployment)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    role = Account(namespace, installation.instance_name(found.node)).role("home-namespace")
    bindings = [it for it in _of(found, ROLE_BINDINGS) if _is_labelled(it)]
    policies = _named(_of(found, NETWORK_POLICIES), installation.instance_name(found.node))
    return InstalledOptions(
        namespace,
        None if _DEFAULT_IMAGE.fullmatch(container["image"]) else str(container["image"]),
        int(deployment["spec"].get("replicas", 1)),
        [
            it.replace("$$(", "$(")
            for it in (container.get("args") or ())[1:]
            if not it.startswith(_SET_BY_INSTALLATION)
        ],
        [namespace_of(it) for it in bindings if it["roleRef"]["name"] == role],
        any(it["roleRef"]["name"] == role for it in _of(found, CLUSTER_ROLE_BINDINGS)),
        bool(_named(found.deployments, installation.webhook_name(found.node))),
        [source for it in policies for source in _relay_sources(it)],
        found.stored.content.decode() if found.stored is not None else None,
    )


def _relay_sources(policy: Object) -> Iterable[str]:
    """The namespaces and networks that the NetworkPolicy admits to all ports; none for everyone."""
    for rule in (policy.get("spec") or {}).get("ingress") or ():
        for peer in rule.get("from") or ():
            labels = (peer.get("namespaceSelector") or {}).get("matchLabels") or {}
            source = (peer.get("ipBlock") or {}).get("cidr") or labels.get(
                "kubernetes.io/metadata.name"
            )
            if source:
                yield str(source)


def _of(found: ExistingInstallation, resource: Resource) -> list[Object]:
    return [it for kind, it in found.objects if kind is resource]


def _named(objects: Iterable[Object], name: str) -> list[Object]:
    return [it for it in objects if name_of(it) == name]


def _is_labelled(obj: Object) -> bool:
    """Whether the installation created it, and not `bridge rbac namespace`."""
    return INSTANCE_LABEL in (metadata(obj).get("labels") or {})
