"""Lists the objects of bridges in the remote, and deletes them when a virtual node leaves.

The ``delete_…`` functions delete each object by its UID; each can be repeated after a failure.
Delete pods first, with their own grace period, so that the objects that they use outlive them. A
namespace is deleted only if it contains no unmanaged object of any resource and served version
(`sync.kube.discovery`). A resource that cannot be listed, and a group version whose discovery
fails, count as contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from sync.kube import discovery
from sync.kube.api_errors import ApiError, Conflict, KubeError, NotFound, UidMismatch, Unreachable
from sync.kube.api_resources import NAMESPACES, PODS, SERVICES, Resource
from sync.kube.client import KubeClient
from sync.kube.discovery import ListableResources
from sync.mirror.copy_rules import COPIED_RESOURCES, copies_selector
from sync.references.reference_keys import CopyKey, reference_keys
from translators.object_accessors import (
    Object,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    LABEL_HOME,
    LABEL_NODE,
    home_namespace_of,
    home_selector,
    is_owned_by_node,
    namespace_users,
    origin_of,
    used_by_annotation,
)
from translators.pods import service_accounts
from translators.relay import reverse_plan
from translators.translation_options import ClusterReads
from translators.virtual_node_identity import Identity

#: Resources whose objects the cluster derives from other objects of a namespace, as (group,
#: plural): a resource of the same name in another group can hold user data.
_DERIVED = frozenset(
    {
        ("", "endpoints"),
        ("", "events"),
        ("discovery.k8s.io", "endpointslices"),
        ("events.k8s.io", "events"),
    }
)
#: Groups that store nothing: their lists are computed from the existing pods.
_COMPUTED = frozenset({"metrics.k8s.io"})
#: Objects that the cluster creates in every namespace: (group, plural, name).
_AUTOMATIC = frozenset({("", "configmaps", "kube-root-ca.crt"), ("", "serviceaccounts", "default")})
#: Seconds between reads of terminating pods.
POLL = 0.5
#: Lists of one namespace's contents, and deletions, sent at once.
AT_ONCE = 16
#: Attempts to delete a namespace that changes meanwhile.
ATTEMPTS = 3
#: The bridge's manager in ``metadata.managedFields``, which API servers derive from the user agent.
_MANAGER = "cluster-bridge"


@dataclass(frozen=True, slots=True)
class ReadScope:
    """Where a credential may list: in the whole remote, or with prepared ``namespaces`` in these
    alone, except for the resources of ``reads``."""

    namespaces: Collection[str] = ()
    reads: ClusterReads = field(default_factory=ClusterReads)

    def lists_all(self, resource: Resource) -> bool:
        """Whether the credential may list the resource in the whole remote."""
        granted = {PODS: self.reads.pods, NAMESPACES: self.reads.namespaces}
        return not self.namespaces or granted.get(resource, False)


#: The whole remote.
WHOLE_REMOTE = ReadScope()


@dataclass(slots=True)
class Inventory:
    """The objects of one virtual node in the remote."""

    pods: list[Object] = field(default_factory=list)
    copies: list[tuple[Resource, Object]] = field(default_factory=list)
    namespaces: list[Object] = field(default_factory=list)
    shared: list[SharedCopy] = field(default_factory=list)
    """Copies that this virtual node created and another one uses, so that they stay."""
    unfinished_claims: list[Object] = field(default_factory=list)
    """PVCs without data that a leaving node was provisioning (`bridge.leave.unfinished_claims`)."""

    def __bool__(self) -> bool:
        return bool(self.pods or self.copies or self.namespaces or self.unfinished_claims)


@dataclass(frozen=True, slots=True)
class SharedCopy:
    """A copy that pods of another virtual node of the same home use."""

    resource: Resource
    copy: Object
    user: str
    """The other virtual node, as a label value."""


class CopyUsers:
    """The copies that pods of a home's other virtual nodes use, according to the remote."""

    def __init__(self, pods: Iterable[Object]) -> None:
        self._of_copies: dict[CopyKey, str] = {}
        self._of_namespaces: dict[str, str] = {}
        for pod in pods:
            origin = origin_of(pod)
            if origin is not None:
                self._of_namespaces[origin.namespace] = _node_label(pod)
                for key in reference_keys(pod, origin.namespace):
                    self._of_copies[key] = _node_label(pod)

    def of(self, resource: Resource, copy: Object) -> str:
        """The virtual node whose pods use the copy (for a Service: that has pods in the namespace);
        "" if there is none."""
        origin = origin_of(copy)
        if origin is None:
            return ""
        if resource is SERVICES:
            return self._of_namespaces.get(origin.namespace, "")
        return self._of_copies.get(CopyKey(resource, origin.namespace, origin.name), "")


async def take_inventory(
    remote: KubeClient,
    identity: Identity,
    *,
    others: Collection[str] | None = (),
    scope: ReadScope = WHOLE_REMOTE,
) -> Inventory:
    """Lists the objects with this home's and this node's labels. Raises KubeError.

    ``others`` are the labels of the home's other virtual nodes for this remote; None if unknown:
    then every node label with objects counts as one.

    A copy that a pod of another virtual node of this home uses belongs to that node, and so do the
    Services of the pod's namespace. The objects of a node that no longer exists belong to this
    node: that node left them because this one used them. A namespace belongs to every virtual node
    that created or uses it.
    """
    found = Inventory()
    of_other_nodes: list[Object] = []
    for pod in await _list(remote, PODS, home_selector(identity), scope):
        (found.pods if is_owned_by_node(pod, identity) else of_other_nodes).append(pod)
    existing = {*(others or ()), *map(_node_label, of_other_nodes)}

    def belongs_to_node(obj: Object) -> bool:
        node = _node_label(obj)
        return node == identity.node_label or (others is not None and node not in existing)

    users = CopyUsers(of_other_nodes)
    for resource in COPIED_RESOURCES:
        labels = copies_selector(resource, home_selector(identity))
        for copy in filter(belongs_to_node, await _list(remote, resource, labels, scope)):
            if user := users.of(resource, copy):
                found.shared.append(SharedCopy(resource, copy, user))
            else:
                found.copies.append((resource, copy))
    labelled = await _list(remote, NAMESPACES, home_selector(identity), scope)
    found.namespaces = [
        it for it in labelled if belongs_to_node(it) or identity.node_label in namespace_users(it)
    ]
    return found


@dataclass(slots=True)
class NodeInventory(Inventory):
    """The objects of one virtual node of one home, according to the remote."""

    home: str = ""
    """The home's identity."""
    node: str = ""
    """The virtual node's name, as a label value."""
    last_written: str = ""
    """The last write of a bridge to one of these objects, in RFC 3339."""


async def list_node_inventories(
    remote: KubeClient, home: str = "", node: str = "", *, scope: ReadScope = WHOLE_REMOTE
) -> list[NodeInventory]:
    """Lists the objects of bridges in the remote: of every home and node, or of the given ones.

    An object counts only with a bridge's annotations beside the labels, because users and
    controllers copy labels. With ``node``, copies that other nodes' pods use are
    `Inventory.shared`. Raises KubeError.
    """
    of_home = f"{LABEL_HOME}={home}" if home else LABEL_HOME
    labels = f"{of_home},{LABEL_NODE}={node}" if node else of_home
    of_others = f"{of_home},{LABEL_NODE}!={node}"
    users = CopyUsers(await _list(remote, PODS, of_others, scope) if node else ())
    inventories: dict[tuple[str, str], NodeInventory] = {}

    def inventory_of(obj: Object) -> NodeInventory:
        home_label = str((metadata(obj).get("labels") or {}).get(LABEL_HOME) or "")
        owner = home_label, node or _node_label(obj)
        inventory = inventories.setdefault(owner, NodeInventory(home=owner[0], node=owner[1]))
        inventory.last_written = max(inventory.last_written, _last_written(obj))
        return inventory

    for pod in await _list(remote, PODS, labels, scope):
        if _has_bridge_annotations(pod):
            inventory_of(pod).pods.append(pod)
    for resource in COPIED_RESOURCES:
        selector = copies_selector(resource, labels)
        for copy in await _list(remote, resource, selector, scope):
            if not _has_bridge_annotations(copy):
                continue
            if user := users.of(resource, copy):
                inventory_of(copy).shared.append(SharedCopy(resource, copy, user))
            else:
                inventory_of(copy).copies.append((resource, copy))
    for namespace in await _list(remote, NAMESPACES, of_home, scope):
        belongs_to_node = (
            not node or _node_label(namespace) == node or node in namespace_users(namespace)
        )
        if belongs_to_node and home_namespace_of(namespace) is not None:
            inventory_of(namespace).namespaces.append(namespace)
    return [inventories[owner] for owner in sorted(inventories)]


async def _list(
    remote: KubeClient, resource: Resource, labels: str, scope: ReadScope
) -> list[Object]:
    """The matching objects of the whole remote, or of the prepared namespaces, which no bridge
    created: of these there is no Namespace to list. Raises KubeError."""
    if scope.lists_all(resource):
        return (await remote.list(resource, labels=labels)).items
    namespaces = scope.namespaces if resource.namespaced else ()
    pages = [await remote.list(resource, namespace=it, labels=labels) for it in namespaces]
    return [it for page in pages for it in page.items]


def _has_bridge_annotations(obj: Object) -> bool:
    readers = (origin_of, service_accounts.pod_of_token_secret, reverse_plan.relay_home_namespace)
    return any(read(obj) is not None for read in readers)


def _node_label(obj: Object) -> str:
    return str((metadata(obj).get("labels") or {}).get(LABEL_NODE) or "")


def _last_written(obj: Object) -> str:
    """The last write of a bridge to the object, by its managedFields."""
    meta = metadata(obj)
    entries = meta.get("managedFields")
    if not isinstance(entries, list):
        entries = []
    # Not a part of the shapes that are checked: no running bridge reads it.
    known = [entry for entry in entries if isinstance(entry, dict)]
    times = [str(entry.get("time") or "") for entry in known if entry.get("manager") == _MANAGER]
    return max([str(meta.get("creationTimestamp") or ""), *times])


async def delete_pods(
    remote: KubeClient, pods: list[Object], *, waiting: Callable[[int], None]
) -> None:
    """Deletes the pods and waits until they no longer exist. ``waiting`` is called with the number
    of remaining pods each time it changes. Raises KubeError."""
    await delete_objects(remote, ((PODS, pod) for pod in pods))
    remaining, reported = pods, len(pods) + 1
    while remaining:
        if len(remaining) != reported:
            reported = len(remaining)
            waiting(reported)
        remaining = [pod for pod in remaining if await _exists(remote, pod)]
        if remaining:
            await asyncio.sleep(POLL)


async def transfer_shared_copies(remote: KubeClient, shared: Iterable[SharedCopy]) -> None:
    """Relabels shared copies to the virtual node whose pods use them. Raises KubeError."""
    for it in shared:
        labels = {LABEL_NODE: it.user}
        patch: Object = {"metadata": {"uid": uid_of(it.copy), "labels": labels}}
        with suppress(NotFound, UidMismatch):  # Deleted or replaced meanwhile.
            await remote.patch(
                it.resource, name_of(it.copy), patch, namespace=namespace_of(it.copy)
            )


async def delete_namespaces(
    remote: KubeClient,
    namespaces: list[Object],
    *,
    has_ended: Callable[[str], bool] = lambda _: False,
) -> list[tuple[str, str]]:
    """Deletes the namespaces that are empty and that no virtual node uses, except for nodes for
    whose label value ``has_ended`` is true. Returns (name, reason) of the namespaces that were
    kept."""
    served = await _served(remote) if namespaces else ListableResources((), "")
    kept = {name_of(it): await _remove(remote, it, served, has_ended) for it in namespaces}
    return [(name, why) for name, why in kept.items() if why]


async def _remove(
    remote: KubeClient,
    namespace: Object,
    served: ListableResources,
    has_ended: Callable[[str], bool],
) -> str:
    """Returns why the namespace was kept, or "". The deletion requires the resourceVersion at which
    the namespace was empty and had no user (`sync.namespaces.remote_namespace_creation`)."""
    now: Object | None = namespace
    for _ in range(ATTEMPTS):
        try:
            now = now or await _current(remote, namespace)
            now = await _remove_ended_users(remote, now, has_ended)
            if why := await reason_to_keep(remote, now, served):
                return why
            if not is_deleting(now):
                await remote.delete_unchanged(NAMESPACES, now)
        except NotFound:
            return ""
        except Conflict as error:  # Changed meanwhile, or rejected by admission: read it again.
            now, why = None, error.message
        else:
            return ""
    return f"it could not be deleted: {why}"


async def reason_to_keep(
    remote: KubeClient, namespace: Object, served: ListableResources | None = None
) -> str:
    """Why the namespace must not be deleted: it was handed over, has a user, or contains an object
    that the cluster did not create itself (or may contain one), as a clause; else "".
    ``served``: the resources of the remote, read if None."""
    if is_deleting(namespace):
        return ""
    if ANNOTATION_ACCEPTS in (metadata(namespace).get("annotations") or {}):
        return "it was handed over"
    if users := namespace_users(namespace):
        return f"virtual node(s) {', '.join(sorted(users))} use it"
    return await _first_object(remote, name_of(namespace), served or await _served(remote))


async def _current(remote: KubeClient, namespace: Object) -> Object:
    """Reads the namespace. Raises NotFound also if another namespace has taken its name."""
    now = await remote.get(NAMESPACES, name_of(namespace))
    if uid_of(now) == uid_of(namespace):
        return now
    raise NotFound("it was replaced by another namespace", side=remote.side, code=404)


async def _remove_ended_users(
    remote: KubeClient, namespace: Object, has_ended: Callable[[str], bool]
) -> Object:
    ended = [it for it in namespace_users(namespace) if has_ended(it)]
    if not ended:
        return namespace
    annotations = dict.fromkeys(map(used_by_annotation, ended))
    patch: Object = {"metadata": {"uid": uid_of(namespace), "annotations": annotations}}
    return await remote.patch(NAMESPACES, name_of(namespace), patch)


async def delete_objects(remote: KubeClient, objects: Iterable[tuple[Resource, Object]]) -> None:
    """Deletes in parallel. Tries all, then raises the first failure; stops early if the remote is
    unreachable."""
    gate = asyncio.Semaphore(AT_ONCE)
    failed: list[KubeError] = []

    async def delete(resource: Resource, obj: Object) -> None:
        async with gate:
            if any(isinstance(error, Unreachable) for error in failed):
                return
            name, namespace = name_of(obj), namespace_of(obj)
            try:
                await remote.delete(resource, name, namespace=namespace, uid=uid_of(obj))
            except KubeError as error:
                failed.append(error)

    await asyncio.gather(*(delete(resource, obj) for resource, obj in objects))
    if failed:
        raise failed[0]


async def _exists(remote: KubeClient, pod: Object) -> bool:
    now = await remote.find(PODS, name_of(pod), namespace=namespace_of(pod))
    return now is not None and uid_of(now) == uid_of(pod)


async def _served(remote: KubeClient) -> ListableResources:
    return await discovery.list_namespaced_resources(remote, without=_COMPUTED)


async def _first_object(remote: KubeClient, namespace: str, served: ListableResources) -> str:
    """The first object of a namespace among the served resources, as a clause; "" if empty."""
    if served.incomplete_reason:
        return served.incomplete_reason
    gate = asyncio.Semaphore(AT_ONCE)

    # At most two objects of a resource are automatic, so three are enough to decide.
    query = {"limit": "3"}

    async def first_object_of(resource: Resource) -> str:
        async with gate:
            try:
                # Not checked: a custom resource can have the kind of another one, and other fields.
                page, more = await remote.list_page(
                    resource, namespace=namespace, query=query, check=False
                )
            except ApiError as error:
                return "" if isinstance(error, NotFound) else f"{resource} cannot be listed"
        for item in page.items:
            if (resource.group, resource.plural, name_of(item)) not in _AUTOMATIC:
                return f"it holds {resource.kind} {name_of(item)}"
        return f"it holds more {resource}" if more else ""

    user_resources = [it for it in served.resources if (it.group, it.plural) not in _DERIVED]
    answers = await asyncio.gather(*map(first_object_of, user_resources))
    return next((answer for answer in answers if answer), "")
