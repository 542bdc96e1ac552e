"""Reads the address ranges of home's own network, where the account may list them.

The permissions are optional (`bridge.rbac.permissions.HOME_RANGES`): no Role of the bridge has
them. Home's ServiceCIDRs exist in Kubernetes 1.33 and newer.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from sync.kube.api_errors import Forbidden, NotFound
from sync.kube.client import KubeClient
from translators import home_ranges
from translators.home_ranges import HomeRanges
from translators.object_accessors import Object, metadata

_NODES, _SERVICE_CIDRS = permissions.HOME_RANGES


async def read_home_ranges(account: KubeClient) -> HomeRanges:
    """The ranges that the account may see. Raises KubeError."""
    nodes, service_cidrs = await list_nodes(account), await list_service_cidrs(account)
    return home_ranges.home_ranges(nodes, service_cidrs)


async def list_nodes(account: KubeClient) -> list[Object]:
    """Home's Nodes with their names, labels, addresses and pod CIDRs; empty if the account may not
    list them. Raises KubeError."""
    return await _list_if_granted(account, _NODES, slim=_without_details)


async def list_service_cidrs(account: KubeClient) -> list[Object]:
    """Home's ServiceCIDRs; empty if the account may not list them, or home has none. Raises
    KubeError."""
    return await _list_if_granted(account, _SERVICE_CIDRS)


async def _list_if_granted(
    account: KubeClient, permission: Permission, *, slim: Callable[[Object], Object] | None = None
) -> list[Object]:
    if not await permissions.are_granted(account, [permission]):
        return []
    try:
        return (await account.list(permission.resource, slim=slim)).items
    except (Forbidden, NotFound):
        return []


def _without_details(node: Object) -> Object:
    meta = metadata(node)
    return {
        "metadata": {"name": meta["name"], "labels": meta.get("labels") or {}},
        "spec": {"podCIDRs": (node.get("spec") or {}).get("podCIDRs") or []},
        "status": {"addresses": (node.get("status") or {}).get("addresses") or []},
    }
