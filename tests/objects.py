"""Small objects for tests, with no more in them than their kind needs."""

from __future__ import annotations

from sync.kube.resources import Object


def config_map(
    name: str,
    namespace: str = "default",
    *,
    labels: dict[str, str] | None = None,
    data: dict[str, str] | None = None,
) -> Object:
    """A ConfigMap."""
    return _object("ConfigMap", name, namespace, labels) | {"data": data or {}}


def secret(name: str, namespace: str = "default", *, data: dict[str, str] | None = None) -> Object:
    """A Secret; the values are base64."""
    return _object("Secret", name, namespace, None) | {"data": data or {}}


def pod(
    name: str,
    namespace: str = "default",
    *,
    labels: dict[str, str] | None = None,
    node: str = "",
) -> Object:
    """A pod of one container, bound where a node is given."""
    spec: Object = {"containers": [{"name": "main", "image": "busybox:1"}]}
    if node:
        spec["nodeName"] = node
    return _object("Pod", name, namespace, labels) | {"spec": spec}


def node(name: str) -> Object:
    """A node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def _object(kind: str, name: str, namespace: str, labels: dict[str, str] | None) -> Object:
    meta: Object = {"name": name, "namespace": namespace}
    if labels:
        meta["labels"] = labels
    return {"apiVersion": "v1", "kind": kind, "metadata": meta}
