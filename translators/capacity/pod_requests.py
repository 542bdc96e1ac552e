"""Computes the resource requests of a pod as integers, as the schedulers of both clusters do.

The rules are those of PodRequests in k8s.io/component-helpers/resource, as the scheduler calls it
(CalculateResource in pkg/scheduler/framework/types.go):

- The sum over all containers and sidecars (restartable init containers), or, if that is more, the
  requests of an init container together with the sidecars before it.
- A container that is being resized counts with the maximum of its requested, actual and allocated
  resources; if the resize is infeasible, with the actual and allocated ones.
- Pod-level requests (CPU, memory, huge pages) replace the sum of the containers.
- The overhead of the runtime class is added. Every pod counts as 1 of ``pods``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from translators.object_accessors import Object
from translators.quantity import QuantityError, format_quantity, parse_quantity

#: Resource name to amount: CPU in millicores, others in whole units (bytes, pods, devices).
Amounts = dict[str, int]

CPU, MEMORY, PODS = "cpu", "memory", "pods"
HUGE_PAGES = "hugepages-"
#: Status fields with the resources of containers that can be resized.
_STATUSES = ("containerStatuses", "initContainerStatuses")
#: Resources formatted with Ki, Mi, Gi; huge pages too.
_IN_BYTES = (MEMORY, "ephemeral-storage")
#: Parsed quantities that are cached: pods of one template have the same ones.
_CACHED_MAX = 4096


def requests_of(pod: Object) -> Amounts:
    """The pod's requests; resources without a request are omitted."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    allocated_by_name = dict(_allocated_resources(status))
    infeasible = _is_infeasible(status)

    def effective(container: Object) -> Amounts:
        allocated = allocated_by_name.get(container.get("name", ""))
        requests = _requests(container)
        if allocated is None:
            return requests
        return _maximum(allocated if infeasible else [requests, *allocated])

    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, effective(container))
    sidecars: Amounts = {}
    at_start: Amounts = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            requests = effective(container)
            _add(total, requests)
            _add(sidecars, requests)
            together = {resource: sidecars[resource] for resource in requests}
        else:
            requests = _requests(container)
            together = {
                resource: millis + sidecars.get(resource, 0)
                for resource, millis in requests.items()
            }
        # Of other resources it already has at least what the sidecars request.
        _raise_to(at_start, together)
    _raise_to(total, at_start)
    for resource, millis in _requests(spec).items():
        if resource in (CPU, MEMORY) or resource.startswith(HUGE_PAGES):
            total[resource] = millis
    _add(total, _millis_of(spec.get("overhead")))
    requested = {resource: _whole(resource, millis) for resource, millis in total.items() if millis}
    return requested | {PODS: 1}


def same_allocated_resources(before: Object, after: Object) -> bool:
    """Whether two statuses of a pod agree in everything that `requests_of` reads."""
    for kind in _STATUSES:
        old, new = before.get(kind), after.get(kind)
        if old is not new and _resource_fields(old) != _resource_fields(new):
            return False
    conditions = before.get("conditions") is after.get("conditions")
    return conditions or _is_infeasible(before) == _is_infeasible(after)


def parse_resource_list(resources: Mapping[str, str] | None) -> Amounts:
    return {
        resource: _whole(resource, millis) for resource, millis in _millis_of(resources).items()
    }


def parse_amount(resource: str, quantity: str) -> int:
    """The amount of one quantity. Raises QuantityError."""
    return _whole(resource, ceil(parse_quantity(quantity) * 1000))


def is_in_bytes(resource: str) -> bool:
    return resource in _IN_BYTES or resource.startswith(HUGE_PAGES)


def format_amount(resource: str, amount: int) -> str:
    """The canonical quantity: ``1500m``, ``3Gi``, ``110``."""
    if resource == CPU:
        return format_quantity(Fraction(amount, 1000))
    return format_quantity(Fraction(amount), binary=is_in_bytes(resource))


@lru_cache(maxsize=_CACHED_MAX)
def _millis(quantity: str) -> int:
    try:
        return ceil(parse_quantity(quantity) * 1000)
    except QuantityError:
        return 0  # Every API server rejects it.


def _millis_of(resources: Mapping[str, str] | None) -> Amounts:
    return {resource: _millis(str(quantity)) for resource, quantity in (resources or {}).items()}


def _whole(resource: str, millis: int) -> int:
    """Whole units, rounded up as Quantity.Value does."""
    return millis if resource == CPU else -(-millis // 1000)


def _requests(container: Object) -> Amounts:
    return _millis_of((container.get("resources") or {}).get("requests"))


def _allocated_resources(status: Object) -> Iterator[tuple[str, list[Amounts]]]:
    """By container name: the actual and the allocated resources, if a kubelet reports them."""
    for kind in _STATUSES:
        for container in status.get(kind) or ():
            if container.get("resources") is not None:
                granted = _millis_of(container.get("allocatedResources"))
                yield container["name"], [_requests(container), granted]


def _resource_fields(statuses: Iterable[Object] | None) -> list[tuple[Any, ...]]:
    """The fields of container statuses that `requests_of` reads."""
    read = ("name", "resources", "allocatedResources")
    return [tuple(map(container.get, read)) for container in statuses or ()]


def _is_infeasible(status: Object) -> bool:
    return any(
        condition.get("type") == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions") or ()
    )


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, millis in more.items():
        total[resource] = total.get(resource, 0) + millis


def _maximum(alternatives: Iterable[Mapping[str, int]]) -> Amounts:
    maximum: Amounts = {}
    for amounts in alternatives:
        _raise_to(maximum, amounts)
    return maximum


def _raise_to(maximum: Amounts, amounts: Mapping[str, int]) -> None:
    for resource, millis in amounts.items():
        maximum[resource] = max(maximum.get(resource, millis), millis)
