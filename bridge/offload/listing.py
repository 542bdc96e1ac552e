"""What is offloaded: namespaces with their policies, and by what that is obeyed."""

from __future__ import annotations

import asyncio

from bridge.clusters.connection import as_preflight_errors, connect
from bridge.offload import admission_policy as objects
from bridge.offload.namespace_policy import list_webhook_configurations, policy_version
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.resources import NAMESPACES
from translators import offload_patch
from translators.objects import Object, name_of


async def list_offloaded_namespaces(home: KubeconfigRef) -> list[Object]:
    """By name: ``namespace``, ``policy``, ``nodeSelector``, and ``by``, which is "policy",
    "webhook", or "" where nothing obeys it. Raises PreflightError."""
    async with connect(home, side="home", notify=lambda _: None) as client:
        with as_preflight_errors("home"):
            page, by = await asyncio.gather(
                client.list(NAMESPACES, labels=offload_patch.LABEL_OFFLOAD), _obeyed_by(client)
            )
    return [
        {
            "namespace": name_of(it),
            "policy": policy,
            "nodeSelector": dict(offload_patch.selector_of(it)),
            "by": by,
        }
        for it in sorted(page.items, key=name_of)
        if (policy := offload_patch.policy_of(it)) is not None
    ]


async def _obeyed_by(home: KubeClient) -> str:
    if version := await policy_version(home):
        try:
            await home.get(objects.binding_resource(version), objects.NAME)
        except NotFound:
            pass
        else:
            return "policy"
    return "webhook" if await list_webhook_configurations(home) else ""
