"""Home's namespace of the Leases by which the bridges of one home coordinate.

These Leases are not in kube-node-lease: there each Lease belongs to a Node, and a node's credential
may write that of its own Node alone. The namespace is the same for every bridge of home, since two
bridges that looked at different Leases would both serve the node.

`bridge rbac home` and an installation create the namespace; otherwise the first join does.
`bridge leave` removes one that a join created once nothing else is in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from bridge.base.command_error import BridgeError
from bridge.base.recommended_labels import APP, NAME_LABEL
from sync.kube.api_errors import AlreadyExists, Forbidden, NotFound
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata

NAMESPACE = "cluster-bridge"


class LeaseNamespaceMissing(BridgeError):
    """The namespace does not exist, and the credential may not create it."""


async def create_with_namespace(
    home: KubeClient, create: Callable[[], Awaitable[Object]]
) -> Object:
    """The result of ``create``, which creates a Lease; creates the namespace first where it does
    not exist. Raises LeaseNamespaceMissing and what ``create`` raises."""
    try:
        return await create()
    except NotFound:
        await _create_namespace(home)
        return await create()


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
