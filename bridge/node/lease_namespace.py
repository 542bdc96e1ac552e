"""Home's namespace of the Leases by which the bridges of one home coordinate.

These Leases are not in kube-node-lease: there each Lease belongs to a Node, and a node's credential
may write that of its own Node alone. The namespace is the same for every bridge of home, since two
bridges that looked at different Leases would both serve the node.

`bridge rbac home` and an installation create the namespace; otherwise the first join does.
`bridge leave` removes one that a join created once nothing else is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from bridge.base.command_error import BridgeError
from bridge.base.recommended_labels import APP, NAME_LABEL
from sync.kube.api_errors import AlreadyExists, Forbidden, NamespaceTerminating, NotFound
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata

NAMESPACE = "cluster-bridge"
#: Seconds to wait for the end of a namespace: home's namespace controller takes a few for an empty
#: one, and repeats after 15 if an object appeared meanwhile.
TERMINATION_SECONDS = 30.0
POLL_SECONDS = 0.5


class LeaseNamespaceMissing(BridgeError):
    """The namespace does not exist, and the credential may not create it."""


async def create_with_namespace(
    home: KubeClient, create: Callable[[], Awaitable[Object]]
) -> Object:
    """The result of ``create``, which creates a Lease; creates the namespace first where it does
    not exist, and waits for the end of one that another bridge's leave removes. Raises
    LeaseNamespaceMissing and what ``create`` raises, NamespaceTerminating after
    `TERMINATION_SECONDS`."""
    deadline = asyncio.get_running_loop().time() + TERMINATION_SECONDS
    while True:
        try:
            return await create()
        except NotFound:
            await _create_namespace(home)
            return await create()
        except NamespaceTerminating:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(POLL_SECONDS)


async def _create_namespace(home: KubeClient) -> None:
    labels = {NAME_LABEL: APP}
    try:
        with contextlib.suppress(AlreadyExists):
            await home.create(
                NAMESPACES, NAMESPACES.manifest({"name": NAMESPACE, "labels": labels})
            )
    except Forbidden as error:
        raise LeaseNamespaceMissing(
            f"home: the namespace {NAMESPACE} of the bridges' Leases does not exist, and the "
            f"credential may not create it; run `kubectl create namespace {NAMESPACE}` as an "
            "administrator and join again"
        ) from error


def was_created_by_join(namespace: Object) -> bool:
    """Whether a join created this namespace."""
    return (metadata(namespace).get("labels") or {}).get(NAME_LABEL) == APP
