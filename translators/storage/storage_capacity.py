"""Computes the CSIStorageCapacity objects by which home's scheduler knows how large a volume the
remote can provide.

There is one for each virtual node and StorageClass that the bridge serves. Its capacity is

- 0 if the class cannot be served: its remote class does not exist, for instance;
- that of the largest segment that the remote's own CSIStorageCapacity objects report for the remote
  class, and in prepared namespaces (`--remote-namespaces`) no more than the ResourceQuotas leave;
- `NO_LIMIT` if the remote reports neither.

A quota of a namespace that the bridge creates on demand is not part of it: a capacity counts for
all namespaces. The remote then rejects a larger volume, which is given back to home's scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction

from translators.capacity.resource_quota import hard_limits
from translators.derived_names import hashed_name
from translators.object_accessors import Object, name_of, namespace_of
from translators.ownership_labels import LABEL_NODE
from translators.quantity import format_quantity, parse_quantity
from translators.storage.storage_class import (
    StorageClassError,
    find_remote_class,
    is_served,
    parse_served_class,
)
from translators.virtual_node_identity import Identity

#: The namespace of the objects at home: that of the bridge's Leases.
NAMESPACE = "cluster-bridge"
#: The capacity of a class of which the remote reports none.
NO_LIMIT = "1Ei"
_HOSTNAME = "kubernetes.io/hostname"
_STORAGE = "requests.storage"


def storage_capacity_name(class_name: str, identity: Identity) -> str:
    """The name of the object for a class and the virtual node."""
    return hashed_name(class_name, f"{identity.node}/{class_name}")


def class_of_storage_capacity(capacity: Object) -> str:
    """The StorageClass that the object is for."""
    return str(capacity.get("storageClassName") or "")


def storage_capacity(
    storage_class: Object,
    identity: Identity,
    *,
    remote_classes: Collection[Object],
    remote_capacities: Iterable[Object],
    quotas: Iterable[Object] = (),
    namespaces: Collection[str] = (),
) -> Object | None:
    """The CSIStorageCapacity for a class of home; None if the bridge does not serve the class.
    ``quotas`` are those of the prepared ``namespaces``, if the bridge works in these alone."""
    if not is_served(storage_class):
        return None
    try:
        served = parse_served_class(storage_class)
        remote_class = name_of(find_remote_class(served, remote_classes))
    except StorageClassError:
        capacity = "0"
    else:
        of_class = [it for it in remote_capacities if it.get("storageClassName") == remote_class]
        limits = [*_largest_segment(of_class), *_left_by_quotas(quotas, namespaces, remote_class)]
        capacity = format_quantity(min(limits), binary=True) if limits else NO_LIMIT
    name = name_of(storage_class)
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "name": storage_capacity_name(name, identity),
            "namespace": NAMESPACE,
            "labels": {LABEL_NODE: identity.node_label},
        },
        "storageClassName": name,
        "nodeTopology": {"matchLabels": {_HOSTNAME: identity.node_label}},
        "capacity": capacity,
    }


def _largest_segment(capacities: Iterable[Object]) -> list[Fraction]:
    """The largest volume of any segment; none if the remote reports no segment. As in the
    scheduler, a segment without a capacity has none."""
    sizes = [
        parse_quantity(it.get("maximumVolumeSize") or it.get("capacity") or "0")
        for it in capacities
    ]
    return [max(sizes)] if sizes else []


def _left_by_quotas(
    quotas: Iterable[Object], namespaces: Collection[str], remote_class: str
) -> list[Fraction]:
    """The most that the quotas of any prepared namespace leave; none if one has no quota."""
    keys = (_STORAGE, f"{remote_class}.storageclass.storage.k8s.io/{_STORAGE}")
    left: dict[str, Fraction] = {}
    for quota in quotas:
        if namespace_of(quota) not in namespaces:
            continue
        used = (quota.get("status") or {}).get("used") or {}
        for key in keys:
            if hard := hard_limits(quota).get(key):
                rest = max(Fraction(0), parse_quantity(hard) - parse_quantity(used.get(key, "0")))
                left[namespace_of(quota)] = min(rest, left.get(namespace_of(quota), rest))
    return [max(left.values())] if left and left.keys() >= set(namespaces) else []
