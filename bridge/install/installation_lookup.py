"""Finds a virtual node's installation in home, and the remote's kubeconfig in its Secrets.

Labels prove nothing: a tenant can set them on any object. Objects count as the installation's only
in its namespaces (`installation_namespaces`), which are named by a ClusterRoleBinding or by the
Node; tenants can write neither. A kubeconfig in the Secret is untrusted input and accepted only as
`bridge.install.untrusted_kubeconfig` allows.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.base.command_error import PreflightError
from bridge.base.recommended_labels import APP, NAME_LABEL
from bridge.clusters.connection import Notify
from bridge.install import installation, untrusted_kubeconfig
from bridge.install.server_side_apply import INSTALLED_RESOURCES, full_name
from bridge.install.untrusted_kubeconfig import RejectedKubeconfigError
from bridge.node import node_object
from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from bridge.rbac.rbac_manifests import Account
from sync.kube.api_resources import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    Resource,
)
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import RENEWED_TOKEN_FILE
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of

#: Secrets of other namespaces that are named at most; each can have 1 MiB.
MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class StoredKubeconfig:
    """The remote's kubeconfig from an installation's Secret."""

    secret: str
    """``namespace/name`` of the Secret."""
    content: bytes = field(repr=False)
    renewed_token: bytes = field(repr=False, default=b"")
    """What `sync.kube.bearer_token` reads beside the kubeconfig; b"" if there is none."""


@dataclass(frozen=True, slots=True)
class ExistingInstallation:
    """An installation that was found in home."""

    node: str
    namespace: str
    deployments: list[Object]
    objects: list[tuple[Resource, Object]] = field(default_factory=list)
    """In deletion order."""
    stored: StoredKubeconfig | None = None
    """The remote's kubeconfig from the Secret."""

    @property
    def has_webhook(self) -> bool:
        """Whether it includes the offload webhook."""
        return any(resource is MUTATING_WEBHOOKS for resource, _ in self.objects)

    def lines(self) -> list[str]:
        """The objects that its removal deletes, one per line; without any, those that it stops."""
        lines = [f"home:   {it['kind']} {full_name(it)}" for _, it in self.objects]
        if not self.objects:
            names = map(full_name, self.deployments)
            lines += [f"home:   Deployment {name} is scaled to 0" for name in names]
        if self.namespace:
            lines.append(f"home:   Namespace {self.namespace}, if nothing else is in it")
        return lines


#: All resources but namespaces, in deletion order. ClusterRoleBindings are last: a later attempt
#: finds the rest by them.
_LISTED = (
    *(it for it in reversed(INSTALLED_RESOURCES) if it not in (NAMESPACES, CLUSTER_ROLE_BINDINGS)),
    CLUSTER_ROLE_BINDINGS,
)
_LIST_PERMISSIONS = tuple(Permission(it, ("list",)) for it in _LISTED)
#: Resources whose objects are in the installation's own namespace only.
_IN_OWN_NAMESPACE = tuple(
    it for it in INSTALLED_RESOURCES if it.namespaced and it not in (ROLES, ROLE_BINDINGS)
)


async def find_installation(
    home: KubeClient, name: str, node: Object | None, *, warn: Notify
) -> ExistingInstallation | None:
    """The installation of the virtual node ``name``; None if its bridge runs elsewhere, or the
    credential may not list an installation's resources.

    ``node`` is the Node, if it exists; ``warn`` receives a line for each ignored Secret. Raises
    KubeError.
    """
    if not await permissions.are_granted(home, _LIST_PERMISSIONS):
        return None
    namespaces = await installation_namespaces(home, name, node)
    found: list[tuple[Resource, Object]] = []
    for resource in _LISTED:
        for namespace in namespaces if resource in _IN_OWN_NAMESPACE else (None,):
            page = await home.list(
                resource, namespace=namespace, labels=installation.label_selector(name)
            )
            found += [
                (resource, it)
                for it in page.items
                if _is_part_of_installation(resource, it, name, namespaces)
            ]
    await _warn_of_other_secrets(home, name, namespaces, warn)
    if not found:
        return None
    found += await _list_manual_bindings(home, name, namespaces, found)
    secrets = [it for resource, it in found if resource is SECRETS]
    stored = _first_valid_kubeconfig(secrets, name, namespaces, warn)
    return ExistingInstallation(
        name,
        next((namespace_of(it) for resource, it in found if resource in _IN_OWN_NAMESPACE), ""),
        [it for resource, it in found if resource is DEPLOYMENTS],
        found,
        stored,
    )


async def read_deployment(
    home: KubeClient, node: str, namespace: str, name: str
) -> ExistingInstallation | None:
    """The Deployment of the virtual node's bridges, as an installation without objects to remove;
    None if it does not exist. Raises PreflightError if it is not of this node, and KubeError."""
    found = await home.find(DEPLOYMENTS, name, namespace=namespace)
    if found is None:
        return None
    served = (metadata(found).get("annotations") or {}).get(installation.ANNOTATION_NODE)
    if served != node:
        raise PreflightError(
            f"home: Deployment {namespace}/{name} does not run the bridges of node {node}: its "
            f"annotation {installation.ANNOTATION_NODE} is {served or 'missing'}; nothing was "
            "changed"
        )
    return ExistingInstallation(node, "", [found])


async def read_stored_kubeconfig(
    home: KubeClient, name: str, node: Object | None, *, warn: Notify
) -> StoredKubeconfig | None:
    """The remote's kubeconfig from the node's installation; None if there is none, or the
    credential may not list Secrets there. ``warn`` receives a line for each ignored Secret. Raises
    KubeError."""
    namespaces = await installation_namespaces(home, name, node)
    secrets: list[Object] = []
    for namespace in namespaces:
        if await permissions.are_granted(
            home, (Permission(SECRETS, ("list",), namespace=namespace),)
        ):
            labels = installation.label_selector(name)
            secrets += (await home.list(SECRETS, namespace=namespace, labels=labels)).items
    await _warn_of_other_secrets(home, name, namespaces, warn)
    return _first_valid_kubeconfig(secrets, name, namespaces, warn)


async def _warn_of_other_secrets(
    home: KubeClient, node: str, namespaces: Sequence[str], warn: Notify
) -> None:
    """Reports Secrets of other namespaces that have the installation's labels."""
    if not await permissions.are_granted(home, (Permission(SECRETS, ("list",)),)):
        return
    query = {"labelSelector": installation.label_selector(node), "limit": str(MAX_NAMED)}
    page, _ = await home.list_page(SECRETS, query=query)
    for secret in page.items:
        has_kubeconfig = (secret.get("data") or {}).get(installation.KUBECONFIG_KEY)
        if namespace_of(secret) not in namespaces and has_kubeconfig:
            warn(
                f"home: Secret {full_name(secret)} is ignored: it has the labels of this node's "
                "installation but is in another namespace; its creator may want commands to use "
                "its kubeconfig"
            )


async def installation_namespaces(home: KubeClient, name: str, node: Object | None) -> list[str]:
    """The namespaces of the node's installations: one, or several if one was moved manually.

    Only objects that tenants cannot write decide: the ClusterRoleBinding of the installation's
    ServiceAccount, and the Node's annotation. If the credential may list ClusterRoleBindings, the
    annotation alone is not enough: a kubelet of home can annotate its own Node.
    """
    annotations = metadata(node or {}).get("annotations") or {}
    recorded = str(annotations.get(node_object.ANNOTATION_INSTALLATION) or "")
    if not await permissions.are_granted(home, (Permission(CLUSTER_ROLE_BINDINGS, ("list",)),)):
        return [recorded] if recorded else []
    page = await home.list(CLUSTER_ROLE_BINDINGS, labels=installation.label_selector(name))
    granted = {
        str(who.get("namespace"))
        for it in page.items
        for who in it.get("subjects") or ()
        if who.get("kind") == "ServiceAccount"
        and who.get("name") == installation.instance_name(name)
    }
    return sorted(granted, key=lambda it: (it != recorded, it))


def _is_part_of_installation(
    resource: Resource, obj: Object, node: str, namespaces: Sequence[str]
) -> bool:
    """Whether an object with the installation's labels is part of it."""
    if not resource.namespaced or resource in _IN_OWN_NAMESPACE:
        return True  # Tenants cannot write it, or it was listed in the installation's namespace.
    if resource is ROLE_BINDINGS:
        return any(who.get("namespace") in namespaces for who in obj.get("subjects") or ())
    accounts = (installation.instance_name(node), installation.webhook_name(node))
    prefixes = tuple(Account(place, it).role("") for place in namespaces for it in accounts)
    return resource is ROLES and name_of(obj).startswith(prefixes)


async def _list_manual_bindings(
    home: KubeClient, node: str, namespaces: Sequence[str], found: list[tuple[Resource, Object]]
) -> list[tuple[Resource, Object]]:
    """RoleBindings that `bridge rbac namespace` created for the installation's ServiceAccount."""
    known = {uid_of(it) for _, it in found}
    account = installation.instance_name(node)
    page = await home.list(ROLE_BINDINGS, labels=f"{NAME_LABEL}={APP}")
    return [
        (ROLE_BINDINGS, it)
        for it in page.items
        if uid_of(it) not in known
        and [who.get("name") for who in it.get("subjects") or ()] == [account]
        and it["subjects"][0].get("namespace") in namespaces
    ]


def _first_valid_kubeconfig(
    secrets: Sequence[Object], node: str, namespaces: Sequence[str], warn: Notify
) -> StoredKubeconfig | None:
    """The first valid kubeconfig, in the order of ``namespaces``. Rejected ones are reported."""
    # The webhook and the bridge can write these two, which hold no kubeconfig.
    writable = (installation.webhook_name(node), installation.state_secret_name(node))
    candidates = [
        it
        for it in secrets
        if (it.get("data") or {}).get(installation.KUBECONFIG_KEY) and name_of(it) not in writable
    ]
    first: StoredKubeconfig | None = None
    for secret in sorted(candidates, key=lambda it: namespaces.index(namespace_of(it))):
        try:
            content = base64.b64decode(secret["data"][installation.KUBECONFIG_KEY], validate=True)
            stored = StoredKubeconfig(
                full_name(secret),
                untrusted_kubeconfig.validate(content),
                _renewed_token(secrets, namespace_of(secret), node),
            )
            first = first or stored
        except (binascii.Error, RejectedKubeconfigError) as error:
            cause = error if isinstance(error, RejectedKubeconfigError) else "it is not base64"
            warn(
                f"home: Secret {full_name(secret)} is ignored: its kubeconfig is not as the "
                f"installer writes it: {cause}; name the remote's kubeconfig with --kubeconfig"
            )
    return first


def _renewed_token(secrets: Sequence[Object], namespace: str, node: str) -> bytes:
    """The content of the token's file, from the state Secret in the namespace; b"" if it has
    none."""
    name = installation.state_secret_name(node)
    for secret in secrets:
        if (namespace_of(secret), name_of(secret)) == (namespace, name):
            encoded = (secret.get("data") or {}).get(RENEWED_TOKEN_FILE) or ""
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(encoded, validate=True)
    return b""
