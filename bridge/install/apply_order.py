"""The kinds of an installation, in the order in which they are applied; removed in the other."""

from __future__ import annotations

from sync.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from translators.objects import Object

KINDS = (
    NAMESPACES,
    SERVICE_ACCOUNTS,
    CLUSTER_ROLES,
    ROLES,
    CLUSTER_ROLE_BINDINGS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICES,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
)
_BY_KIND = {it.kind: it for it in KINDS}


def resource_of(obj: Object) -> Resource:
    """The kind that the object says it is."""
    return _BY_KIND[str(obj["kind"])]
