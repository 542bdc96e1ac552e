"""Small objects for tests, with no more in them than their kind needs."""

from __future__ import annotations

from sync.kube.api_resources import Object


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
    name: str, namespace: str = "default", *, labels: dict[str, str] | None = None, node: str = ""
) -> Object:
    """A pod of one container, bound where a node is given."""
    spec: Object = {"containers": [{"name": "main", "image": "busybox:1"}]}
    if node:
        spec["nodeName"] = node
    return _object("Pod", name, namespace, labels) | {"spec": spec}


def service_account(name: str, namespace: str = "default") -> Object:
    """A ServiceAccount."""
    return _object("ServiceAccount", name, namespace, None)


def node(name: str) -> Object:
    """A node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def event(about: Object, reason: str, *, message: str = "", count: int = 1) -> Object:
    """A pod's status as written by a kubelet."""
    meta = about["metadata"]
    return _object("Event", f"{meta['name']}.{reason.lower()}", meta["namespace"], None) | {
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "fieldPath": "spec.containers{main}",
        },
        "type": "Normal",
        "reason": reason,
        "message": message or f"{reason} it",
        "source": {"component": "kubelet", "host": "worker"},
        "firstTimestamp": "2030-01-01T00:00:01Z",
        "lastTimestamp": f"2030-01-01T00:00:{count:02}Z",
        "count": count,
        "eventTime": None,
        "reportingComponent": "kubelet",
        "reportingInstance": "worker",
    }


def _object(kind: str, name: str, namespace: str, labels: dict[str, str] | None) -> Object:
    meta: Object = {"name": name, "namespace": namespace}
    if labels:
        meta["labels"] = labels
    return {"apiVersion": "v1", "kind": kind, "metadata": meta}
