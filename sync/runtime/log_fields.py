"""What a log line is about, for those who read lines by program: fields beside its words.

A call gives them with ``extra=about(...)``; `bridge.observability.logging` shows them where lines
are JSON. Nothing here is a value of an object: kinds, names, UIDs, and which cluster. `NODE` is the
virtual node in whose service a task runs; tasks inherit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from sync.kube.errors import KubeError
from translators.objects import Object, name_of, namespace_of, uid_of

#: The virtual node's name; "" where nothing is known of one.
NODE: ContextVar[str] = ContextVar("NODE", default="")

#: The attribute of a log record that has the fields.
FIELDS = "about"


def name_fields(
    kind: str,
    name: str = "",
    *,
    namespace: str = "",
    uid: str = "",
    cluster: str = "",
) -> Mapping[str, Mapping[str, str]]:
    """For ``extra``; what is empty is not shown."""
    found = {"cluster": cluster, "kind": kind, "namespace": namespace, "name": name, "uid": uid}
    return {FIELDS: found}


def object_fields(kind: str, obj: Object, *, cluster: str = "") -> Mapping[str, Mapping[str, str]]:
    """The same, of an object; ``cluster`` is where the object is, or where something was done."""
    return name_fields(
        kind, name_of(obj), namespace=namespace_of(obj), uid=uid_of(obj), cluster=cluster
    )


def key_fields(kind: str, key: object, error: object = None) -> Mapping[str, Mapping[str, str]]:
    """The same, of a key of a queue, which has a namespace and a name or is a name; and of a
    request that failed."""
    return name_fields(
        kind,
        str(getattr(key, "name", key)),
        namespace=str(getattr(key, "namespace", "")),
        uid=str(getattr(key, "uid", "")),
        cluster=error.side if isinstance(error, KubeError) else "",
    )
