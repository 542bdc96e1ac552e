"""`bridge offload` and `bridge unoffload`: set, remove and list the offload policy of namespaces.

The policy is a label of the namespace; what enforces it is installed once for all namespaces
(`bridge.offload.pod_mutator_setup`), and removed with the last policy. Both commands can be
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.base.recommended_labels import APP, NAME_LABEL
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.node import node_object
from bridge.offload import Mechanism, pod_mutator_setup
from bridge.offload.pod_mutator_setup import PodMutatorWriter
from sync.kube.api_errors import Forbidden, NotFound
from sync.kube.api_resources import DEPLOYMENTS, NAMESPACES, NODES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators import offload_admission_patch
from translators.object_accessors import Object, metadata, name_of
from translators.offload_admission_patch import Offloading
from translators.ownership_labels import LABEL_VIRTUAL
from translators.pods import home_scheduler_filters

_BURST = Offloading("burst")


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """Options of the commands."""

    home: KubeconfigRef
    namespace: str
    offloading: Offloading = _BURST
    mechanism: Mechanism = "auto"
    dry_run: bool = False


_NOT_SERVED = (
    "home: its API server does not serve MutatingAdmissionPolicy (1.36 does; 1.34 with the "
    "feature gate of that name and --runtime-config=admissionregistration.k8s.io/v1beta1=true); "
    "use --by webhook"
)


async def offload_namespace(settings: OffloadSettings, *, notify: Notify) -> Object:
    """Sets the policy and installs its enforcement; returns the command's JSON output. Raises
    PreflightError if new pods are not mutated afterwards."""
    async with connect(settings.home, side="home", notify=lambda _: None) as home:
        with as_preflight_errors("home"):
            namespace = await _get_namespace(home, settings.namespace)
            await _check_has_no_bridge(home, settings.namespace)
            use_webhook = settings.mechanism == "webhook"
            version = "" if use_webhook else await pod_mutator_setup.find_policy_version(home)
            if settings.mechanism == "policy" and not version:
                raise PreflightError(_NOT_SERVED)
            await _check_nodes(home, settings, notify)
            writer = PodMutatorWriter(home, notify, dry_run=settings.dry_run)
            if version:
                await pod_mutator_setup.install_policy(writer, version)
            elif use_webhook:
                await pod_mutator_setup.remove_policy(writer)
            await writer.patch_namespace(namespace, settings.offloading)
            if not settings.dry_run:
                await pod_mutator_setup.wait_until_enforced(
                    home,
                    settings.namespace,
                    settings.offloading,
                    by_webhook=not version,
                    notify=notify,
                )
    return {
        "namespace": settings.namespace,
        **_summary(settings.offloading),
        "by": "policy" if version else "webhook",
        "dryRun": settings.dry_run,
        "written": writer.written,
    }


async def unoffload_namespace(settings: OffloadSettings, *, notify: Notify) -> Object:
    """Removes the policy, and its enforcement if no other namespace has a policy; returns the
    command's JSON output. Raises PreflightError."""
    async with connect(settings.home, side="home", notify=lambda _: None) as home:
        with as_preflight_errors("home"):
            writer = PodMutatorWriter(home, notify, dry_run=settings.dry_run)
            namespace = await home.find(NAMESPACES, settings.namespace)
            if namespace is None:
                notify(f"home: there is no namespace {settings.namespace}")
            else:
                await writer.patch_namespace(namespace, None)
            page = await home.list(NAMESPACES, labels=offload_admission_patch.LABEL_OFFLOAD)
            others = sorted({*map(name_of, page.items)} - {settings.namespace})
            if not others:
                await pod_mutator_setup.remove_all(writer)
    return {
        "namespace": settings.namespace,
        "policy": None,
        "others": others,
        "dryRun": settings.dry_run,
        "written": writer.written,
    }


async def list_offloaded_namespaces(home: KubeconfigRef) -> list[Object]:
    """The offloaded namespaces by name, each with ``namespace``, ``policy``, ``nodeSelector``,
    ``tiers``, ``podSelector`` and ``by``, the installed mechanism ("" for none). Raises
    PreflightError."""
    async with connect(home, side="home", notify=lambda _: None) as client:
        with as_preflight_errors("home"):
            page, mechanism = await asyncio.gather(
                client.list(NAMESPACES, labels=offload_admission_patch.LABEL_OFFLOAD),
                pod_mutator_setup.find_mechanism(client),
            )
    return [
        {"namespace": name_of(it), **_summary(offloading), "by": mechanism}
        for it in sorted(page.items, key=name_of)
        if (offloading := offload_admission_patch.offloading_of(it)) is not None
    ]


def _summary(offloading: Offloading) -> Object:
    return {
        "policy": offloading.policy,
        "nodeSelector": dict(offloading.nodes),
        "tiers": list(map(dict, offloading.tiers)),
        "podSelector": dict(offloading.pods),
    }


async def _get_namespace(home: KubeClient, name: str) -> Object:
    try:
        return await home.get(NAMESPACES, name)
    except NotFound as error:
        raise PreflightError(
            f"home: there is no namespace {name}; `kubectl create namespace {name}` creates it"
        ) from error


async def _check_has_no_bridge(home: KubeClient, namespace: str) -> None:
    """Raises PreflightError if a bridge is installed in the namespace: on its own virtual node it
    could not start again."""
    try:
        found = await home.list(DEPLOYMENTS, namespace=namespace, labels=f"{NAME_LABEL}={APP}")
    except Forbidden:
        return
    if found.items:
        raise PreflightError(
            f"home: namespace {namespace} has a bridge, {name_of(found.items[0])}, which must run "
            "at home; offload the namespaces of workloads"
        )


async def _check_nodes(home: KubeClient, settings: OffloadSettings, notify: Notify) -> None:
    """Reports if pods would find no virtual node. That is no error: one may join later."""
    offloading = settings.offloading
    if offloading.policy == "local-only":
        return
    try:
        nodes = (await home.list(NODES, labels=LABEL_VIRTUAL)).items
    except Forbidden:
        return
    matching = [node for node in nodes if _has_labels(node, offloading.nodes)]
    if not matching:
        which = " with these labels" if offloading.nodes else ""
        notify(Caveat(f"home: there is no virtual node{which} yet; `bridge join` creates one"))
    for tier in offloading.tiers:
        if matching and not any(_has_labels(node, tier) for node in matching):
            text = offload_admission_patch.selector_text(tier)
            notify(Caveat(f"home: no virtual node that pods may use has the labels of tier {text}"))
    for node in matching:
        if node_object.LABEL_REMOTE not in (metadata(node).get("labels") or {}):
            continue
        for taint in filter(_repels_pods, (node.get("spec") or {}).get("taints") or ()):
            notify(
                Caveat(f"home: pods do not tolerate taint {taint['key']} of node {name_of(node)}")
            )


def _has_labels(node: Object, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (metadata(node).get("labels") or {}).items()


def _repels_pods(taint: Object) -> bool:
    """Whether the taint is permanent, and the toleration that pods get does not cover it."""
    toleration = {"key": LABEL_VIRTUAL, "operator": "Exists"}
    is_transient = str(taint.get("key")).startswith("node.kubernetes.io/")
    is_soft = taint.get("effect") == "PreferNoSchedule"
    return not (is_transient or is_soft or home_scheduler_filters.tolerates(toleration, taint))
