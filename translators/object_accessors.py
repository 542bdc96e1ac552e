"""Types for API objects and their identifiers, and accessors for common fields."""

from __future__ import annotations

from typing import Any, NewType

#: An API object as decoded from JSON, with all fields.
Object = dict[str, Any]

HomeNamespace = NewType("HomeNamespace", str)
RemoteNamespace = NewType("RemoteNamespace", str)
HomeUid = NewType("HomeUid", str)
RemoteUid = NewType("RemoteUid", str)


def text_or_empty(value: Any) -> str:
    """A value that should be text; "" if it is not."""
    return value if isinstance(value, str) else ""


def metadata(obj: Object) -> Object:
    """The object's metadata; {} if it has none."""
    meta: Object = obj.get("metadata") or {}
    return meta


def name_of(obj: Object) -> str:
    return str(metadata(obj).get("name", ""))


def namespace_of(obj: Object) -> str:
    """``metadata.namespace``; "" for a cluster-scoped object."""
    return str(metadata(obj).get("namespace", ""))


def namespaced_name(obj: Object) -> str:
    """``namespace/name``; only the name of a cluster-scoped object."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def uid_of(obj: Object) -> str:
    return str(metadata(obj).get("uid", ""))


def is_deleting(obj: Object) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))


def controller_of(obj: Object) -> Object | None:
    """The owner reference of the object's controller; None if it has no controller."""
    owners = metadata(obj).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def is_daemonset_pod(pod: Object) -> bool:
    return (controller_of(pod) or {}).get("kind") == "DaemonSet"


def condition_of(obj: Object, condition_type: str) -> Object:
    """The status condition of this type; {} if there is none."""
    conditions: list[Object] = (obj.get("status") or {}).get("conditions") or []
    return next((it for it in conditions if it.get("type") == condition_type), {})


def is_ready(obj: Object) -> bool:
    """Whether the Ready condition of a pod or a node is True."""
    return bool(condition_of(obj, "Ready").get("status") == "True")
