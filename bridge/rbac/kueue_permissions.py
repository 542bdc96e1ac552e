"""The permissions of Kueue's admission check, at home alone: `bridge placement run --kueue`."""

from __future__ import annotations

from bridge.rbac.permissions import Permission
from sync.kube.api_resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    KUEUE_ADMISSION_CHECKS,
    KUEUE_RESOURCE_FLAVORS,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
)
from translators.fit import published_room

_READ = ("list", "watch")

KUEUE = (
    # Whether Kueue is installed (`--kueue auto`).
    Permission(CUSTOM_RESOURCE_DEFINITIONS, _READ, names=(str(KUEUE_WORKLOADS),)),
    Permission(KUEUE_ADMISSION_CHECKS, _READ),
    Permission(KUEUE_ADMISSION_CHECKS, ("patch",), "status"),
    Permission(KUEUE_RESOURCE_FLAVORS, _READ),
    Permission(KUEUE_WORKLOADS, _READ),
    Permission(KUEUE_WORKLOADS, ("patch",), "status"),
    # The virtual nodes, the room of their remotes, and the pods that home counts on them.
    Permission(NODES, _READ),
    Permission(PODS, _READ),
    Permission(CONFIG_MAPS, _READ, namespace=published_room.NAMESPACE),
)
