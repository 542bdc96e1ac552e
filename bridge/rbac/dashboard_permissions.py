"""The permissions at home of a dashboard that runs in home's cluster, and of its viewers."""

from __future__ import annotations

from collections.abc import Collection

from bridge.rbac.permissions import NODE, Permission
from sync.kube.api_resources import (
    NODES,
    PODS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
)

#: The dashboard's account. It writes nothing but reviews of its viewers, and has no access to any
#: remote, Secret or Event.
DASHBOARD = (
    Permission(NODES, ("list", "watch")),
    # RBAC cannot limit this to the pods of virtual nodes. Environments are not kept.
    Permission(PODS, ("list", "watch")),
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
#: Optional, for named virtual nodes: the state and the metrics of their bridges. The subresource
#: also permits logs and exec in the pods of the node.
DASHBOARD_NODES = (Permission(NODES, ("get",), "proxy", names=(NODE,)),)


def for_dashboard(nodes: Collection[str]) -> tuple[Permission, ...]:
    """The permissions of the dashboard's account, which may query the bridges of these nodes."""
    queried = [it.for_nodes(nodes) for it in DASHBOARD_NODES] if nodes else []
    return (*DASHBOARD, *queried)


def for_viewers(namespace: str, service: str) -> tuple[Permission, ...]:
    """The permission to read the page, by which the dashboard decides on its viewers."""
    return (Permission(SERVICES, ("get",), "proxy", namespace=namespace, names=(service,)),)
