"""Reads the objects that are needed to explain a PVC from both clusters. Writes nothing.

A PVC is explained for the virtual node that home's scheduler has selected, or whose remote has its
volume, or that the user named, or else the first one by name. A read that fails or is forbidden is
recorded in `ClaimFacts.not_checked`. `bridge.explain.claim_report` interprets the facts.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import as_preflight_errors, cluster_uid, connect
from bridge.explain import best_effort_reads
from bridge.explain.cluster_lookup import ExplainSettings
from bridge.explain.remote_connection import connect_remote
from bridge.node import join_record, node_object
from sync.kube.api_errors import NotFound
from sync.kube.api_resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from sync.kube.client import KubeClient
from translators.explain.claim_steps import ClaimObjects
from translators.object_accessors import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.ownership_labels import has_home_uid, is_owned
from translators.storage.identifiers import (
    ANNOTATION_REMOTE_PVC,
    VolumeHandle,
    bound_volume,
    claim_names,
    class_name,
    remote_claim_name,
    selected_node,
    volume_handle,
    volume_name,
)
from translators.translation_options import Policy
from translators.virtual_node_identity import home_id_from_uid


@dataclass(slots=True)
class ClaimFacts:
    """All facts about the PVC."""

    objects: ClaimObjects
    node: Object | None = None
    """The virtual node that the PVC is explained for; None if home has none."""
    policy: Policy | None = None
    handle: VolumeHandle | None = None
    """The remote PVC; its remote is "" for one that an annotation names."""
    server: str = ""
    """The remote's API server; "" if the remote was not read."""
    pods: list[str] = field(default_factory=list)
    """Names of the pods at home that mount the PVC."""
    events: list[tuple[str, Object]] = field(default_factory=list)
    """Side and Event."""
    not_checked: list[str] = field(default_factory=list)


async def look_up_claim(settings: ExplainSettings) -> ClaimFacts:
    """Reads all facts. Raises PreflightError for the user."""
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(
            connect(settings.home, side="home", notify=lambda _: None)
        )
        with as_preflight_errors("home"):
            namespace = settings.namespace or home.credentials.namespace or "default"
            facts = await _read_home(home, settings, namespace)
        if facts.node is not None and facts.policy is not None:
            remote = await connect_remote(
                stack, home, facts.node, settings.remote, facts.not_checked
            )
            if remote is not None:
                with as_preflight_errors("remote"):
                    await _read_remote(remote, facts, facts.policy)
    return facts


async def _read_home(home: KubeClient, settings: ExplainSettings, namespace: str) -> ClaimFacts:
    not_checked: list[str] = []
    try:
        claim = await home.get(PERSISTENT_VOLUME_CLAIMS, settings.name, namespace=namespace)
    except NotFound as error:
        raise PreflightError(
            f"home: PersistentVolumeClaim {namespace}/{settings.name} not found; `kubectl get pvc "
            f"-n {namespace}` lists what exists"
        ) from error
    its_class = class_name(claim)
    volume, storage_class = bound_volume(claim) or volume_name(uid_of(claim)), None
    if its_class:
        storage_class = await best_effort_reads.get_object(
            home, STORAGE_CLASSES, its_class, not_checked
        )
    found = await best_effort_reads.get_object(home, PERSISTENT_VOLUMES, volume, not_checked)
    pods = await best_effort_reads.list_objects(home, PODS, not_checked, namespace=namespace)
    mounting = [name_of(it) for it in pods if settings.name in claim_names(it).values()]
    objects = ClaimObjects(claim, storage_class, found, has_pod=bool(mounting))
    facts = ClaimFacts(objects, pods=sorted(mounting), not_checked=not_checked)
    events = await best_effort_reads.list_events(home, claim, not_checked)
    facts.events = [("home", it) for it in events]
    nodes = (await home.list(NODES, labels=node_object.LABEL_REMOTE)).items
    facts.node = _choose_node(nodes, facts.objects, settings.node)
    if facts.node is None:
        not_checked.append("a virtual node: home has none; `bridge join` creates one")
        return facts
    home_id = home_id_from_uid(await cluster_uid(home))
    facts.policy, _ = join_record.read_policy(facts.node, home_id)
    facts.handle = _handle(facts.objects, facts.policy)
    return facts


def _choose_node(nodes: list[Object], objects: ClaimObjects, named: str) -> Object | None:
    """Raises PreflightError if the named node is no virtual node."""
    by_name = {name_of(it): it for it in sorted(nodes, key=name_of)}
    if named and named not in by_name:
        names = ", ".join(by_name) or "(none)"
        raise PreflightError(
            f"home: {named} is not a virtual node of a bridge; use one of: {names}"
        )
    wanted = by_name.get(named or selected_node(objects.home))
    if wanted is not None:
        return wanted
    handle = volume_handle(objects.volume) if objects.volume is not None else None
    of_remote = [
        it
        for it in by_name.values()
        if handle is not None and node_object.remote_id_of(it) == handle.remote_id
    ]
    return next(iter([*of_remote, *by_name.values()]), None)


def _handle(objects: ClaimObjects, policy: Policy) -> VolumeHandle | None:
    """The remote PVC that has or will have the data; None if it is in no remote of the node."""
    home, volume = objects.home, objects.volume
    namespace = policy.identity.remote_namespace(HomeNamespace(namespace_of(home)))
    annotations = home["metadata"].get("annotations") or {}
    if existing := annotations.get(ANNOTATION_REMOTE_PVC):
        return VolumeHandle("", namespace, str(existing))
    if volume is not None:
        handle = volume_handle(volume)
        return handle if handle is not None and handle.remote_id == policy.remote_id else None
    if bound_volume(home):
        return None
    return VolumeHandle(policy.remote_id, namespace, remote_claim_name(home))


async def _read_remote(remote: KubeClient, facts: ClaimFacts, policy: Policy) -> None:
    facts.server = remote.endpoint.server
    unread = len(facts.not_checked)
    found = None
    if (handle := facts.handle) is not None:
        found = await best_effort_reads.get_object(
            remote,
            PERSISTENT_VOLUME_CLAIMS,
            handle.name,
            facts.not_checked,
            namespace=handle.namespace,
        )
    is_known = len(facts.not_checked) == unread
    if found is not None:
        events = await best_effort_reads.list_events(remote, found, facts.not_checked)
        facts.events += [("remote", it) for it in events]
    unread = len(facts.not_checked)
    classes = await best_effort_reads.list_objects(remote, STORAGE_CLASSES, facts.not_checked)
    home = facts.objects
    is_counterpart = (
        found is not None
        and is_owned(found, policy.identity)
        and (home.volume is not None or has_home_uid(found, uid_of(home.home)))
    )
    facts.objects = ClaimObjects(
        home.home,
        home.home_class,
        home.volume,
        remote=found if is_counterpart or (handle and not handle.remote_id) else None,
        remote_classes=classes if len(facts.not_checked) == unread else None,
        is_remote_known=is_known,
        has_pod=home.has_pod,
    )
