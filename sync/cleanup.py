"""What is ours in the remote, and its removal when the virtual node leaves.

`inventory` and `belongings` only read. `remove_…` deletes what they name, each by its UID, pods
first and with their own grace, so that what they use outlives them; each can be done again after
it failed. A namespace that we made is deleted only if it contains no unmanaged object: every
resource that the remote serves in any version is listed (`sync.discovery`). A resource that cannot
be listed, and a group version whose discovery fails, count as "something is there".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from sync import discovery
from sync.discovery import Served
from sync.kube.client import KubeClient
from sync.kube.errors import ApiError, KubeError, NotFound, Unreachable
from sync.kube.resources import NAMESPACES, PODS, SERVICES, Resource
from sync.mirror import RESOURCES, MirrorKey, copies_selector, reference_keys
from translators import naming, relayback, serviceaccount
from translators.naming import Identity
from translators.types import Object, metadata, name_of, namespace_of, uid_of

#: Resources whose objects the cluster itself makes for other objects of a namespace, as
#: (group, plural): another group can have a resource of the same name, which holds user data.
_DERIVED = frozenset(
    {
        ("", "endpoints"),
        ("", "events"),
        ("discovery.k8s.io", "endpointslices"),
        ("events.k8s.io", "events"),
    }
)
#: Groups that store nothing: their lists are computed from the pods that are there.
_COMPUTED = frozenset({"metrics.k8s.io"})
#: Objects that the cluster makes in every namespace: (group, plural, name).
_AUTOMATIC = frozenset({("", "configmaps", "kube-root-ca.crt"), ("", "serviceaccounts", "default")})
#: Seconds between looks at pods that are still ending.
POLL = 0.5
#: Questions about one namespace's contents, and deletions, that are asked at once.
AT_ONCE = 16
#: What API servers call us in ``metadata.managedFields``, from our user agent.
_MANAGER = "cluster-bridge"


@dataclass(slots=True)
class Inventory:
    """What is ours in the remote, for one virtual node."""

    pods: list[Object] = field(default_factory=list)
    copies: list[tuple[Resource, Object]] = field(default_factory=list)
    namespaces: list[Object] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pods or self.copies or self.namespaces)


async def inventory(
    remote: KubeClient, identity: Identity, *, others: Collection[str] | None = ()
) -> Inventory:
    """All objects with this home's and this node's labels. ``others`` are the labels of the home's
    other virtual nodes that stand for this remote; None where that is not known: then all of which
    there are objects are taken for such.

    Copies that a pod of another virtual node of this home uses are that node's by now, and so are
    the Services of its namespace. What another one made that is no more, neither as a Node nor by
    its pods, is this node's: it was left because this node used it.
    """
    found = Inventory()
    foreign: list[Object] = []
    for pod in (await remote.list(PODS, labels=identity.owned_by_home)).items:
        (found.pods if naming.is_nodes_own(pod, identity) else foreign).append(pod)
    alive = {*(others or ()), *map(_node_label, foreign)}

    def is_left(obj: Object) -> bool:
        node = _node_label(obj)
        return node == identity.node_label or (others is not None and node not in alive)

    used: set[MirrorKey] = set()
    shared: set[str] = set()
    for pod in foreign:
        origin = naming.origin(pod)
        if origin is not None:
            used |= set(reference_keys(pod, origin.namespace))
            shared.add(origin.namespace)
    for resource in RESOURCES:
        labels = copies_selector(resource, identity.owned_by_home)
        for copy in (await remote.list(resource, labels=labels)).items:
            origin = naming.origin(copy)
            key = (resource, origin.namespace, origin.name) if origin else None
            is_shared = resource is SERVICES and origin is not None and origin.namespace in shared
            if key not in used and not is_shared and is_left(copy):
                found.copies.append((resource, copy))
    namespaces = (await remote.list(NAMESPACES, labels=identity.owned_by_home)).items
    found.namespaces = [it for it in namespaces if is_left(it)]
    return found


@dataclass(slots=True)
class Belongings(Inventory):
    """What one virtual node of one home has in the remote, as far as the remote tells."""

    home: str = ""
    """The home's identity."""
    node: str = ""
    """The virtual node's name, as a label's value."""
    last_written: str = ""
    """When a bridge last wrote one of these objects, in RFC 3339."""

    def _note(self, obj: Object) -> None:
        self.last_written = max(self.last_written, _last_written(obj))


async def belongings(remote: KubeClient, home: str = "", node: str = "") -> list[Belongings]:
    """What bridges have in the remote, of every home and node or of those that are named.

    Only objects with the annotations of ours count beside the labels: labels are copied by people
    and by controllers.
    """
    wanted = [f"{naming.LABEL_HOME}={home}" if home else naming.LABEL_HOME]
    wanted += [f"{naming.LABEL_NODE}={node}"] if node else []
    labels = ",".join(wanted)
    found: dict[tuple[str, str], Belongings] = {}

    def of(obj: Object) -> Belongings:
        whose = (metadata(obj).get("labels") or {}).get(naming.LABEL_HOME, ""), _node_label(obj)
        owner = found.setdefault(whose, Belongings(home=whose[0], node=whose[1]))
        owner._note(obj)
        return owner

    for pod in (await remote.list(PODS, labels=labels)).items:
        if naming.origin(pod) is not None or relayback.home_of(pod) is not None:
            of(pod).pods.append(pod)
    for resource in RESOURCES:
        for copy in (await remote.list(resource, labels=copies_selector(resource, labels))).items:
            if _is_a_bridges(copy):
                of(copy).copies.append((resource, copy))
    for namespace in (await remote.list(NAMESPACES, labels=labels)).items:
        if naming.home_namespace(namespace) is not None:
            of(namespace).namespaces.append(namespace)
    return [found[whose] for whose in sorted(found)]


def _is_a_bridges(copy: Object) -> bool:
    """Whether it has annotations of a bridge's."""
    known = (naming.origin(copy), serviceaccount.pod_of(copy), relayback.home_of(copy))
    return any(it is not None for it in known)


def _node_label(obj: Object) -> str:
    return str((metadata(obj).get("labels") or {}).get(naming.LABEL_NODE) or "")


def _last_written(obj: Object) -> str:
    """When a bridge last wrote the object, as far as it tells."""
    meta = metadata(obj)
    entries = meta.get("managedFields") or ()
    times = [str(it.get("time") or "") for it in entries if it.get("manager") == _MANAGER]
    return max([str(meta.get("creationTimestamp") or ""), *times])


async def remove_pods(
    remote: KubeClient, pods: list[Object], *, waiting: Callable[[int], None]
) -> None:
    """Deletes the pods and waits until they are gone. ``waiting`` gets the number that is left,
    each time it changes."""
    await _delete(remote, ((PODS, pod) for pod in pods))
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
    await _delete(remote, copies)


async def remove_namespaces(remote: KubeClient, namespaces: list[Object]) -> list[tuple[str, str]]:
    """Deletes the namespaces that hold nothing more. Returns (name, why it was kept) of others."""
    served = await _served(remote) if namespaces else Served((), "")
    kept = []
    for namespace in namespaces:
        foreign = await _foreign(remote, name_of(namespace), served)
        if foreign:
            kept.append((name_of(namespace), foreign))
        else:
            await remote.delete(NAMESPACES, name_of(namespace), uid=uid_of(namespace))
    return kept


async def contents(remote: KubeClient, namespace: str) -> str:
    """What is in the namespace that the cluster did not put there itself, or why that cannot be
    known, as half a sentence; "" for nothing. Lists every resource that the remote serves, in
    whatever version, once."""
    return await _foreign(remote, namespace, await _served(remote))


async def _delete(remote: KubeClient, objects: Iterable[tuple[Resource, Object]]) -> None:
    """Deletes them, several at once. Raises the first failure, after all were tried: what the
    webhook of one refuses keeps no other. Nothing more is asked of a remote that is away."""
    gate = asyncio.Semaphore(AT_ONCE)
    failed: list[KubeError] = []

    async def delete(resource: Resource, obj: Object) -> None:
        async with gate:
            if any(isinstance(error, Unreachable) for error in failed):
                return
            try:
                await remote.delete(
                    resource, name_of(obj), namespace=namespace_of(obj), uid=uid_of(obj)
                )
            except KubeError as error:
                failed.append(error)

    await asyncio.gather(*(delete(resource, obj) for resource, obj in objects))
    if failed:
        raise failed[0]


async def _is_there(remote: KubeClient, pod: Object) -> bool:
    try:
        now = await remote.get(PODS, name_of(pod), namespace=namespace_of(pod))
    except NotFound:
        return False
    return uid_of(now) == uid_of(pod)


async def _served(remote: KubeClient) -> Served:
    return await discovery.namespaced_resources(remote, without=_COMPUTED)


async def _foreign(remote: KubeClient, namespace: str, served: Served) -> str:
    """What keeps a namespace, given the resources that the remote serves; "" for nothing."""
    if served.unknown:
        return served.unknown
    gate = asyncio.Semaphore(AT_ONCE)

    async def look(resource: Resource) -> str:
        async with gate:
            try:
                # Two objects of a resource can be automatic; a third shows up in any case.
                page, _ = await remote.list_page(
                    resource, namespace=namespace, query={"limit": "3"}
                )
            except ApiError as error:
                return "" if isinstance(error, NotFound) else f"{resource} cannot be listed"
        for item in page.items:
            if (resource.group, resource.plural, name_of(item)) not in _AUTOMATIC:
                return f"it holds {resource.kind} {name_of(item)}"
        return ""

    people_make = [it for it in served.resources if (it.group, it.plural) not in _DERIVED]
    answers = await asyncio.gather(*map(look, people_make))
    return next((answer for answer in answers if answer), "")
