"""The permissions of placement by policy: a bridge's to publish its remote's free room at home."""

from __future__ import annotations

from bridge.rbac.permissions import NODE, Permission
from sync.kube.api_resources import CONFIG_MAPS
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
)
