"""Computes how much the remote's ResourceQuotas allow the virtual node's pods to request.

A Node has a single amount per resource, while a quota limits one namespace. A quota therefore
limits the Node only if every remote namespace with pods of this node has a quota for the resource;
the limit is then the sum of what the quotas of this home's namespaces leave.

- Quotas of requests count. Quotas of limits (``limits.cpu``) do not affect scheduling, and are only
  reported when exhausted. A quota with scopes is ignored.
- Of several quotas in a namespace the strictest applies.
- Requests of unmanaged pods in the namespace are subtracted. Requests of managed pods are not:
  home's scheduler does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from translators.capacity.pod_requests import CPU, HUGE_PAGES, MEMORY, PODS, Amounts, parse_amount
from translators.object_accessors import Object, name_of, namespace_of

#: Keys of ``spec.hard`` that are resource names (pkg/quota/v1/evaluator/core/pods.go).
_PLAIN = (CPU, MEMORY, PODS, "ephemeral-storage")
_REQUESTS, _LIMITS = "requests.", "limits."


def quota_limits(quota: Object) -> Amounts:
    """The total requests that a quota allows in its namespace, by resource."""
    limits: Amounts = {}
    for key, quantity in hard_limits(quota).items():
        resource = _resource(key)
        if resource and not key.startswith(_LIMITS):
            hard = parse_amount(resource, quantity)
            limits[resource] = min(hard, limits.get(resource, hard))
    return limits


def remaining(
    quotas: Mapping[str, Iterable[Object]],
    *,
    unmanaged: Mapping[str, Mapping[str, int]],
    namespaces_with_pods: Collection[str],
) -> Amounts:
    """The total requests that managed pods may have, for each limited resource.

    ``quotas`` and ``unmanaged`` (requests of unmanaged pods) are by namespace.
    """
    by_namespace: dict[str, Amounts] = {}
    for namespace, of_namespace in quotas.items():
        used = unmanaged.get(namespace, {})
        allowed: Amounts = {}
        for quota in of_namespace:
            for resource, hard in quota_limits(quota).items():
                available = max(0, hard - used.get(resource, 0))
                allowed[resource] = min(available, allowed.get(resource, available))
        by_namespace[namespace] = allowed
    # In how many of the namespaces with pods each resource is limited.
    limited_in = Counter(
        resource
        for namespace in namespaces_with_pods
        for resource in by_namespace.get(namespace, ())
    )
    total: Amounts = {}
    for allowed in by_namespace.values():
        for resource, available in allowed.items():
            if limited_in[resource] == len(namespaces_with_pods):
                total[resource] = total.get(resource, 0) + available
    return total


def exhausted_keys(quota: Object, resources: Collection[str]) -> str:
    """The exhausted limits of a quota for these resources, as text; "" if there are none. The API
    server's own count (``status.used``) decides."""
    used = (quota.get("status") or {}).get("used") or {}
    keys = [
        key
        for key, hard in sorted(hard_limits(quota).items())
        if (resource := _resource(key)) in resources
        and parse_amount(resource, used.get(key, "0")) >= parse_amount(resource, hard)
    ]
    if not keys:
        return ""
    return f"namespace {namespace_of(quota)}, quota {name_of(quota)}: {', '.join(keys)}"


def hard_limits(quota: Object) -> Mapping[str, str]:
    """``spec.hard`` of a quota; {} for one with scopes."""
    spec = quota.get("spec") or {}
    scoped = spec.get("scopes") or spec.get("scopeSelector")
    return {} if scoped else (spec.get("hard") or {})


def _resource(key: str) -> str:
    """The pod resource that a key of ``spec.hard`` limits; "" for other keys."""
    if key == "count/pods":
        return PODS
    if key in _PLAIN or key.startswith(HUGE_PAGES):
        return key
    for prefix in (_REQUESTS, _LIMITS):
        if key.startswith(prefix) and key != "requests.storage":  # Of PersistentVolumeClaims.
            return key.removeprefix(prefix)
    return ""
