"""What is offloaded: namespaces with their policies, and by what that is obeyed."""

from __future__ import annotations

import asyncio

from bridge.offload import policy as objects
from bridge.offload.commands import policy_version, webhooks
from bridge.preflight.checks import connected, explained
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.kubeconfig import KubeconfigRef
from sync.kube.resources import NAMESPACES
from translators import offload
from translators.types import Object, name_of


async def listed(home: KubeconfigRef) -> list[Object]:
    """By name: ``namespace``, ``policy``, ``nodeSelector``, and ``by``, which is "policy",
    "webhook", or "" where nothing obeys it. Raises PreflightError."""
    async with connected(home, side="home", told=lambda _: None) as client:
        with explained("home"):
            page, by = await asyncio.gather(
                client.list(NAMESPACES, labels=offload.LABEL), _obeyed_by(client)
            )
    return [
        {
            "namespace": name_of(it),
            "policy": policy,
            "nodeSelector": dict(offload.selector_of(it)),
            "by": by,
        }
        for it in sorted(page.items, key=name_of)
        if (policy := offload.policy_of(it)) is not None
    ]


async def _obeyed_by(home: KubeClient) -> str:
    if version := await policy_version(home):
        try:
            await home.get(objects.bindings(version), objects.NAME)
        except NotFound:
            pass
        else:
            return "policy"
    return "webhook" if await webhooks(home) else ""
