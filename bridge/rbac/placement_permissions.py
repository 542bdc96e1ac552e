"""The permissions of placement by policy at home: the placer's, and a bridge's to publish its
remote's free room and to release pods without a placer.
"""

from __future__ import annotations

from bridge.rbac.permissions import NODE, Permission
from sync.kube.api_resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PLACEMENT_POLICIES,
    PODS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
)
from sync.placement import placer_lease, room_publisher
from translators.fit import published_room

#: Optional at home, for the bridge's account: without these the placer does not know the remote's
#: room. The garbage collector deletes the ConfigMap with the Node.
HOME_ROOM = (
    Permission(CONFIG_MAPS, ("create",), namespace=published_room.NAMESPACE),
    Permission(
        CONFIG_MAPS,
        ("patch",),
        namespace=published_room.NAMESPACE,
        names=(published_room.config_map_name(NODE),),
    ),
    # To publish as soon as the room is needed (`--publish-room auto`).
    Permission(
        CUSTOM_RESOURCE_DEFINITIONS,
        ("list", "watch"),
        names=tuple(str(it) for it in room_publisher.READ_BY),
    ),
    # To see whether a placer runs.
    Permission(LEASES, ("get",), namespace=published_room.NAMESPACE, names=(placer_lease.NAME,)),
)
#: The placer's account at home. It has no access to any remote.
PLACER = (
    Permission(NODES, ("list", "watch")),
    Permission(NAMESPACES, ("list", "watch")),
    # A pod is placed by narrowing its node selection and removing its gate.
    Permission(PODS, ("list", "watch", "patch")),
    # Pods that return to an earlier tier (`failback` of a policy), or whose virtual node was lost
    # before they were bound.
    Permission(PODS, ("create",), "eviction"),
    Permission(PLACEMENT_POLICIES, ("list", "watch")),
    Permission(PLACEMENT_POLICIES, ("patch",), "status"),
    Permission(EVENTS, ("create", "get", "patch")),
    # Where a pod's volumes are.
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get",)),
    Permission(PERSISTENT_VOLUMES, ("get",)),
    Permission(CONFIG_MAPS, ("list", "watch"), namespace=published_room.NAMESPACE),
    Permission(LEASES, ("create",), namespace=published_room.NAMESPACE),
    Permission(
        LEASES,
        ("get", "patch"),
        namespace=published_room.NAMESPACE,
        names=(placer_lease.NAME,),
    ),
    # To authenticate and authorise those who read the metrics.
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
#: Optional, for a bridge's account: releases held pods when no placer runs
#: (`sync.placement.placer_absence`). RBAC cannot limit the patch to gates.
RELEASE = (Permission(PODS, ("list", "patch")),)
