"""Stops and removes an installation that `bridge.install.installation_lookup` found.

The Deployments are deleted first, after their pods have terminated, and the namespace last
(`remove_namespaces`). Every step can be repeated after an error.
"""

from __future__ import annotations

import asyncio
import contextlib

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.install.installation import format_selector
from bridge.install.installation_lookup import ExistingInstallation
from bridge.node import lease_namespace
from bridge.rbac import permissions
from sync.cleanup import remote_inventory
from sync.kube.api_errors import Forbidden, NotFound
from sync.kube.api_resources import DEPLOYMENTS, NAMESPACES, PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of, namespace_of, uid_of

#: Seconds between checks of terminating pods.
POLL_SECONDS = 0.5
#: Seconds for the pods to terminate: more than their grace period.
TERMINATION_SECONDS = 60.0


async def stop(home: KubeClient, installation: ExistingInstallation, *, notify: Notify) -> None:
    """Scales the bridges and the webhook to zero, and waits for their pods to terminate. Raises
    KubeError, and PreflightError on timeout."""
    stopped = []
    for deployment in installation.deployments:
        name, namespace = name_of(deployment), namespace_of(deployment)
        with contextlib.suppress(NotFound):
            # The subresource: a credential that may only scale cannot change the pods.
            await home.patch(
                DEPLOYMENTS,
                name,
                {"spec": {"replicas": 0}},
                namespace=namespace,
                subresource="scale",
                decode=False,
            )
            stopped.append(deployment)
            notify(f"home: Deployment {namespace}/{name} is scaled to 0")
    for deployment in stopped:
        await _wait_for_termination(home, deployment)


async def _wait_for_termination(home: KubeClient, deployment: Object) -> None:
    name, namespace = name_of(deployment), namespace_of(deployment)
    selector = format_selector(deployment["spec"]["selector"]["matchLabels"])
    try:
        async with asyncio.timeout(TERMINATION_SECONDS):
            while (  # noqa: ASYNC110  # in another process
                await home.list(PODS, namespace=namespace, labels=selector)
            ).items:
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise PreflightError(
            f"home: pods of Deployment {namespace}/{name} have not terminated after "
            f"{TERMINATION_SECONDS:.0f} s (is their node unreachable?); leave again to keep waiting"
        ) from None


async def remove(home: KubeClient, installation: ExistingInstallation) -> None:
    """Deletes the installation's objects. Raises KubeError."""
    for resource, obj in installation.objects:
        await home.delete(
            resource, name_of(obj), namespace=namespace_of(obj) or None, uid=uid_of(obj)
        )


async def remove_namespaces(
    home: KubeClient, installation: ExistingInstallation | None, *, notify: Notify
) -> None:
    """Deletes the installation's namespace and that of the bridges' Leases, if a join created them
    and they contain nothing else. Raises KubeError."""
    installed_in = installation.namespace if installation is not None else ""
    for name in dict.fromkeys(filter(None, (installed_in, lease_namespace.NAMESPACE))):
        try:
            namespace = await home.find(NAMESPACES, name)
        except Forbidden:  # A credential that may not read it has not created it either.
            continue
        if namespace is None or not lease_namespace.was_created_by_join(namespace):
            continue
        contents = permissions.Permission(permissions.ALL_RESOURCES, ("list",), namespace=name)
        if not await permissions.are_granted(home, [contents]):
            continue  # It cannot find out whether the namespace is empty.
        kept = await remote_inventory.delete_namespaces(home, [namespace])
        for _, reason in kept if name == installed_in else ():
            notify(Caveat(f"home: namespace {name} stays: {reason}"))
