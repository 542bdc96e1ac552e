"""Puts an installation into home: what is missing is made, what differs is changed, once each.

By server-side apply, so that what others have set in fields that are not ours stays. Applying the
same again changes nothing and says so. One virtual node has one installation: another namespace
than that of an existing one is refused. A namespace that is there is left as it is. With ``dry``
home is asked what it would do, and keeps nothing of it. What an earlier one had and this has not is
removed (rights, a NetworkPolicy, a webhook); bindings of single namespaces stay, since `bridge rbac
namespace` makes such too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from bridge.base.errors import PreflightError
from bridge.install import names
from bridge.install.apply_order import KINDS, resource_of
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from translators.objects import Object, name_of, namespace_of, uid_of

#: Who has set the fields, in ``metadata.managedFields``. Not what a bridge itself is called there.
MANAGER = "cluster-bridge-install"
APPLY = "application/apply-patch+yaml"
#: Fields that a server changes by itself.
_THEIRS = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"})
#: Changes of one object that are named.
_SHOWN = 6
#: Kinds of which whatever is asked for no more ends; of the others what is the webhook's.
_ENDING = (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLES, NETWORK_POLICIES)

Told = Callable[[str], None]
Change = Literal["created", "changed", "unchanged", "removed"]


async def apply(
    home: KubeClient, wanted: Sequence[Object], *, node: str, dry_run: bool, report: Told
) -> list[tuple[Change, Object]]:
    """Applies them in their order; a line for each that is not as it was. Raises KubeError, and
    PreflightError where the node's bridge is installed in another namespace."""
    await _check_place(home, wanted, node)
    done: list[tuple[Change, Object]] = []
    for obj in wanted:
        change, paths = await _apply_one(home, obj, dry=dry_run)
        done.append((change, obj))
        if change != "unchanged":
            report(_line(change, obj, paths, dry=dry_run))
    for resource, obj in await _outdated(home, wanted, node):
        done.append(("removed", obj))
        report(_line("removed", obj, (), dry=dry_run))
        if not dry_run:
            await home.delete(
                resource, name_of(obj), namespace=namespace_of(obj) or None, uid=uid_of(obj)
            )
    return done


async def _check_place(home: KubeClient, wanted: Sequence[Object], node: str) -> None:
    """An installation in another namespace would lose its permissions, which are bound to one
    account, and keep its Deployment and the remote's credential.

    Where it is, its ClusterRoleBindings say: they are cluster-scoped, so no tenant writes them.
    """
    name = names.instance_name(node)
    here = {namespace_of(it) for it in wanted if it["kind"] == DEPLOYMENTS.kind}
    bindings = await home.list(CLUSTER_ROLE_BINDINGS, labels=names.label_selector(node))
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
                    f"leave --name {node}`, or `kubectl delete deployment,secret -n {namespace} -l "
                    f"{names.label_selector(node)}`, which leaves the pods of the node running"
                )


async def _apply_one(home: KubeClient, obj: Object, *, dry: bool) -> tuple[Change, list[str]]:
    resource, name = resource_of(obj), name_of(obj)
    namespace = namespace_of(obj) or None
    try:
        before: Object | None = await home.get(resource, name, namespace=namespace)
    except NotFound:
        before = None
    if before is not None and resource.kind == "Namespace":
        return "unchanged", []
    query = {"fieldManager": MANAGER, "force": "true"}
    if dry:
        query["dryRun"] = "All"
    try:
        after = await home.request(
            "PATCH",
            resource.path(name, namespace=namespace),
            query=query,
            body=obj,
            content_type=APPLY,
        )
    except NotFound:
        if not dry:  # its namespace has been removed meanwhile
            raise
        return "created", []
    if before is None:
        return "created", []
    paths = list(changed_paths(before, after))
    return ("changed", paths) if paths else ("unchanged", [])


async def _outdated(
    home: KubeClient, wanted: Sequence[Object], node: str
) -> list[tuple[Resource, Object]]:
    there = {(it["kind"], namespace_of(it), name_of(it)) for it in wanted}
    found = []
    for resource in reversed(KINDS):
        if resource is NAMESPACES:
            continue
        every = resource in _ENDING
        page = await home.list(
            resource,
            labels=names.label_selector(node) if every else names.webhook_label_selector(node),
        )
        found += [
            (resource, it)
            for it in page.items
            if (resource.kind, namespace_of(it), name_of(it)) not in there
        ]
    return found


def changed_paths(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The paths of the fields that differ; values are not told, they can be secret."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if path == ".metadata" and key in _THEIRS:
                continue
            if not (path == "" and key == "status"):
                yield from changed_paths(before.get(key), after.get(key), f"{path}.{key}")
    elif (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and all(isinstance(it, dict) for it in (*before, *after))
    ):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed_paths(old, new, f"{path}[{place}]")
    elif before != after:
        yield path.lstrip(".")


def _line(change: Change, obj: Object, paths: Sequence[str], *, dry: bool) -> str:
    where = namespace_of(obj)
    which = f"{obj['kind']} {where}/{name_of(obj)}" if where else f"{obj['kind']} {name_of(obj)}"
    verb = f"would be {change}" if dry else change
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    what = f": {', '.join(paths[:_SHOWN])}{more}" if paths else ""
    return f"home: {which} {verb}{what}"
