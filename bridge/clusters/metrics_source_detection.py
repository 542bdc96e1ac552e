"""Selects where the bridge reads the resource usage of pods: kubelets, metrics API, or nowhere."""

from __future__ import annotations

from collections.abc import Collection

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import MetricsChoice, MetricsSource
from bridge.rbac import permissions
from sync.kube.api_errors import ApiError
from sync.kube.api_resources import POD_METRICS
from sync.kube.client import KubeClient


async def select_metrics_source(
    remote: KubeClient, choice: MetricsChoice, prepared: Collection[str] = ()
) -> MetricsSource:
    """The first source that the credential may use; a source that was named must be usable. The
    metrics API is usable if the credential may list it in all ``prepared`` namespaces.

    Raises PreflightError if a named source is not usable, and KubeError.
    """
    if choice in ("auto", "kubelets"):
        if await permissions.are_granted(remote, permissions.REMOTE_METRICS["kubelets"]):
            return "kubelets"
        if choice == "kubelets":
            raise PreflightError(
                "remote: --metrics kubelets needs the permission to get nodes/proxy; grant it "
                "(`bridge rbac remote --metrics kubelets` prints what to apply there), or use "
                "--metrics auto"
            )
    if choice in ("auto", "api"):
        required = permissions.REMOTE_METRICS["api"]
        allowed = await permissions.are_granted(
            remote, permissions.in_namespaces(required, prepared) if prepared else required
        )
        if allowed and await _serves_metrics(remote):
            return "api"
        if choice == "api":
            raise PreflightError(
                "remote: --metrics api needs a metrics API (such as metrics-server) and the "
                "permission to list pods.metrics.k8s.io (`bridge rbac remote --metrics api`); "
                "provide both, or use --metrics auto"
            )
    return "none"


async def _serves_metrics(remote: KubeClient) -> bool:
    """Whether the remote has a metrics API. API discovery needs no permission."""
    path = f"/apis/{POD_METRICS.api_version}"
    try:
        await remote.request("GET", path, timeout=permissions.REQUEST_SECONDS)
    except ApiError:
        return False
    return True
