"""The ConfigMap at home in which a bridge publishes the free room of its remote.

It belongs to the Node, so that home's garbage collector deletes it with the Node. ``data.room`` has
the groups of nodes (`translators.fit.node_groups`), less what pods need that are bound to the
virtual node and have no node in the remote yet; ``data.homeVersion`` the newest resource version of
a home pod that the room accounts for: a pod that was bound before needs no more room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from translators.fit.node_groups import NodeGroup, RoomError, from_json, to_json
from translators.object_accessors import Object, metadata, name_of, uid_of
from translators.ownership_labels import DOMAIN

#: Whether a bridge publishes: with ``auto`` where home serves PlacementPolicies or Kueue's
#: AdmissionChecks.
PublishRoom = Literal["auto", "on", "off"]
#: Minutes after which a bridge with ``auto`` has noticed that home serves one of them, also without
#: the permission to watch that.
NOTICED_MINUTES = 6
#: Home's namespace of what bridges share.
NAMESPACE = "cluster-bridge"
#: Selects the ConfigMaps.
LABEL_ROOM = f"{DOMAIN}/room"
#: On the Node of a virtual node whose bridge publishes, with the mode; absent with ``off``.
ANNOTATION_PUBLISHES = f"{DOMAIN}/publish-room"
_PREFIX = "room-"


@dataclass(frozen=True, slots=True)
class PublishedRoom:
    """The content of a ConfigMap."""

    groups: tuple[NodeGroup, ...]
    home_version: int = 0
    """0 if unknown."""
    node_uid: str = ""
    """The UID of the Node that the ConfigMap belongs to; "" if it belongs to none."""

    def is_of(self, node: Object) -> bool:
        """Whether the room is that of this Node, and not of an earlier one of the name, whose
        ConfigMap home's garbage collector has not deleted yet."""
        return self.node_uid in ("", uid_of(node))


def config_map_name(node: str) -> str:
    """The ConfigMap's name for a virtual node."""
    return _PREFIX + node


def node_of(config_map: Object) -> str:
    """The virtual node that the ConfigMap is for; "" if its name names none."""
    name = name_of(config_map)
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def publishes(node: Object) -> bool:
    """Whether the virtual node's bridge publishes its room once it is needed."""
    return ANNOTATION_PUBLISHES in (metadata(node).get("annotations") or {})


def room_config_map(node: Object, groups: Iterable[NodeGroup], home_version: int) -> Object:
    """The ConfigMap for a virtual node (its home object)."""
    meta = node["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(meta["name"]),
            "namespace": NAMESPACE,
            "labels": {LABEL_ROOM: "true"},
            "ownerReferences": [owner],
        },
        "data": {"room": to_json(groups), "homeVersion": str(home_version)},
    }


def read_room(config_map: Object) -> PublishedRoom:
    """The content of a ConfigMap, each field verified. Raises RoomError."""
    data = config_map.get("data") or {}
    if "room" not in data:
        raise RoomError("the ConfigMap has no key room")
    version = str(data.get("homeVersion") or "0")
    owners = metadata(config_map).get("ownerReferences") or ()
    return PublishedRoom(
        from_json(str(data["room"])),
        int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else 0,
        next((str(it.get("uid")) for it in owners if it.get("kind") == "Node"), ""),
    )
