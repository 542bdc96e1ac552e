"""An installation that is in home: found by its node's name, stopped, and removed.

The Deployment goes first, when its pods have ended, and the namespace last, if a join made it and
nothing else is in it. Each step can be done again after it failed. Bindings that `bridge rbac
namespace` made for its account are its own, too.

Labels prove nothing: every tenant can give them to objects of their own. An installation's objects
are those in a namespace where `places` finds one: that a ClusterRoleBinding names, which tenants
cannot write, or that the Node records. A kubeconfig in its Secret is accepted only as
`bridge.install.kubeconfig_validation` allows.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bridge.base.app_labels import APP, NAME_LABEL
from bridge.base.errors import PreflightError
from bridge.install import kubeconfig_validation, names
from bridge.install.apply_order import KINDS
from bridge.install.kubeconfig_validation import RejectedKubeconfigError
from bridge.node import node_object
from bridge.rbac import permissions
from bridge.rbac.manifests import Account
from bridge.rbac.permissions import Permission
from sync.cleanup import inventory
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    Resource,
)
from translators.objects import Object, metadata, name_of, namespace_of, uid_of

#: Seconds between looks at pods that are ending.
POLL_SECONDS = 0.5
#: Seconds for them to end: more than their grace.
END_SECONDS = 60.0
#: Secrets of other namespaces that are named at most. Each can have 1 MiB.
MAX_NAMED = 10

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExistingInstallation:
    """What is there."""

    node: str
    namespace: str
    deployments: list[Object]
    objects: list[tuple[Resource, Object]] = field(default_factory=list)
    """In the order in which they are removed."""
    kubeconfig: bytes | None = field(default=None, repr=False)
    """The remote's, out of the Secret."""

    @property
    def has_webhook(self) -> bool:
        """Whether a webhook of offloaded namespaces is part of it."""
        return any(kind is MUTATING_WEBHOOKS for kind, _ in self.objects)

    def lines(self) -> list[str]:
        """What will be removed, line by line."""
        lines = [f"home:   {it['kind']} {_named(it)}" for _, it in self.objects]
        if self.namespace:
            lines.append(f"home:   Namespace {self.namespace}, if nothing else is in it")
        return lines


async def find_installation(
    home: KubeClient, name: str, node: Object | None, *, warn: Told
) -> ExistingInstallation | None:
    """The installation of the virtual node ``name``; None where the node's bridge runs elsewhere,
    or the credential may not list what belongs to one. ``node`` is the Node, if there is one;
    ``warn`` gets a line for each Secret that is ignored. Raises KubeError."""
    if not await permissions.are_granted(home, _LOOK):
        return None
    there = await installation_namespaces(home, name, node)
    found: list[tuple[Resource, Object]] = []
    for resource in _LOOKED_AT:
        for namespace in there if resource in _NAMED_AFTER else (None,):
            page = await home.list(resource, namespace=namespace, labels=names.label_selector(name))
            found += [(resource, it) for it in page.items if _belongs(resource, it, name, there)]
    await _warn_of_others(home, names.label_selector(name), there, warn)
    if not found:
        return None
    found += await _bindings(home, name, there, found)
    deployments = [it for kind, it in found if kind is DEPLOYMENTS]
    accepted = _accepted([it for kind, it in found if kind is SECRETS], name, there, warn)
    namespace = next((namespace_of(it) for kind, it in found if kind in _NAMED_AFTER), "")
    content = accepted.content if accepted else None
    return ExistingInstallation(name, namespace, deployments, found, content)


@dataclass(frozen=True, slots=True)
class StoredKubeconfig:
    """The remote's, as an installation has it."""

    secret: str
    """Namespace and name of the Secret."""
    content: bytes = field(repr=False)


async def read_stored_kubeconfig(
    home: KubeClient, name: str, node: Object | None, *, warn: Told
) -> StoredKubeconfig | None:
    """That of the node's installation; None where there is none, or the credential may not list
    Secrets there. ``warn`` gets a line for each Secret that is ignored. Raises KubeError."""
    there = await installation_namespaces(home, name, node)
    labels = names.label_selector(name)
    found: list[Object] = []
    for namespace in there:
        if await permissions.are_granted(
            home, (Permission(SECRETS, ("list",), namespace=namespace),)
        ):
            found += (await home.list(SECRETS, namespace=namespace, labels=labels)).items
    await _warn_of_others(home, labels, there, warn)
    return _accepted(found, name, there, warn)


async def _warn_of_others(home: KubeClient, labels: str, there: Sequence[str], warn: Told) -> None:
    """Names Secrets of other namespaces that have an installation's labels."""
    if not await permissions.are_granted(home, (Permission(SECRETS, ("list",)),)):
        return
    query = {"labelSelector": labels, "limit": str(MAX_NAMED)}
    page, _ = await home.list_page(SECRETS, query=query)
    for secret in page.items:
        if namespace_of(secret) not in there and (secret.get("data") or {}).get(
            names.KUBECONFIG_KEY
        ):
            warn(
                f"home: Secret {_named(secret)} is ignored: it has the labels of this node's "
                "installation and is in another namespace; whoever made it may want commands to "
                "use its kubeconfig"
            )


async def installation_namespaces(home: KubeClient, name: str, node: Object | None) -> list[str]:
    """The namespaces of the node's installations: one, or several where one was moved by hand.

    Which these are is decided by objects that tenants cannot write: the ClusterRoleBinding of the
    installation's account, and the annotation of the Node. Where the credential may list the
    former, the annotation alone is not enough: a kubelet of home may annotate a Node of its own.
    """
    annotations = metadata(node or {}).get("annotations") or {}
    recorded = str(annotations.get(node_object.ANNOTATION_INSTALLATION) or "")
    if not await permissions.are_granted(home, (Permission(CLUSTER_ROLE_BINDINGS, ("list",)),)):
        return [recorded] if recorded else []
    page = await home.list(CLUSTER_ROLE_BINDINGS, labels=names.label_selector(name))
    granted = {
        str(who.get("namespace"))
        for it in page.items
        for who in it.get("subjects") or ()
        if who.get("kind") == "ServiceAccount" and who.get("name") == names.instance_name(name)
    }
    return sorted(granted, key=lambda it: (it != recorded, it))


#: All but the namespace, in the order in which they are removed, and the right to find them. What
#: `places` decides by goes last: until then another try finds the rest.
_LOOKED_AT = (
    *(it for it in reversed(KINDS) if it not in (NAMESPACES, CLUSTER_ROLE_BINDINGS)),
    CLUSTER_ROLE_BINDINGS,
)
_LOOK = tuple(Permission(it, ("list",)) for it in _LOOKED_AT)
#: Kinds whose objects are in the installation's own namespace.
_NAMED_AFTER = tuple(it for it in KINDS if it.namespaced and it.kind not in ("Role", "RoleBinding"))


def _belongs(resource: Resource, obj: Object, node: str, there: Sequence[str]) -> bool:
    """Whether an object with an installation's labels is one of its objects."""
    if not resource.namespaced or resource in _NAMED_AFTER:
        return True  # Tenants cannot write these, or they are in the installation's namespace.
    if resource is ROLE_BINDINGS:
        return any((who.get("namespace") in there) for who in obj.get("subjects") or ())
    accounts = (names.instance_name(node), names.webhook_name(node))
    prefixes = tuple(Account(place, it).role("") for place in there for it in accounts)
    return resource is ROLES and name_of(obj).startswith(prefixes)


async def _bindings(
    home: KubeClient, node: str, there: Sequence[str], found: list[tuple[Resource, Object]]
) -> list[tuple[Resource, Object]]:
    """Those of single namespaces that were made for its account by hand."""
    known = {uid_of(it) for _, it in found}
    account = names.instance_name(node)
    page = await home.list(ROLE_BINDINGS, labels=f"{NAME_LABEL}={APP}")
    return [
        (ROLE_BINDINGS, it)
        for it in page.items
        if uid_of(it) not in known
        and [who.get("name") for who in it.get("subjects") or ()] == [account]
        and it["subjects"][0].get("namespace") in there
    ]


def _accepted(
    secrets: Sequence[Object], node: str, there: Sequence[str], warn: Told
) -> StoredKubeconfig | None:
    """The first kubeconfig that is as the installer writes it, in the order of ``there``."""
    # The webhook may write its own Secret, which leads to no cluster.
    candidates = [
        it
        for it in secrets
        if (it.get("data") or {}).get(names.KUBECONFIG_KEY)
        and name_of(it) != names.webhook_name(node)
    ]
    accepted: StoredKubeconfig | None = None
    for secret in sorted(candidates, key=lambda it: there.index(namespace_of(it))):
        try:
            content = base64.b64decode(secret["data"][names.KUBECONFIG_KEY], validate=True)
            found = StoredKubeconfig(_named(secret), kubeconfig_validation.validate(content))
            accepted = accepted or found
        except (binascii.Error, RejectedKubeconfigError) as problem:
            why = problem if isinstance(problem, RejectedKubeconfigError) else "it is not base64"
            warn(
                f"home: Secret {_named(secret)} is ignored: its kubeconfig is not as the installer "
                f"writes it: {why}; --kubeconfig names the remote's kubeconfig instead"
            )
    return accepted


async def stop(home: KubeClient, there: ExistingInstallation, *, report: Told) -> None:
    """Ends its bridges and its webhook: none serves the node afterwards. Raises KubeError,
    PreflightError."""
    stopped = []
    for deployment in there.deployments:
        name, namespace = name_of(deployment), namespace_of(deployment)
        with contextlib.suppress(NotFound):
            await home.patch(DEPLOYMENTS, name, {"spec": {"replicas": 0}}, namespace=namespace)
            stopped.append(deployment)
            report(f"home: the pods of Deployment {namespace}/{name} are stopped")
    try:
        async with asyncio.timeout(END_SECONDS):
            for deployment in stopped:
                await _ended(home, deployment)
    except TimeoutError:
        raise PreflightError(
            f"home: pods in namespace {there.namespace} have not ended in {END_SECONDS:.0f} s "
            "(is their machine away?); leave again to wait on"
        ) from None


async def _ended(home: KubeClient, deployment: Object) -> None:
    pods = names.format_selector(deployment["spec"]["selector"]["matchLabels"])
    while (  # noqa: ASYNC110  # of another machine
        await home.list(PODS, namespace=namespace_of(deployment), labels=pods)
    ).items:
        await asyncio.sleep(POLL_SECONDS)


async def remove(home: KubeClient, there: ExistingInstallation, *, report: Told) -> None:
    """Removes it, and the namespace where a join made it and nothing else is in it."""
    for resource, obj in there.objects:
        await home.delete(
            resource, name_of(obj), namespace=namespace_of(obj) or None, uid=uid_of(obj)
        )
    if not there.namespace:
        return
    try:
        namespace = await home.get(NAMESPACES, there.namespace)
    except NotFound:
        return
    labels = metadata(namespace).get("labels") or {}
    if labels.get(NAME_LABEL) != APP:
        return
    for name, why in await inventory.delete_namespaces(home, [namespace]):
        report(f"home: namespace {name} stays: {why}")


def _named(obj: Object) -> str:
    where = namespace_of(obj)
    return f"{where}/{name_of(obj)}" if where else name_of(obj)
