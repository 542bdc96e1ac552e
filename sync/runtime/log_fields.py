"""Structured fields of log lines, which name the object that a line is about.

Callers pass them as ``extra=name_fields(...)``; `bridge.observability.log_output` writes them to
JSON lines. `NODE` is the virtual node that a task works for; tasks inherit it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar

from sync.kube.api_errors import KubeError
from translators.object_accessors import Object, name_of, namespace_of, uid_of

#: The virtual node's name; "" outside of a join.
NODE: ContextVar[str] = ContextVar("NODE", default="")

#: The log of what the bridge changes in the clusters.
changes = logging.getLogger("cluster-bridge.changes")

#: The attribute of a log record that has the fields.
FIELDS = "about"


def name_fields(
    kind: str, name: str = "", *, namespace: str = "", uid: str = "", cluster: str = ""
) -> Mapping[str, Mapping[str, str]]:
    """Fields from a kind and a name; empty ones are not logged."""
    fields = {"cluster": cluster, "kind": kind, "namespace": namespace, "name": name, "uid": uid}
    return {FIELDS: fields}


def object_fields(kind: str, obj: Object, *, cluster: str = "") -> Mapping[str, Mapping[str, str]]:
    """Fields from an object; ``cluster`` is where the object is, or where it was changed."""
    return name_fields(
        kind, name_of(obj), namespace=namespace_of(obj), uid=uid_of(obj), cluster=cluster
    )


def key_fields(kind: str, key: object, error: object = None) -> Mapping[str, Mapping[str, str]]:
    """Fields from a key of a work queue, which has a namespace and a name or is a name."""
    return name_fields(
        kind,
        str(getattr(key, "name", key)),
        namespace=str(getattr(key, "namespace", "")),
        uid=str(getattr(key, "uid", "")),
        cluster=error.side if isinstance(error, KubeError) else "",
    )
