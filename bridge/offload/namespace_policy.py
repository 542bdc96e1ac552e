"""`bridge offload` and `bridge unoffload`: a namespace's pods may, or must, go to virtual nodes.

The policy stands on the namespace, and what obeys it (`bridge.offload.admission_policy`) in the
cluster, once
for all namespaces. Both commands compare first and write what differs, so that either can be run
again; the last namespace that is undone takes what obeyed it along. Whether a policy is obeyed is
found out by a pod that home's API server is asked to admit without keeping it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bridge.base.app_labels import APP, NAME_LABEL
from bridge.base.errors import PreflightError
from bridge.clusters.connection import as_preflight_errors, connect
from bridge.node import node_object
from bridge.offload import Mechanism
from bridge.offload import admission_policy as objects
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS, Resource
from translators import offload_patch
from translators.identity import LABEL_VIRTUAL
from translators.merge_patch import merge_patch
from translators.objects import Object, metadata, name_of, uid_of
from translators.offload_patch import OffloadPolicy
from translators.pods import scheduling_predicates

#: Seconds until an API server obeys a new policy: it looks for them every second.
ENFORCEMENT_SECONDS = 30.0
#: Seconds between two questions.
PROBE_SECONDS = 0.5

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """What the commands were asked for."""

    home: KubeconfigRef
    namespace: str
    policy: OffloadPolicy = "burst"
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual nodes that pods may come to; of all where it is empty."""
    mechanism: Mechanism = "auto"
    dry_run: bool = False


async def offload_namespace(settings: OffloadSettings, *, notify: Told) -> Object:
    """Does it, and says what there is now. Raises PreflightError where it has no effect."""
    async with connect(settings.home, side="home", notify=lambda _: None) as home:
        with as_preflight_errors("home"):
            namespace = await _namespace(home, settings.namespace)
            await _refuse_a_bridges_own(home, settings.namespace)
            version = await policy_version(home) if settings.mechanism != "webhook" else ""
            if settings.mechanism == "policy" and not version:
                raise PreflightError(_NOT_SERVED)
            await _look_at_nodes(home, settings, notify)
            writer = EnforcementWriter(home, notify, dry_run=settings.dry_run)
            if version:
                await writer.ensure(
                    objects.policy_resource(version), objects.mutating_policy(version)
                )
                await writer.ensure(
                    objects.binding_resource(version), objects.policy_binding(version)
                )
            elif settings.mechanism == "webhook":
                await remove_policy(writer)
            await writer.patch_namespace(namespace, settings.policy, settings.selector)
            answer: Object = {
                "namespace": settings.namespace,
                "policy": settings.policy,
                "nodeSelector": dict(settings.selector),
                "by": "policy" if version else "webhook",
                "dryRun": settings.dry_run,
                "written": writer.written,
            }
            if not settings.dry_run:
                await _check_obeyed(home, settings, notify, by_webhook=not version)
    return answer


async def unoffload_namespace(settings: OffloadSettings, *, notify: Told) -> Object:
    """Takes it back, and what obeyed it where no other namespace needs that."""
    async with connect(settings.home, side="home", notify=lambda _: None) as home:
        with as_preflight_errors("home"):
            writer = EnforcementWriter(home, notify, dry_run=settings.dry_run)
            try:
                namespace = await home.get(NAMESPACES, settings.namespace)
            except NotFound:
                notify(f"home: there is no namespace {settings.namespace}")
            else:
                await writer.patch_namespace(namespace, None, {})
            others = (await home.list(NAMESPACES, labels=offload_patch.LABEL_OFFLOAD)).items
            left = sorted(name for it in others if (name := name_of(it)) != settings.namespace)
            if not left:
                await remove_all(writer)
    return {
        "namespace": settings.namespace,
        "policy": None,
        "others": left,
        "dryRun": settings.dry_run,
        "written": writer.written,
    }


async def _namespace(home: KubeClient, name: str) -> Object:
    try:
        return await home.get(NAMESPACES, name)
    except NotFound as error:
        raise PreflightError(
            f"home: there is no namespace {name}; `kubectl create namespace {name}` makes it"
        ) from error


async def _refuse_a_bridges_own(home: KubeClient, namespace: str) -> None:
    """A bridge has to run at home: sent to its own node it would not start again. Raises
    PreflightError."""
    bridges = f"{NAME_LABEL}={APP}"
    try:
        found = (await home.list(DEPLOYMENTS, namespace=namespace, labels=bridges)).items
    except Forbidden:
        return
    if found:
        raise PreflightError(
            f"home: namespace {namespace} has a bridge, {name_of(found[0])}, which must run "
            "at home; offload the namespaces of workloads"
        )


_NOT_SERVED = (
    "home: its API server does not serve MutatingAdmissionPolicy (1.36 does; 1.34 with the "
    "feature gate of that name and --runtime-config=admissionregistration.k8s.io/v1beta1=true); "
    "use --by webhook"
)


async def policy_version(home: KubeClient) -> str:
    """The best version of the policy's API that home serves; "" where it serves none."""
    for version in objects.VERSIONS:
        try:
            found = await home.request("GET", f"/apis/{objects.GROUP}/{version}")
        except NotFound:
            continue
        names = {it.get("name") for it in found.get("resources") or ()}
        if objects.policy_resource(version).plural in names:
            return version
    return ""


async def _look_at_nodes(home: KubeClient, settings: OffloadSettings, told: Told) -> None:
    """Tells where pods would find no virtual node; that is no error: one may come later."""
    if settings.policy == "local-only":
        return
    try:
        nodes = (await home.list(NODES, labels=LABEL_VIRTUAL)).items
    except Forbidden:
        return
    wanted = settings.selector.items()
    chosen = [it for it in nodes if wanted <= (metadata(it).get("labels") or {}).items()]
    if not chosen:
        which = " with these labels" if settings.selector else ""
        told(f"home: there is no virtual node{which} yet; `bridge join` makes one")
    for node in chosen:
        if node_object.LABEL_REMOTE not in (metadata(node).get("labels") or {}):
            continue
        for taint in filter(_keeps_off, (node.get("spec") or {}).get("taints") or ()):
            told(f"home: pods do not tolerate taint {taint['key']} of node {name_of(node)}")


def _keeps_off(taint: Object) -> bool:
    """Whether the toleration that pods get does not cover the taint, nor does it pass by itself."""
    ours = {"key": LABEL_VIRTUAL, "operator": "Exists"}
    passing = str(taint.get("key")).startswith("node.kubernetes.io/")
    return not (
        passing or taint.get("effect") == "PreferNoSchedule"
    ) and not scheduling_predicates.tolerates(ours, taint)


# -- writing -------------------------------------------------------------------------------


class EnforcementWriter:
    """Writes what differs, or only tells it."""

    def __init__(self, home: KubeClient, told: Told, *, dry_run: bool) -> None:
        self.home = home
        self.written: list[str] = []
        self._told = told
        self._dry_run = dry_run

    def _will(self, what: str) -> bool:
        """Tells what is written; whether it is."""
        self.written.append(what)
        self._told(f"home: {what}{' (dry run: not done)' if self._dry_run else ''}")
        return not self._dry_run

    async def ensure(self, resource: Resource, wanted: Object) -> None:
        """Has the object be as wanted. Raises PreflightError where one of that name is foreign."""
        current = await self.get_managed(resource)
        if current is None:
            if self._will(f"{resource.kind} {objects.NAME} created"):
                try:
                    await self.home.create(resource, wanted)
                except AlreadyExists:
                    await self.ensure(resource, wanted)
        elif (patch := merge_patch(current, wanted)) and self._will(
            f"{resource.kind} {objects.NAME} changed"
        ):
            await self.home.patch(resource, objects.NAME, patch)

    async def remove(self, resource: Resource) -> None:
        """Deletes our object of this kind, if it is there."""
        current = await self.get_managed(resource)
        if current is not None and self._will(f"{resource.kind} {objects.NAME} removed"):
            await self.home.delete(resource, objects.NAME, uid=uid_of(current))

    async def get_managed(self, resource: Resource) -> Object | None:
        """The bridge's object of this kind, if there is one. Raises PreflightError where one of
        that name is foreign."""
        try:
            found = await self.home.get(resource, objects.NAME)
        except NotFound:
            return None
        if objects.LABEL_PART not in (metadata(found).get("labels") or {}):
            raise PreflightError(
                f"home: {resource.kind} {objects.NAME} is not the bridge's; rename or remove it"
            )
        return found

    async def patch_namespace(
        self, namespace: Object, policy: OffloadPolicy | None, selector: Mapping[str, str]
    ) -> None:
        """Has the namespace say the policy; None: nothing."""
        text = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        wanted = {
            "labels": {offload_patch.LABEL_OFFLOAD: policy},
            "annotations": {offload_patch.ANNOTATION_NODE_SELECTOR: text or None},
        }
        meta = metadata(namespace)
        current = {"labels": meta.get("labels") or {}, "annotations": meta.get("annotations") or {}}
        patch = merge_patch(current, wanted)
        said = "is not offloaded any more" if policy is None else f"is offloaded: {policy}"
        if patch and self._will(f"namespace {name_of(namespace)} {said}"):
            body = {"metadata": {**patch, "uid": uid_of(namespace)}}
            await self.home.patch(NAMESPACES, name_of(namespace), body)


async def remove_all(writer: EnforcementWriter) -> None:
    """Removes all that obeys policies; the bindings first."""
    await remove_policy(writer)
    await writer.remove(objects.WEBHOOKS)


async def remove_policy(writer: EnforcementWriter) -> None:
    """Removes what has the API server obey policies."""
    if version := await policy_version(writer.home):
        await writer.remove(objects.binding_resource(version))
        await writer.remove(objects.policy_resource(version))


# -- whether it is obeyed ------------------------------------------------------------------


async def _check_obeyed(
    home: KubeClient, settings: OffloadSettings, told: Told, *, by_webhook: bool
) -> None:
    """Waits until a new pod would be changed. Raises PreflightError where that does not come."""
    refusal = ""
    try:
        async with asyncio.timeout(ENFORCEMENT_SECONDS):
            while (answer := await _not_obeyed(home, settings)) is not None:
                refusal = answer
                await asyncio.sleep(PROBE_SECONDS)  # the server tells nobody
    except TimeoutError:
        if not refusal:
            raise PreflightError(await _why_not(home) if by_webhook else _NOT_OBEYED) from None
        told(f"home: whether it is obeyed cannot be seen: {refusal}")
        return
    told(f"home: new pods of namespace {settings.namespace} are changed as they are made")


_OR_START = (
    "install a webhook with `bridge join --in-cluster --offload-webhook`, or start `bridge "
    "webhook` on a machine that home's API server reaches"
)
_NO_WEBHOOK = (
    f"home: the namespace says its policy, and no webhook changes its pods: {_OR_START}, and "
    "leave it running"
)
_WEBHOOK_AWAY = (
    "home: the namespace says its policy, and webhook {} does not change its pods: does it run, "
    "and does home's API server reach it at the Service or address that it names?"
)
_NOT_OBEYED = (
    "home: its API server has the policy and does not obey it (is the feature gate "
    f"MutatingAdmissionPolicy off?); {_OR_START}, and run this again with --by webhook"
)


async def _why_not(home: KubeClient) -> str:
    """Why no webhook has changed a pod."""
    there = await list_webhook_configurations(home)
    return _WEBHOOK_AWAY.format(", ".join(map(name_of, there))) if there else _NO_WEBHOOK


async def list_webhook_configurations(home: KubeClient) -> list[Object]:
    """The configurations of our webhooks: that of `bridge webhook`, and those in home's cluster."""
    return (await home.list(objects.WEBHOOKS, labels=f"{objects.LABEL_PART}=offload")).items


async def _not_obeyed(home: KubeClient, settings: OffloadSettings) -> str | None:
    """None where a pod is changed; else what the server says to it, "" where it makes it as it is.
    (A namespace that is new may have no service account yet.)"""
    pod = _probe(settings.namespace)
    try:
        made = await home.create(PODS, pod, namespace=settings.namespace, dry_run=True)
    except ApiError as error:
        return error.message
    # What would be changed again has not been changed.
    return "" if offload_patch.admission_patch(made, settings.policy, settings.selector) else None


def _probe(namespace: str) -> Object:
    """A pod that strict namespaces admit."""
    secured = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    amounts = {"cpu": "1m", "memory": "1Mi"}
    container: Object = {
        "name": "probe",
        "image": "probe",
        "securityContext": secured,
        "resources": {"requests": amounts, "limits": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "bridge-offload-", "namespace": namespace},
        "spec": {"containers": [container]},
    }
