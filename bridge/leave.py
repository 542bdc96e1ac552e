"""A virtual node's end: removes what is ours from both clusters, after saying what that is.

1. The Node tells which remote it stands for; nothing is touched before the person agreed.
2. The Node is cordoned and its pods are deleted at home, so that controllers make others
   elsewhere at once.
3. The remote pods end with their own grace; then home's pods go, the copies in the remote, the
   namespaces that hold nothing more, and last the Node with its Lease.

What fails leaves the rest in place: leaving again goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bridge.node import model
from bridge.node.lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.preflight.checks import PreflightError, connected, explained
from sync import cleanup
from sync.cleanup import Inventory
from sync.kube.access import KubeconfigRef
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import LEASES, NAMESPACES, NODES, PODS
from translators.naming import Identity, home_id
from translators.types import Object, metadata, name_of, namespace_of, uid_of

#: Lines of objects that are shown in full before the rest is only counted.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class LeaveSettings:
    """What `bridge leave` was asked for."""

    name: str
    home: KubeconfigRef
    remote: KubeconfigRef | None
    """None: the one that the Node remembers of its join."""
    force: bool
    """Leave although a bridge seems to serve the node."""


async def leave(
    settings: LeaveSettings, *, told: Callable[[str], None], agree: Callable[[list[str]], bool]
) -> bool:
    """Leaves, if ``agree`` says yes to the lines that tell what will be removed.

    Returns whether it left. Raises PreflightError and KubeError, for the person who asked.
    """
    async with connected(settings.home, side="home", told=told) as home:
        with explained():
            node = await _node(home, settings.name)
            lease = await _lease(home, settings)
        async with connected(_remote(settings, node), side="remote", told=told) as remote:
            with explained():
                identity = await _identity(home, remote, settings.name, node)
                ours = await cleanup.inventory(remote, identity)
                fields = f"spec.nodeName={settings.name}"
                pods = (await home.list(PODS, fields=fields)).items
                if not agree(_summary(settings.name, node, lease, pods, ours)):
                    return False
                await _remove_from_home(home, node, pods)
                await _remove_from_remote(home, remote, pods, ours, told=told)
                if node is not None:
                    await home.delete(NODES, settings.name, uid=uid_of(node))
                if lease is not None:
                    await home.delete(
                        LEASES, settings.name, namespace=LEASE_NAMESPACE, uid=uid_of(lease)
                    )
        told(f"node {settings.name} has left")
        return True


async def _node(home: KubeClient, name: str) -> Object | None:
    try:
        node = await home.get(NODES, name)
    except NotFound:
        return None
    if model.LABEL_REMOTE not in (metadata(node).get("labels") or {}):
        raise PreflightError(f"home: node {name} is not a bridge's virtual node; left alone")
    return node


async def _lease(home: KubeClient, settings: LeaveSettings) -> Object | None:
    """The node's Lease. Raises PreflightError while a bridge holds it."""
    try:
        lease = await home.get(LEASES, settings.name, namespace=LEASE_NAMESPACE)
    except NotFound:
        return None
    spec = lease.get("spec") or {}
    if spec.get("holderIdentity") and spec.get("renewTime") and not settings.force:
        renewed = datetime.fromisoformat(str(spec["renewTime"]))
        # Home's clock can be ahead of ours.
        age = max((datetime.now(UTC) - renewed).total_seconds(), 0.0)
        if age < LEASE_SECONDS:
            raise PreflightError(
                f"home: a bridge serves node {settings.name} (its Lease was renewed {age:.0f} s "
                "ago); stop it with Ctrl-C and leave again, or leave with --force"
            )
    return lease


def _remote(settings: LeaveSettings, node: Object | None) -> KubeconfigRef:
    if settings.remote is not None:
        return settings.remote
    remembered = metadata(node).get("annotations") or {} if node else {}
    path = remembered.get(model.ANNOTATION_KUBECONFIG)
    if not path:
        raise PreflightError(
            f"home: there is no node {settings.name} that tells its remote; name the remote's "
            "kubeconfig with --kubeconfig to remove what is left there"
            if node is None
            else f"home: node {settings.name} does not tell its remote; name its kubeconfig with "
            "--kubeconfig"
        )
    return KubeconfigRef(Path(path), remembered.get(model.ANNOTATION_CONTEXT))


async def _identity(
    home: KubeClient, remote: KubeClient, name: str, node: Object | None
) -> Identity:
    own = await home.get(NAMESPACES, "kube-system")
    theirs = home_id(uid_of(await remote.get(NAMESPACES, "kube-system")))
    expected = (metadata(node).get("labels") or {}).get(model.LABEL_REMOTE) if node else theirs
    if theirs != expected:
        raise PreflightError(
            f"{remote.access.server} is not the cluster that node {name} stands for; name that "
            "one with --kubeconfig"
        )
    identity = home_id(uid_of(own))
    return Identity(home_id=identity, home_name=identity[:8], node=name)


def _summary(
    name: str, node: Object | None, lease: Object | None, pods: list[Object], ours: Inventory
) -> list[str]:
    lines = []
    if node is not None:
        lines.append(f"home:   Node {name} and its Lease")
    elif lease is not None:
        lines.append(f"home:   Lease {LEASE_NAMESPACE}/{name}")
    lines += _listed("home:   Pod", pods)
    lines += _listed("remote: Pod", ours.pods)
    for resource in dict.fromkeys(resource for resource, _ in ours.copies):
        lines += _listed(
            f"remote: {resource.kind}", [copy for kind, copy in ours.copies if kind is resource]
        )
    lines += [
        f"remote: Namespace {name_of(namespace)}, if nothing else is in it"
        for namespace in ours.namespaces[:SHOWN]
    ]
    if len(ours.namespaces) > SHOWN:
        more = len(ours.namespaces) - SHOWN
        lines.append(f"remote: Namespace: {more} more, if nothing else is in them")
    return lines


def _listed(kind: str, objects: list[Object]) -> list[str]:
    lines = [f"{kind} {namespace_of(obj)}/{name_of(obj)}" for obj in objects[:SHOWN]]
    if len(objects) > SHOWN:
        lines.append(f"{kind}: {len(objects) - SHOWN} more")
    return lines


async def _remove_from_home(home: KubeClient, node: Object | None, pods: list[Object]) -> None:
    if node is not None:
        # The question may have stood for long: with its UID, the patch meets no other Node.
        cordon: Object = {"metadata": {"uid": uid_of(node)}, "spec": {"unschedulable": True}}
        await home.patch(NODES, name_of(node), cordon)
    for pod in pods:
        await home.delete(PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod))


async def _remove_from_remote(
    home: KubeClient,
    remote: KubeClient,
    pods: list[Object],
    ours: Inventory,
    *,
    told: Callable[[str], None],
) -> None:
    await cleanup.remove_pods(
        remote, ours.pods, waiting=lambda left: told(f"remote: {left} pod(s) are ending")
    )
    for pod in pods:
        await home.delete(
            PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod), grace_seconds=0
        )
    await cleanup.remove_copies(remote, ours.copies)
    for namespace, why in await cleanup.remove_namespaces(remote, ours.namespaces):
        told(f"remote: namespace {namespace} stays: {why}")
