"""What a kubelet refuses before it runs a pod: one that asks for more than its node has.

Home's scheduler places no such pod; one that is bound by hand would wait in the remote for ever,
and home's scheduler would count what it asks for. The virtual node refuses only what is more than
all of the remote's nodes have together, whether they are Ready or not: what does not fit now may
fit later, and a pod that may yet run is not given up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from translators.quantity import QuantityError, parse
from translators.types import Object

#: Resources in the order in which a kubelet names the first that lacks; others come after.
_FIRST = ("cpu", "memory", "ephemeral-storage")


def offered(nodes: Iterable[Object]) -> dict[str, Fraction]:
    """The allocatable resources of all nodes together; {} where there are none."""
    total: defaultdict[str, Fraction] = defaultdict(Fraction)
    for node in nodes:
        for resource, quantity in ((node.get("status") or {}).get("allocatable") or {}).items():
            total[resource] += _value(quantity)
    return dict(total)


def rejection(home: Object, has: Mapping[str, Fraction]) -> tuple[str, str] | None:
    """(reason, message) as a kubelet's where the pod asks for more than ``has``, else None.

    The words are those of pkg/kubelet/lifecycle/predicate.go. Nothing is refused where nothing is
    known of the nodes.
    """
    if not has:
        return None
    asked = _requests(home)
    for resource in sorted(asked, key=lambda it: (it not in _FIRST, it)):
        if asked[resource] > has.get(resource, Fraction(0)):
            numbers = [_number(resource, it.get(resource, Fraction(0))) for it in (asked, has)]
            return f"OutOf{resource}", (
                f"Pod was rejected: Node didn't have enough resource: {resource}, "
                f"requested: {numbers[0]}, used: 0, capacity: {numbers[1]}"
            )
    return None


def _requests(home: Object) -> dict[str, Fraction]:
    """What the pod asks for at least: all its containers together, or what it says as a whole."""
    spec = home.get("spec") or {}
    asked: defaultdict[str, Fraction] = defaultdict(Fraction)
    for container in spec.get("containers") or ():
        for resource, quantity in (
            (container.get("resources") or {}).get("requests") or {}
        ).items():
            asked[resource] += _value(quantity)
    whole = ((spec.get("resources") or {}).get("requests") or {}).items()
    return dict(asked) | {resource: _value(quantity) for resource, quantity in whole}


def _value(quantity: str) -> Fraction:
    try:
        return parse(quantity)
    except QuantityError:
        return Fraction(0)


def _number(resource: str, value: Fraction) -> int:
    """As a kubelet counts: CPU in thousandths."""
    return int(value * 1000) if resource == "cpu" else int(value)
