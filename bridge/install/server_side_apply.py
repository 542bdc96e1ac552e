"""Applies an installation to home by server-side apply, each object once.

- Fields that others manage stay. Applying the same objects again changes and reports nothing.
- A virtual node has one installation: if it is installed in another namespace, nothing is applied.
- An existing namespace is not modified.
- Objects of an earlier installation that are no longer rendered (roles, a NetworkPolicy, the
  webhook) are deleted, except RoleBindings: `bridge rbac namespace` creates such too.
- With ``dry_run`` home validates the changes and discards them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.install import installation
from bridge.node.lease_namespace import POLL_SECONDS, TERMINATION_SECONDS
from sync.kube.api_errors import NotFound
from sync.kube.api_resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    Resource,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object, is_deleting, name_of, namespace_of, uid_of

#: The resources of an installation, in the order of their creation.
INSTALLED_RESOURCES = (
    NAMESPACES,
    SERVICE_ACCOUNTS,
    CLUSTER_ROLES,
    ROLES,
    CLUSTER_ROLE_BINDINGS,
    ROLE_BINDINGS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    SECRETS,
    SERVICES,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
)
_BY_KIND = {it.kind: it for it in INSTALLED_RESOURCES}
#: Resources of which every object that is no longer rendered is deleted; of the other resources
#: only the webhook's objects are.
_PRUNED = (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLES,
    NETWORK_POLICIES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)
#: The field manager; a running bridge uses another one.
FIELD_MANAGER = "cluster-bridge-install"
APPLY_CONTENT_TYPE = "application/apply-patch+yaml"
#: Metadata that the API server sets.
_SERVER_FIELDS = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"}
)
#: Changed fields of an object that are named.
_MAX_PATHS = 6

Change = Literal["created", "changed", "unchanged", "removed"]


async def apply(
    home: KubeClient, objects: Sequence[Object], *, node: str, dry_run: bool, notify: Notify
) -> list[tuple[Change, Object]]:
    """Applies the objects in their order, and reports each change. Raises KubeError, and
    PreflightError if the node's bridge is installed in another namespace."""
    await _check_namespace(home, objects, node)
    done: list[tuple[Change, Object]] = []
    for obj in objects:
        change, paths = await _apply_one(home, obj, dry_run=dry_run)
        done.append((change, obj))
        if change != "unchanged":
            notify(_describe(change, obj, paths, dry_run=dry_run))
    for resource, obj in await _list_outdated(home, objects, node):
        done.append(("removed", obj))
        notify(_describe("removed", obj, (), dry_run=dry_run))
        if not dry_run:
            await home.delete(
                resource, name_of(obj), namespace=namespace_of(obj) or None, uid=uid_of(obj)
            )
    return done


async def _check_namespace(home: KubeClient, objects: Sequence[Object], node: str) -> None:
    """Raises PreflightError if the node's bridge is installed in another namespace: that one would
    lose its permissions, which are bound to one ServiceAccount, and keep its Deployment and the
    remote's credential.

    The ClusterRoleBindings name the existing namespaces: tenants cannot write them.
    """
    name = installation.instance_name(node)
    here = {namespace_of(it) for it in objects if it["kind"] == DEPLOYMENTS.kind}
    bindings = await home.list(CLUSTER_ROLE_BINDINGS, labels=installation.label_selector(node))
    subjects = [who for it in bindings.items for who in it.get("subjects") or ()]
    accounts = [it for it in subjects if it.get("kind") == SERVICE_ACCOUNTS.kind]
    for namespace in sorted({str(it.get("namespace") or "") for it in accounts} - here - {""}):
        for resource in (DEPLOYMENTS, SECRETS):
            with suppress(NotFound):
                await home.get(resource, name, namespace=namespace)
                raise PreflightError(
                    f"home: the bridge of node {node} is installed in namespace {namespace} "
                    f"({resource.kind} {namespace}/{name}); nothing was changed. Join with "
                    f"--namespace {namespace} to change it. To move it, remove it first: `bridge "
                    f"leave {node}`, or `kubectl delete deployment,secret -n {namespace} -l "
                    f"{installation.label_selector(node)}`, which leaves the node's pods running"
                )


async def _wait_for_termination(home: KubeClient, namespace: str) -> None:
    """Waits until a namespace that is being deleted no longer exists, at most
    `TERMINATION_SECONDS`. Raises KubeError."""
    deadline = asyncio.get_running_loop().time() + TERMINATION_SECONDS
    while await home.find(NAMESPACES, namespace) is not None:
        if asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(POLL_SECONDS)


async def _apply_one(home: KubeClient, obj: Object, *, dry_run: bool) -> tuple[Change, list[str]]:
    """The change, and the paths of the fields that changed."""
    resource, name = _BY_KIND[str(obj["kind"])], name_of(obj)
    namespace = namespace_of(obj) or None
    before = await home.find(resource, name, namespace=namespace)
    if before is not None and resource is NAMESPACES:
        if dry_run or not is_deleting(before):
            return "unchanged", []
        await _wait_for_termination(home, name)
        before = None
    query = {"fieldManager": FIELD_MANAGER, "force": "true"}
    if dry_run:
        query["dryRun"] = "All"
    try:
        after = await home.request(
            "PATCH",
            resource.path(name, namespace=namespace),
            query=query,
            body=obj,
            content_type=APPLY_CONTENT_TYPE,
        )
    except NotFound:
        if not dry_run:  # The namespace was deleted meanwhile.
            raise
        return "created", []
    if before is None:
        return "created", []
    paths = list(changed_paths(before, after))
    return ("changed", paths) if paths else ("unchanged", [])


async def _list_outdated(
    home: KubeClient, objects: Sequence[Object], node: str
) -> list[tuple[Resource, Object]]:
    """Objects of the node's installation that are no longer rendered, in deletion order."""
    rendered = {(it["kind"], namespace_of(it), name_of(it)) for it in objects}
    outdated = []
    for resource in reversed(INSTALLED_RESOURCES):
        if resource is NAMESPACES:
            continue
        selector = (
            installation.label_selector
            if resource in _PRUNED
            else installation.webhook_label_selector
        )
        page = await home.list(resource, labels=selector(node))
        outdated += [
            (resource, it)
            for it in page.items
            if (resource.kind, namespace_of(it), name_of(it)) not in rendered
        ]
    return outdated


def changed_paths(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The paths of the fields that differ, without the values: they can be secret."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if path == ".metadata" and key in _SERVER_FIELDS:
                continue
            if not (path == "" and key == "status"):
                yield from changed_paths(before.get(key), after.get(key), f"{path}.{key}")
    elif (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and all(isinstance(it, dict) for it in (*before, *after))
    ):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed_paths(old, new, f"{path}[{index}]")
    elif before != after:
        yield path.lstrip(".")


def _describe(change: Change, obj: Object, paths: Sequence[str], *, dry_run: bool) -> str:
    verb = f"would be {change}" if dry_run else change
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    fields = f": {', '.join(paths[:_MAX_PATHS])}{more}" if paths else ""
    return f"home: {obj['kind']} {full_name(obj)} {verb}{fields}"


def full_name(obj: Object) -> str:
    """``namespace/name``, or the name of a cluster-scoped object."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)
