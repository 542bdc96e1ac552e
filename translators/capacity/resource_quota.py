"""What the remote's ResourceQuotas leave of the virtual node, and which of them are used up.

A Node has one number for a resource, and a quota bounds one namespace. So a quota is a bound of
the Node only where every remote namespace in which this node has pods is bounded for the resource.
The bound is then the sum of what the bounded namespaces of this home leave, those without pods yet
included. One namespace with pods and without a quota makes the resource unbounded: the pods of the
others then meet the quota in the remote, and say so.

- What bounds requests counts: ``cpu`` and ``requests.cpu``, ``requests.example.com/gpu``,
  ``hugepages-2Mi``, ``pods``, ``count/pods`` and the like. Limits (``limits.cpu``) bound nothing
  that a scheduler counts, and are only told of when they are used up.
- A quota with scopes does not bind every pod, and is left out.
- Of several quotas in one namespace the least leaves the most that can be had.
- What pods of others request in the namespace is used already. Our own requests are not subtracted:
  home's scheduler does that (as in `translators.capacity.node_capacity`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from translators.capacity.pod_requests import CPU, HUGE_PAGES, MEMORY, PODS, Amounts, parse_amount
from translators.objects import Object, name_of, namespace_of

#: Keys of ``spec.hard`` that name a resource plainly (pkg/quota/v1/evaluator/core/pods.go).
_PLAIN = (CPU, MEMORY, PODS, "ephemeral-storage")
_REQUESTS, _LIMITS = "requests.", "limits."


def quota_limits(quota: Object) -> Amounts:
    """What all pods of its namespace may request together, by resource."""
    found: Amounts = {}
    for key, quantity in _hard(quota).items():
        resource = _resource(key)
        if resource and not key.startswith(_LIMITS):
            hard = parse_amount(resource, quantity)
            found[resource] = min(hard, found.get(resource, hard))
    return found


def remaining(
    quotas: Mapping[str, Iterable[Object]],
    *,
    unmanaged: Mapping[str, Mapping[str, int]],
    namespaces_with_pods: Collection[str],
) -> Amounts:
    """What home's pods may request together, of the resources that are bounded.

    ``quotas`` and ``foreign`` (what others request) are by namespace; ``busy`` are the namespaces
    in which this node has pods.
    """
    by_namespace: dict[str, Amounts] = {}
    for namespace, several in quotas.items():
        used = unmanaged.get(namespace, {})
        room: Amounts = {}
        for quota in several:
            for resource, hard in quota_limits(quota).items():
                rest = max(0, hard - used.get(resource, 0))
                room[resource] = min(rest, room.get(resource, rest))
        by_namespace[namespace] = room
    found: Amounts = {}
    for room in by_namespace.values():
        for resource, rest in room.items():
            if all(
                resource in by_namespace.get(namespace, {}) for namespace in namespaces_with_pods
            ):
                found[resource] = found.get(resource, 0) + rest
    return found


def exhausted_keys(quota: Object, resources: Collection[str]) -> str:
    """Which bounds of a quota on these resources are reached, in words; "" where none is.

    The API server's own count (``status.used``) decides, as it does when a pod is made.
    """
    used = (quota.get("status") or {}).get("used") or {}
    keys = [
        key
        for key, hard in sorted(_hard(quota).items())
        if (resource := _resource(key)) in resources
        and parse_amount(resource, used.get(key, "0")) >= parse_amount(resource, hard)
    ]
    if not keys:
        return ""
    return f"namespace {namespace_of(quota)}, quota {name_of(quota)}: {', '.join(keys)}"


def _hard(quota: Object) -> Mapping[str, str]:
    spec = quota.get("spec") or {}
    scoped = spec.get("scopes") or spec.get("scopeSelector")
    return {} if scoped else (spec.get("hard") or {})


def _resource(key: str) -> str:
    """The resource of pods that a key of ``spec.hard`` bounds; "" where it bounds other things."""
    if key == "count/pods":
        return PODS
    if key in _PLAIN or key.startswith(HUGE_PAGES):
        return key
    for prefix in (_REQUESTS, _LIMITS):
        if key.startswith(prefix) and key != "requests.storage":  # That of volume claims.
            return key.removeprefix(prefix)
    return ""
