"""Installs, finds and tests the mechanism that mutates pods of offloaded namespaces in home.

Objects are compared first and written only if they differ, so that everything can be repeated.
Whether pods are mutated is tested by creating a pod with ``dryRun=All``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.offload import mutating_admission_policy
from sync.kube.api_errors import AlreadyExists, ApiError, NotFound
from sync.kube.api_resources import MUTATING_WEBHOOKS, NAMESPACES, PODS, Resource
from sync.kube.client import KubeClient
from translators import offload_admission_patch
from translators.merge_patch import merge_patch
from translators.object_accessors import Object, metadata, name_of, uid_of
from translators.offload_admission_patch import Offloading

#: Seconds to wait for enforcement: an API server looks for new policies every second.
ENFORCEMENT_SECONDS = 30.0
#: Seconds between two test pods.
PROBE_SECONDS = 0.5


class PodMutatorWriter:
    """Writes what differs to home, or in a dry run only reports it."""

    def __init__(self, home: KubeClient, notify: Notify, *, dry_run: bool) -> None:
        self.home = home
        self.written: list[str] = []
        self._notify = notify
        self._dry_run = dry_run

    def _report(self, change: str) -> bool:
        """Reports the change, and returns whether to make it."""
        self.written.append(change)
        self._notify(f"home: {change}{' (dry run: not done)' if self._dry_run else ''}")
        return not self._dry_run

    async def ensure(self, resource: Resource, desired: Object) -> None:
        """Creates or patches the object. Raises PreflightError if an unmanaged object has its
        name."""
        current = await self.get_managed(resource)
        name = f"{resource.kind} {mutating_admission_policy.NAME}"
        if current is None:
            if self._report(f"{name} created"):
                try:
                    await self.home.create(resource, desired)
                except AlreadyExists:
                    await self.ensure(resource, desired)
        elif (patch := merge_patch(current, desired)) and self._report(f"{name} changed"):
            await self.home.patch(resource, mutating_admission_policy.NAME, patch)

    async def remove(self, resource: Resource) -> None:
        """Deletes the bridge's object, if it exists."""
        current = await self.get_managed(resource)
        name = mutating_admission_policy.NAME
        if current is not None and self._report(f"{resource.kind} {name} removed"):
            await self.home.delete(resource, name, uid=uid_of(current))

    async def get_managed(self, resource: Resource) -> Object | None:
        """The bridge's object, if it exists. Raises PreflightError if an unmanaged object has its
        name."""
        found = await self.home.find(resource, mutating_admission_policy.NAME)
        if found is None:
            return None
        if mutating_admission_policy.LABEL_PART not in (metadata(found).get("labels") or {}):
            raise PreflightError(
                f"home: {resource.kind} {mutating_admission_policy.NAME} is not the bridge's; "
                "rename or remove it"
            )
        return found

    async def patch_namespace(self, namespace: Object, offloading: Offloading | None) -> None:
        """Sets the label and the annotations of the namespace; None removes them."""
        policy = offloading.policy if offloading is not None else None
        annotations = offloading.annotations if offloading is not None else {}
        desired = {
            "labels": {offload_admission_patch.LABEL_OFFLOAD: policy},
            "annotations": dict.fromkeys(offload_admission_patch.ANNOTATIONS) | annotations,
        }
        meta = metadata(namespace)
        current = {"labels": meta.get("labels") or {}, "annotations": meta.get("annotations") or {}}
        patch = merge_patch(current, desired)
        change = "is no longer offloaded" if policy is None else f"is offloaded: {policy}"
        if patch and self._report(f"namespace {name_of(namespace)} {change}"):
            body = {"metadata": {**patch, "uid": uid_of(namespace)}}
            await self.home.patch(NAMESPACES, name_of(namespace), body)


async def install_policy(writer: PodMutatorWriter, version: str) -> None:
    """Installs the policy and its binding in this version of the API."""
    policy, binding = mutating_admission_policy.policy_resources(version)
    await writer.ensure(policy, mutating_admission_policy.mutating_policy(version))
    await writer.ensure(binding, mutating_admission_policy.policy_binding(version))


async def remove_policy(writer: PodMutatorWriter) -> None:
    """Removes the policy and its binding, the binding first."""
    if version := await find_policy_version(writer.home):
        for resource in reversed(mutating_admission_policy.policy_resources(version)):
            await writer.remove(resource)


async def remove_all(writer: PodMutatorWriter) -> None:
    """Removes the policy, and the configuration of `bridge webhook`."""
    await remove_policy(writer)
    await writer.remove(MUTATING_WEBHOOKS)


async def find_policy_version(home: KubeClient) -> str:
    """The preferred version of the policy API that home serves; "" if it serves none."""
    for version in mutating_admission_policy.VERSIONS:
        try:
            found = await home.request("GET", f"/apis/{mutating_admission_policy.GROUP}/{version}")
        except NotFound:
            continue
        policy, _ = mutating_admission_policy.policy_resources(version)
        if policy.plural in {it.get("name") for it in found.get("resources") or ()}:
            return version
    return ""


async def find_mechanism(home: KubeClient) -> str:
    """The installed mechanism: "policy", "webhook", or "" for neither."""
    if version := await find_policy_version(home):
        _, binding = mutating_admission_policy.policy_resources(version)
        with contextlib.suppress(NotFound):
            await home.get(binding, mutating_admission_policy.NAME)
            return "policy"
    return "webhook" if await _list_webhook_configurations(home) else ""


async def _list_webhook_configurations(home: KubeClient) -> list[Object]:
    """The configurations of `bridge webhook` and of in-cluster webhooks."""
    labels = f"{mutating_admission_policy.LABEL_PART}=offload"
    return (await home.list(MUTATING_WEBHOOKS, labels=labels)).items


# -- test ----------------------------------------------------------------------------------

_INSTALL_HINT = (
    "install a webhook with `bridge install --offload-webhook`, or start `bridge "
    "webhook` on a machine that home's API server reaches"
)
_NO_WEBHOOK = (
    f"home: the namespace has its policy, but no webhook mutates its pods: {_INSTALL_HINT}, and "
    "leave it running"
)
_WEBHOOK_FAILS = (
    "home: the namespace has its policy, but webhook {} does not mutate its pods: is it running, "
    "and does home's API server reach it at the Service or address in its configuration?"
)
_POLICY_FAILS = (
    "home: its API server has the policy but does not enforce it (is the feature gate "
    f"MutatingAdmissionPolicy off?); {_INSTALL_HINT}, and run this again with --by webhook"
)


async def wait_until_enforced(
    home: KubeClient,
    namespace: str,
    offloading: Offloading,
    *,
    by_webhook: bool,
    notify: Notify,
) -> None:
    """Returns when new pods of the namespace are mutated. Raises PreflightError on timeout."""
    rejection = ""
    try:
        async with asyncio.timeout(ENFORCEMENT_SECONDS):
            while (cause := await _probe(home, namespace, offloading)) is not None:
                rejection = cause
                await asyncio.sleep(PROBE_SECONDS)  # The server has no event for this.
    except TimeoutError:
        if not rejection:
            if not by_webhook:
                raise PreflightError(_POLICY_FAILS) from None
            names = ", ".join(map(name_of, await _list_webhook_configurations(home)))
            raise PreflightError(_WEBHOOK_FAILS.format(names) if names else _NO_WEBHOOK) from None
        notify(Caveat(f"home: cannot determine whether new pods are mutated: {rejection}"))
        return
    notify(f"home: new pods of namespace {namespace} are mutated on creation")


async def _probe(home: KubeClient, namespace: str, offloading: Offloading) -> str | None:
    """None if a test pod is mutated, "" if it is not, and the server's message if it rejects the
    pod. (A new namespace may have no ServiceAccount yet.)"""
    try:
        probe = _probe_pod(namespace, offloading.pods)
        pod = await home.create(PODS, probe, namespace=namespace, dry_run=True)
    except ApiError as error:
        return error.message
    # The patch is idempotent: it is empty for a mutated pod.
    return "" if offload_admission_patch.admission_patch(pod, offloading) else None


def _probe_pod(namespace: str, labels: Mapping[str, str]) -> Object:
    """A pod that restricted namespaces and quotas admit."""
    security_context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    amounts = {"cpu": "1m", "memory": "1Mi"}
    container: Object = {
        "name": "probe",
        "image": "probe",
        "securityContext": security_context,
        "resources": {"requests": amounts, "limits": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "bridge-offload-",
            "namespace": namespace,
            "labels": dict(labels),
        },
        "spec": {"containers": [container]},
    }
