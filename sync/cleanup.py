"""What is ours in the remote, and its removal when the virtual node leaves.

`inventory` only reads. `remove` deletes what the inventory names, each by its UID, pods first and
with their own grace, so that what they use outlives them. A namespace that we made is deleted
only if nothing of anybody else is in it: every kind that the remote serves is looked at, and a
kind that cannot be listed, or a group that does not tell its kinds, counts as "something is there".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sync.kube.client import KubeClient
from sync.kube.errors import ApiError, NotFound
from sync.kube.resources import NAMESPACES, PODS, SERVICES, Resource
from sync.mirror import RESOURCES, MirrorKey, copies_selector, reference_keys
from translators import naming
from translators.naming import Identity
from translators.types import Object, name_of, namespace_of, uid_of

#: Kinds whose objects the cluster itself makes for what else is in a namespace.
_DERIVED = frozenset({"endpoints", "endpointslices", "events"})
#: Groups that hold nothing: what they list is worked out from the pods that are there.
_COMPUTED = frozenset({"metrics.k8s.io"})
#: Objects that the cluster makes in every namespace: (plural, name).
_AUTOMATIC = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})
#: Seconds between looks at pods that are still ending.
POLL = 0.5
#: Questions about one namespace's contents that are asked at once.
AT_ONCE = 16


@dataclass(slots=True)
class Inventory:
    """What is ours in the remote, for one virtual node."""

    pods: list[Object] = field(default_factory=list)
    copies: list[tuple[Resource, Object]] = field(default_factory=list)
    namespaces: list[Object] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pods or self.copies or self.namespaces)


async def inventory(remote: KubeClient, identity: Identity) -> Inventory:
    """All objects with this home's and this node's labels.

    Copies that a pod of another virtual node of this home uses are that node's by now, and so are
    the Services of its namespace.
    """
    labels = ",".join(f"{key}={value}" for key, value in naming.owner_labels(identity).items())
    found = Inventory()
    found.pods = (await remote.list(PODS, labels=labels)).items
    others = (await remote.list(PODS, labels=identity.owned_by_home)).items
    used: set[MirrorKey] = set()
    shared: set[str] = set()
    for pod in others:
        origin = naming.origin(pod)
        if origin is not None and not naming.is_nodes_own(pod, identity):
            used |= set(reference_keys(pod, origin.namespace))
            shared.add(origin.namespace)
    for resource in RESOURCES:
        for copy in (await remote.list(resource, labels=copies_selector(resource, labels))).items:
            origin = naming.origin(copy)
            key = (resource, origin.namespace, origin.name) if origin else None
            is_shared = resource is SERVICES and origin is not None and origin.namespace in shared
            if key not in used and not is_shared:
                found.copies.append((resource, copy))
    found.namespaces = (await remote.list(NAMESPACES, labels=labels)).items
    return found


async def remove_pods(
    remote: KubeClient, pods: list[Object], *, waiting: Callable[[int], None]
) -> None:
    """Deletes the pods and waits until they are gone. ``waiting`` gets the number that is left,
    each time it changes."""
    for pod in pods:
        await remote.delete(PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod))
    left, told = pods, len(pods) + 1
    while left:
        if len(left) != told:
            told = len(left)
            waiting(told)
        still = [pod for pod in left if await _is_there(remote, pod)]
        if still:
            await asyncio.sleep(POLL)
        left = still


async def remove_copies(remote: KubeClient, copies: list[tuple[Resource, Object]]) -> None:
    """Deletes ConfigMaps, Secrets, Services and EndpointSlices of ours."""
    for resource, copy in copies:
        await remote.delete(resource, name_of(copy), namespace=namespace_of(copy), uid=uid_of(copy))


async def remove_namespaces(remote: KubeClient, namespaces: list[Object]) -> list[tuple[str, str]]:
    """Deletes the namespaces that hold nothing more. Returns (name, why it was kept) of others."""
    look = await _listable(remote) if namespaces else ([], "")
    kept = []
    for namespace in namespaces:
        foreign = await _foreign(remote, name_of(namespace), *look)
        if foreign:
            kept.append((name_of(namespace), foreign))
        else:
            await remote.delete(NAMESPACES, name_of(namespace), uid=uid_of(namespace))
    return kept


async def contents(remote: KubeClient, namespace: str) -> str:
    """What is in the namespace that the cluster did not put there itself, or why that cannot be
    known, as half a sentence; "" for nothing. Lists every kind that the remote serves."""
    return await _foreign(remote, namespace, *await _listable(remote))


async def _is_there(remote: KubeClient, pod: Object) -> bool:
    try:
        now = await remote.get(PODS, name_of(pod), namespace=namespace_of(pod))
    except NotFound:
        return False
    return uid_of(now) == uid_of(pod)


async def _listable(remote: KubeClient) -> tuple[list[Resource], str]:
    """All namespaced kinds that can be listed, by the API's discovery; and why these may not be
    all (the server of an aggregated API can be away), or "".
    """
    groups = await remote.request("GET", "/apis")
    paths = ["/api/v1"]
    versions = [group["preferredVersion"]["groupVersion"] for group in groups.get("groups") or ()]
    paths += [f"/apis/{it}" for it in versions if it.partition("/")[0] not in _COMPUTED]
    found, silent = [], ""
    for path in paths:
        try:
            answer = await remote.request("GET", path)
        except NotFound:
            continue
        except ApiError as error:
            silent = f"{path.removeprefix('/apis/')} does not tell its kinds: {error.message}"
            continue
        for kind in answer.get("resources") or ():
            if kind.get("namespaced") and "list" in (kind.get("verbs") or ()):
                group, _, version = path.removeprefix("/apis/").rpartition("/")
                group = "" if path == "/api/v1" else group
                found.append(Resource(group, version, kind["name"], kind["kind"]))
    return [kind for kind in found if kind.plural not in _DERIVED], silent


async def _foreign(remote: KubeClient, namespace: str, kinds: list[Resource], silent: str) -> str:
    """What keeps a namespace, given the kinds and why these are not all; "" for nothing."""
    if silent:
        return silent
    gate = asyncio.Semaphore(AT_ONCE)

    async def look(kind: Resource) -> str:
        async with gate:
            try:
                # Two objects of every kind can be automatic; a third shows up in any case.
                page, _ = await remote.list_page(kind, namespace=namespace, query={"limit": "3"})
            except ApiError as error:
                return "" if isinstance(error, NotFound) else f"{kind} cannot be listed"
        for item in page.items:
            if (kind.plural, name_of(item)) not in _AUTOMATIC:
                return f"it holds {kind.kind} {name_of(item)}"
        return ""

    answers = await asyncio.gather(*(look(kind) for kind in kinds))
    return next((answer for answer in answers if answer), "")
