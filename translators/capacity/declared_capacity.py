"""Computes the capacity of the virtual node where the bridge may not read the remote's nodes. Pure.

- ``--limits`` declares the amounts of the resources that it names.
- Every other resource is the sum of what the ResourceQuotas of the prepared namespaces allow to
  request; the strictest of each namespace counts. A namespace without such a quota adds nothing.
- The requests of unmanaged pods in the prepared namespaces are subtracted: from the declared amount
  as a whole, from a quota in its namespace.

The node needs CPU, memory and pods: without one of these, home's scheduler places no pod on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from translators.capacity.pod_requests import CPU, MEMORY, PODS, Amounts
from translators.capacity.resource_quota import quota_limits
from translators.object_accessors import Object

#: Resources without which a Node takes no pods.
REQUIRED = (CPU, MEMORY, PODS)


class DeclaredCapacity(NamedTuple):
    """The total, and what unmanaged pods leave of it."""

    total: Amounts
    free: Amounts


def declared_capacity(
    declared: Mapping[str, int],
    quotas: Mapping[str, Iterable[Object]],
    unmanaged: Mapping[str, Mapping[str, int]],
) -> DeclaredCapacity:
    """``declared`` amounts by resource; ``quotas`` and ``unmanaged`` (requests of unmanaged pods)
    by prepared namespace."""
    total, free = dict[str, int](), dict[str, int]()
    for resource, amount in declared.items():
        used = sum(it.get(resource, 0) for it in unmanaged.values())
        total[resource], free[resource] = amount, max(0, amount - used)
    for namespace, of_namespace in quotas.items():
        used_here = unmanaged.get(namespace, {})
        for resource, hard in _strictest(of_namespace).items():
            if resource not in declared:
                left = max(0, hard - used_here.get(resource, 0))
                total[resource] = total.get(resource, 0) + hard
                free[resource] = free.get(resource, 0) + left
    return DeclaredCapacity(total, free)


def missing_resources(declared: Mapping[str, int], quotas: Iterable[Object]) -> list[str]:
    """Those of `REQUIRED` that neither an option nor a quota of a prepared namespace declares."""
    known = {*declared, *_strictest(quotas)}
    return [it for it in REQUIRED if it not in known]


def _strictest(quotas: Iterable[Object]) -> Amounts:
    limits: Amounts = {}
    for quota in quotas:
        for resource, hard in quota_limits(quota).items():
            limits[resource] = min(hard, limits.get(resource, hard))
    return limits
