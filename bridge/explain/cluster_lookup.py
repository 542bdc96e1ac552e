"""Reads the objects that are needed to explain a pod from both clusters. Writes nothing.

1. The pod: from home, or from a manifest, for which a dry run at home adds the changes of
   admission.
2. The pod's dependencies at home, and home's virtual nodes, ranked
   (`bridge.explain.candidate_ranking`). The pod is explained for the node that it is bound to, the
   node that the user named, or the best one.
3. The corresponding objects in the remote, if it is reachable with the given kubeconfig or the one
   that the Node records.

A read that fails or is forbidden is recorded in `PodFacts.not_checked` and has no other effect
(`bridge.explain.best_effort_reads`). `bridge.explain.json_report` interprets the facts.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from bridge.base.command_error import PreflightError
from bridge.clusters.cluster_reads_selection import missing_reads, select_cluster_reads
from bridge.clusters.connection import as_preflight_errors, cluster_uid, connect
from bridge.explain import best_effort_reads
from bridge.explain.candidate_ranking import Candidate, look_up_storage, rank_candidates
from bridge.explain.remote_connection import connect_remote
from sync.kube.api_errors import AlreadyExists, ApiError, BadRequest, Invalid, NotFound
from sync.kube.api_resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.explain import dependencies
from translators.explain.dependencies import Dependency
from translators.explain.persistent_volume_claims import PodStorage
from translators.object_accessors import HomeNamespace, Object, metadata, name_of, namespace_of
from translators.ownership_labels import is_owned
from translators.pods import remote_pod
from translators.remote_shapes import wrong_part
from translators.storage.identifiers import volume_handle
from translators.translation_options import Policy
from translators.virtual_node_identity import home_id_from_uid

_RESOURCES = {
    it.kind: it
    for it in (
        CONFIG_MAPS,
        SECRETS,
        SERVICE_ACCOUNTS,
        PERSISTENT_VOLUME_CLAIMS,
        PRIORITY_CLASSES,
        RUNTIME_CLASSES,
    )
}
#: Placeholder for a UID that home has not assigned.
_NO_UID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """The options of `bridge explain`."""

    home: KubeconfigRef
    remote: KubeconfigRef | None
    """None: the kubeconfig that the Node records."""
    namespace: str = ""
    """If the pod or manifest names none; "" is the namespace of home's context."""
    name: str = ""
    """Name of the pod at home; "" with ``manifest``."""
    manifest: Object | None = None
    """A pod, or an object with a pod template."""
    node: str = ""
    """The virtual node; "" selects one."""
    kind: str = "Pod"
    """The kind of ``name``: Pod or Deployment."""
    ranks_others: bool = True
    """Whether the other virtual nodes are examined for a pod that is bound to one: that lists all
    of their pods."""


@dataclass(slots=True)
class RemoteFacts:
    """The objects in the remote."""

    server: str
    namespace: Object | None = None
    services: frozenset[str] = frozenset()
    """Names of managed Services in the namespace."""
    pod: Object | None = None
    events: list[Object] = field(default_factory=list)
    objects: dict[tuple[str, str], Object | None] = field(default_factory=dict)
    """Dependencies by kind and name; None is a missing object, and objects that could not be read
    are absent."""
    claims: dict[str, Object | None] = field(default_factory=dict)
    """The remote PVCs of the pod's home PVCs, by their name in the remote."""
    nodes: list[Object] | None = None
    priority_classes: frozenset[str] = frozenset()
    rejection: str = ""
    """Error message of the remote's API server for a dry run of the creation."""


@dataclass(slots=True)
class PodFacts:
    """All facts about the pod."""

    pod: Object
    stored: bool
    """Whether the pod exists at home."""
    candidates: list[Candidate] = field(default_factory=list)
    """Home's virtual nodes, the best first."""
    chosen: Candidate | None = None
    """The node that the pod is explained for; None if home has no virtual node."""
    storage: PodStorage = field(default_factory=PodStorage)
    dependencies: list[Dependency] = field(default_factory=list)
    objects: dict[tuple[str, str], Object | None] = field(default_factory=dict)
    """Home's dependencies, as in `RemoteFacts.objects`."""
    services: list[Object] = field(default_factory=list)
    """Services in the pod's namespace at home."""
    namespace: Object | None = None
    """The pod's namespace at home; None if it could not be read."""
    events: list[Object] = field(default_factory=list)
    remote: RemoteFacts | None = None
    not_checked: list[str] = field(default_factory=list)
    """Messages about facts that could not be read."""

    @property
    def node(self) -> Object | None:
        """The chosen virtual node."""
        return self.chosen.node if self.chosen else None

    @property
    def policy(self) -> Policy | None:
        """The options of the chosen node's join."""
        return self.chosen.policy if self.chosen else None

    @property
    def remote_pod(self) -> Object | None:
        """The pod's counterpart in the remote; None also if the remote was not read."""
        return self.remote.pod if self.remote else None

    @property
    def bound_to(self) -> str:
        """The name of the node that the pod is bound to; "" if it is not scheduled."""
        return str((self.pod.get("spec") or {}).get("nodeName") or "")

    @property
    def is_bound(self) -> bool:
        """Whether the pod is bound to the chosen node."""
        return self.chosen is not None and self.bound_to == self.chosen.name


async def look_up_pod(settings: ExplainSettings) -> PodFacts:
    """Reads all facts. Raises PreflightError for the user."""
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(
            connect(settings.home, side="home", notify=lambda _: None)
        )
        with as_preflight_errors("home"):
            # As kubectl does.
            namespace = settings.namespace or home.credentials.namespace or "default"
            facts = await _read_home(home, replace(settings, namespace=namespace))
        if facts.policy is not None:
            await _look_up_remote(stack, settings, home, facts, facts.policy)
    return facts


# -- home ----------------------------------------------------------------------------------


async def _read_named(home: KubeClient, resource: Resource, settings: ExplainSettings) -> Object:
    """The object that the options name. Raises PreflightError if it does not exist."""
    namespace = settings.namespace
    try:
        return await home.get(resource, settings.name, namespace=namespace)
    except NotFound as error:
        raise PreflightError(
            f"home: {resource.kind} {namespace}/{settings.name} not found; `kubectl get "
            f"{resource.plural} -n {namespace}` lists what exists, and -f FILE explains a manifest"
        ) from error


async def _read_home(home: KubeClient, settings: ExplainSettings) -> PodFacts:
    manifest = settings.manifest
    if manifest is None and settings.kind == "Deployment":
        manifest = pod_of_manifest(await _read_named(home, DEPLOYMENTS, settings))
    if manifest is not None:
        facts = await _admitted(home, manifest, settings.namespace)
    else:
        facts = PodFacts(await _read_named(home, PODS, settings), stored=True)
    metadata(facts.pod).pop("managedFields", None)
    namespace = namespace_of(facts.pod)
    facts.dependencies = dependencies.dependencies_of(facts.pod)
    here = [it for it in facts.dependencies if it.kind not in ("PriorityClass", "RuntimeClass")]
    facts.objects = await best_effort_reads.get_objects(
        home, map(_resource_name, here), namespace, facts.not_checked
    )
    facts.namespace = await best_effort_reads.get_object(
        home, NAMESPACES, namespace, facts.not_checked
    )
    facts.services = await best_effort_reads.list_objects(
        home, SERVICES, facts.not_checked, namespace=namespace
    )
    if facts.stored:
        facts.events = await best_effort_reads.list_events(home, facts.pod, facts.not_checked)
    await _choose_node(home, settings, facts)
    return facts


async def _choose_node(home: KubeClient, settings: ExplainSettings, facts: PodFacts) -> None:
    claims = {
        name: it for (kind, name), it in facts.objects.items() if kind == "PersistentVolumeClaim"
    }
    facts.storage = await look_up_storage(home, claims, facts.not_checked)
    facts.candidates = await rank_candidates(
        home,
        facts.pod,
        home_id=home_id_from_uid(await cluster_uid(home)),
        storage=facts.storage,
        not_checked=facts.not_checked,
        only="" if settings.ranks_others else facts.bound_to,
    )
    known = {it.name: it for it in facts.candidates}
    if settings.node and settings.node not in known:
        names = ", ".join(known) or "(none)"
        raise PreflightError(
            f"home: {settings.node} is not a virtual node of a bridge; use one of: {names}"
        )
    facts.chosen = known.get(settings.node or facts.bound_to) or next(iter(facts.candidates), None)
    if facts.chosen is None:
        facts.not_checked.append("a virtual node: home has none; `bridge join` creates one")


def _resource_name(it: Dependency) -> tuple[Resource, str]:
    return _RESOURCES[it.kind], it.name


async def _admitted(home: KubeClient, given: Object, namespace: str) -> PodFacts:
    """The manifest's pod after the admission of the home cluster, as far as known. Raises
    PreflightError for a pod that its API server rejects as invalid."""
    meta = {"namespace": namespace, **metadata(given)}
    body: Object = {**given, "metadata": meta}
    try:
        found = await home.create(PODS, body, namespace=meta["namespace"], dry_run=True)
    except AlreadyExists:
        name = meta.pop("name")
        body["metadata"] = {**meta, "generateName": f"{name}-"}
        found = await home.create(PODS, body, namespace=meta["namespace"], dry_run=True)
        found["metadata"]["name"] = name
        return PodFacts(found, stored=False)
    except (BadRequest, Invalid) as error:
        raise PreflightError(f"home: the pod is invalid: {error.message}") from None
    except ApiError as error:
        found = {**body, "metadata": {"name": meta.get("generateName", "") + "x", **meta}}
        found["metadata"].setdefault("uid", _NO_UID)
        message = f"home: changes of admission, or a rejection by it: {error.message}"
        return PodFacts(found, stored=False, not_checked=[message])
    return PodFacts(found, stored=False)


# -- the remote ----------------------------------------------------------------------------


async def _look_up_remote(
    stack: AsyncExitStack,
    settings: ExplainSettings,
    home: KubeClient,
    facts: PodFacts,
    policy: Policy,
) -> None:
    remote = await connect_remote(stack, home, facts.node or {}, settings.remote, facts.not_checked)
    if remote is None:
        return
    with as_preflight_errors("remote"):
        facts.remote = await _read_remote(remote, facts, policy)


async def _read_remote(remote: KubeClient, facts: PodFacts, policy: Policy) -> RemoteFacts:
    namespace = policy.identity.remote_namespace(HomeNamespace(namespace_of(facts.pod)))
    found, not_checked = RemoteFacts(remote.endpoint.server), facts.not_checked
    found.namespace = await best_effort_reads.get_object(remote, NAMESPACES, namespace, not_checked)
    reads = await select_cluster_reads(remote, policy.remote_namespaces)
    if reads.nodes:
        found.nodes = await best_effort_reads.list_objects(
            remote, NODES, not_checked, labels=policy.node_selection
        )
    if reads.priority_classes:
        classes = await best_effort_reads.list_objects(remote, PRIORITY_CLASSES, not_checked)
        found.priority_classes = frozenset(map(name_of, classes))
    missing = (it.replace("_", " ") for it in missing_reads(reads))
    not_checked += [f"remote: no list of all {it}: not granted" for it in missing]
    skipped = {"PriorityClass"}
    if policy.service_accounts != "remote":
        skipped.add("ServiceAccount")
    if policy.storage == "provision":
        skipped.add("PersistentVolumeClaim")  # Of home; the remote's has another name.
    remote_dependencies = [it for it in facts.dependencies if it.kind not in skipped]
    if found.namespace is not None:
        found.pod = await best_effort_reads.get_object(
            remote, PODS, name_of(facts.pod), not_checked, namespace=namespace
        )
        services = await best_effort_reads.list_objects(
            remote, SERVICES, not_checked, namespace=namespace
        )
        ours = (it for it in services if is_owned(it, policy.identity))
        found.services = frozenset(map(name_of, ours))
    if found.pod is not None:
        found.events = await best_effort_reads.list_events(remote, found.pod, not_checked)
    found.objects = await best_effort_reads.get_objects(
        remote, map(_resource_name, remote_dependencies), namespace, not_checked
    )
    if policy.storage == "provision":
        found.claims = await _remote_claims(remote, facts.storage, policy, not_checked)
    if (
        found.namespace is not None
        and found.pod is None
        and not remote_pod.rejection_message(facts.pod)
    ):
        found.rejection = await _dry_run_rejection(
            remote, facts.pod, policy, found.priority_classes
        )
    return found


async def _remote_claims(
    remote: KubeClient, storage: PodStorage, policy: Policy, not_checked: list[str]
) -> dict[str, Object | None]:
    """The remote PVCs that the pod's home PVCs lead to."""
    handles = [
        handle
        for volume in storage.volumes.values()
        if volume is not None and (handle := volume_handle(volume)) is not None
    ]
    found: dict[str, Object | None] = {}
    for handle in handles:
        if handle.remote_id == policy.remote_id:
            read = await best_effort_reads.get_objects(
                remote, [(PERSISTENT_VOLUME_CLAIMS, handle.name)], handle.namespace, not_checked
            )
            found |= {name: it for (_, name), it in read.items()}
    return found


async def _dry_run_rejection(
    remote: KubeClient, home: Object, policy: Policy, classes: frozenset[str]
) -> str:
    """The error message of the remote's API server for a dry run of the creation; "" for none."""
    body = remote_pod.translate_pod(home, policy, priority_classes=classes).pod
    try:
        await remote.create(PODS, body, namespace=namespace_of(body), dry_run=True)
    except ApiError as error:
        return error.message
    return ""


class ManifestError(Exception):
    """Raised for a manifest that no API server accepts; the message names the part."""

    def __init__(self, part: str) -> None:
        hint = "`kubectl apply --dry-run=client -f FILE` shows the cause"
        super().__init__(f"{part}: a key, or the type of a value, is invalid; {hint}")


def pod_of_manifest(obj: Object) -> Object | None:
    """The pod that an object is or contains as template; None without one. As for an API server,
    fields that are null, and empty fields of the metadata, are absent. Raises ManifestError if it
    is not JSON, or a field that the bridge reads has the wrong type; the API server checks the
    others (`_admitted`)."""
    try:
        pod = _pod_or_template(_without_nulls(obj))
        orjson.dumps(pod)
    except (AttributeError, TypeError):
        raise ManifestError("metadata or spec") from None
    if pod is None:
        return None
    pod["metadata"] = {name: part for name, part in pod["metadata"].items() if part != ""}
    # A template, and a pod with a generateName, have no name.
    named = {**pod, "metadata": {"name": "x", **pod["metadata"]}}
    if part := wrong_part(PODS.kind, named):
        raise ManifestError(part)
    return pod


def _pod_or_template(obj: Object) -> Object | None:
    if obj.get("kind") == "Pod":
        return {**obj, "metadata": {**metadata(obj)}}
    spec = obj.get("spec", {})
    inner = spec.get("jobTemplate", {}).get("spec", spec)
    template = inner.get("template")
    if not isinstance(template, dict) or "spec" not in template:
        return None
    meta = metadata(obj)
    ours = {"generateName": f"{meta.get('name', 'pod')}-", **metadata(template)}
    if meta.get("namespace"):
        ours["namespace"] = meta["namespace"]
    if obj.get("kind") == "DaemonSet":
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta.get("name", "x")}
        ours["ownerReferences"] = [{**owner, "uid": _NO_UID, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": ours, "spec": template["spec"]}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value
