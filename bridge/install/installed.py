"""An installation that is in home: found by its node's name, stopped, and removed.

The Deployment goes first, when its pods have ended, and the namespace last, if a join made it and
nothing else is in it. Each step can be done again after it failed. Bindings that `bridge rbac
namespace` made for its account are its own, too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.install import installation
from bridge.install.kinds import KINDS
from bridge.preflight import permissions
from bridge.preflight.checks import PreflightError
from bridge.preflight.permissions import Right
from sync import cleanup
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import (
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    SECRETS,
    Resource,
)
from translators.types import Object, metadata, name_of, namespace_of, uid_of

#: Seconds between looks at pods that are ending.
LOOK_SECONDS = 0.5
#: Seconds for them to end: more than their grace.
END_SECONDS = 60.0

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Installed:
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


async def find(home: KubeClient, node: str) -> Installed | None:
    """It, or None where the node's bridge runs elsewhere, or who asks may not look. Raises
    KubeError."""
    if not await permissions.may_all(home, _LOOK):
        return None
    found: list[tuple[Resource, Object]] = []
    for resource in _LOOKED_AT:
        items = (await home.list(resource, labels=installation.selector(node))).items
        found += [(resource, it) for it in items]
    if not found:
        return None
    found += await _bindings(home, node, found)
    deployments = [it for kind, it in found if kind is DEPLOYMENTS]
    secrets = [content for kind, it in found if kind is SECRETS and (content := _kubeconfig(it))]
    namespace = next((namespace_of(it) for kind, it in found if kind in _NAMED_AFTER), "")
    return Installed(node, namespace, deployments, found, next(iter(secrets), None))


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The remote's, as an installation has it."""

    secret: str
    """Namespace and name of the Secret."""
    content: bytes = field(repr=False)


async def kubeconfig(home: KubeClient, node: str) -> Kubeconfig | None:
    """That of the node's installation; None where there is none, or who asks may not list Secrets.
    Raises KubeError."""
    if not await permissions.may_all(home, (Right(SECRETS, ("list",)),)):
        return None
    for secret in (await home.list(SECRETS, labels=installation.selector(node))).items:
        if content := _kubeconfig(secret):
            return Kubeconfig(_named(secret), content)
    return None


#: All but the namespace, in the order in which they are removed, and the right to find them.
_LOOKED_AT = tuple(it for it in reversed(KINDS) if it is not NAMESPACES)
_LOOK = tuple(Right(it, ("list",)) for it in _LOOKED_AT)
#: Kinds whose objects are in the installation's own namespace.
_NAMED_AFTER = tuple(it for it in KINDS if it.namespaced and it.kind not in ("Role", "RoleBinding"))


async def _bindings(
    home: KubeClient, node: str, found: list[tuple[Resource, Object]]
) -> list[tuple[Resource, Object]]:
    """Those of single namespaces that were made for its account by hand."""
    known = {uid_of(it) for _, it in found}
    account = installation.instance_name(node)
    page = await home.list(ROLE_BINDINGS, labels=f"{installation.NAME_LABEL}={installation.APP}")
    return [
        (ROLE_BINDINGS, it)
        for it in page.items
        if uid_of(it) not in known
        and [who.get("name") for who in it.get("subjects") or ()] == [account]
    ]


def _kubeconfig(secret: Object) -> bytes | None:
    data = (secret.get("data") or {}).get(installation.KEY)
    if not data:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return None


async def stop(home: KubeClient, there: Installed, *, told: Told) -> None:
    """Ends its bridges and its webhook: none serves the node afterwards. Raises KubeError,
    PreflightError."""
    stopped = []
    for deployment in there.deployments:
        name, namespace = name_of(deployment), namespace_of(deployment)
        with contextlib.suppress(NotFound):
            await home.patch(DEPLOYMENTS, name, {"spec": {"replicas": 0}}, namespace=namespace)
            stopped.append(deployment)
            told(f"home: the pods of Deployment {namespace}/{name} are stopped")
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
    pods = installation.joined(deployment["spec"]["selector"]["matchLabels"])
    while (  # noqa: ASYNC110  # of another machine
        await home.list(PODS, namespace=namespace_of(deployment), labels=pods)
    ).items:
        await asyncio.sleep(LOOK_SECONDS)


async def remove(home: KubeClient, there: Installed, *, told: Told) -> None:
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
    if labels.get(installation.NAME_LABEL) != installation.APP:
        return
    for name, why in await cleanup.remove_namespaces(home, [namespace]):
        told(f"home: namespace {name} stays: {why}")


def _named(obj: Object) -> str:
    where = namespace_of(obj)
    return f"{where}/{name_of(obj)}" if where else name_of(obj)
