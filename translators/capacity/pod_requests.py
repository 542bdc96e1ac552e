"""What a pod requests, in whole numbers, as the schedulers of both clusters count it.

The rules are those of PodRequests in k8s.io/component-helpers/resource, as the scheduler calls it
(CalculateResource in pkg/scheduler/framework/types.go):

- All containers together, sidecars (restartable init containers) included; or, where that is more,
  what is wanted at once while one of the init containers runs beside the sidecars before it.
- A container that is being resized counts with the most of what it asks for, has, and was granted;
  one whose resize is infeasible, with what it has.
- What the pod asks for as a whole (CPU, memory, huge pages) stands for its containers' sum.
- The overhead of its runtime class comes on top. Every pod counts 1 of ``pods``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from translators.objects import Object
from translators.quantity import QuantityError, format_quantity, parse_quantity

#: Resource name → amount: CPU in thousandths, all else in whole units (bytes, pods, devices).
Amounts = dict[str, int]

CPU, MEMORY, PODS = "cpu", "memory", "pods"
HUGE_PAGES = "hugepages-"
#: Where a pod's status tells of containers that can be resized.
_STATUSES = ("containerStatuses", "initContainerStatuses")
#: Resources that people know in Ki, Mi, Gi; huge pages too.
_IN_BYTES = (MEMORY, "ephemeral-storage")
#: Different texts of quantities: pods of one template have the same ones.
_TEXTS = 4096


def requests_of(pod: Object) -> Amounts:
    """What the pod requests; a resource of which it wants none is left out."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    granted = dict(_granted(status))
    infeasible = _is_infeasible(status)

    def wanted(container: Object) -> Amounts:
        found = granted.get(container.get("name", ""))
        asked = _requests(container)
        if found is None:
            return asked
        return _most(found if infeasible else [asked, *found])

    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, wanted(container))
    sidecars: Amounts = {}
    at_start: Amounts = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            asked = wanted(container)
            _add(total, asked)
            _add(sidecars, asked)
            at_start = _most([at_start, sidecars])
        else:
            meanwhile = _requests(container)
            _add(meanwhile, sidecars)
            at_start = _most([at_start, meanwhile])
    total = _most([total, at_start])
    total |= {
        resource: millis for resource, millis in _requests(spec).items() if _is_pod_level(resource)
    }
    _add(total, _millis_of(spec.get("overhead")))
    found = {resource: _whole(resource, millis) for resource, millis in total.items() if millis}
    return found | {PODS: 1}


def same_allocated_resources(before: Object, after: Object) -> bool:
    """Whether two statuses of a pod of one spec say the same of what `of_pod` reads in them."""
    for kind in _STATUSES:
        old, new = before.get(kind), after.get(kind)
        if old is not new and _asked(old) != _asked(new):
            return False
    conditions = before.get("conditions") is after.get("conditions")
    return conditions or _is_infeasible(before) == _is_infeasible(after)


def parse_resource_list(resources: Mapping[str, str] | None) -> Amounts:
    """A ResourceList, such as a node's ``status.allocatable``."""
    return {
        resource: _whole(resource, millis) for resource, millis in _millis_of(resources).items()
    }


def parse_amount(resource: str, quantity: str) -> int:
    """One quantity of a resource. Raises QuantityError."""
    return _whole(resource, ceil(parse_quantity(quantity) * 1000))


def is_in_bytes(resource: str) -> bool:
    """Whether amounts of the resource are bytes."""
    return resource in _IN_BYTES or resource.startswith(HUGE_PAGES)


def format_amount(resource: str, amount: int) -> str:
    """The canonical quantity: ``1500m``, ``3Gi``, ``110``."""
    if resource == CPU:
        return format_quantity(Fraction(amount, 1000))
    return format_quantity(Fraction(amount), binary=is_in_bytes(resource))


# -- thousandths: an API server keeps nothing finer (SetDefaults_ResourceList) ---------------


@lru_cache(maxsize=_TEXTS)
def _millis(quantity: str) -> int:
    try:
        return ceil(parse_quantity(quantity) * 1000)
    except QuantityError:
        return 0  # No API server lets it pass.


def _millis_of(resources: Mapping[str, str] | None) -> Amounts:
    return {resource: _millis(str(quantity)) for resource, quantity in (resources or {}).items()}


def _whole(resource: str, millis: int) -> int:
    """Rounded up, as Value of a Quantity is."""
    return millis if resource == CPU else -(-millis // 1000)


def _requests(container: Object) -> Amounts:
    return _millis_of((container.get("resources") or {}).get("requests"))


def _granted(status: Object) -> Iterator[tuple[str, list[Amounts]]]:
    """By container's name, what it has and what it was granted, where a kubelet tells."""
    for kind in _STATUSES:
        for container in status.get(kind) or ():
            if container.get("resources") is not None:
                granted = _millis_of(container.get("allocatedResources"))
                yield container["name"], [_requests(container), granted]


def _asked(statuses: Iterable[Object] | None) -> list[tuple[Any, ...]]:
    """What is read of containers' statuses."""
    read = ("name", "resources", "allocatedResources")
    return [tuple(map(container.get, read)) for container in statuses or ()]


def _is_infeasible(status: Object) -> bool:
    return any(
        condition.get("type") == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions") or ()
    )


def _is_pod_level(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(HUGE_PAGES)


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, millis in more.items():
        total[resource] = total.get(resource, 0) + millis


def _most(several: Iterable[Mapping[str, int]]) -> Amounts:
    found: Amounts = {}
    for amounts in several:
        for resource, millis in amounts.items():
            found[resource] = max(found.get(resource, millis), millis)
    return found
