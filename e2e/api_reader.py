"""Reads objects as `kubectl get -o json` prints them, over kept connections.

Tests poll five times a second: one kubectl per poll would use most of two cores, since each first
discovers the server's resources. Tests of commands and output use kubectl (`Cluster.kubectl`).

The credential is the first of the kubeconfig, a client certificate as written by `e2e.clusters`.
Thread-safe.
"""

from __future__ import annotations

import functools
import ssl
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson
import urllib3
import yaml

from e2e.bench.pods.benchmark_client import credential
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import CommandFailed

Json = dict[str, Any]

#: Seconds to wait for a connection, and for a response.
_TIMEOUT = urllib3.Timeout(connect=10.0, read=30.0)
#: Repeats a request once on a new connection if the server had closed the kept one.
_RETRIES = urllib3.Retry(total=1, status=0, redirect=0, backoff_factor=0.0)


class Resource(NamedTuple):
    """The path of a resource's objects."""

    plural: str
    group: str = "api/v1"
    namespaced: bool = True


_KINDS = (
    Resource("configmaps"),
    Resource("events"),
    Resource("namespaces", namespaced=False),
    Resource("nodes", namespaced=False),
    Resource("persistentvolumeclaims"),
    Resource("persistentvolumes", namespaced=False),
    Resource("pods"),
    Resource("secrets"),
    Resource("serviceaccounts"),
    Resource("services"),
    Resource("daemonsets", "apis/apps/v1"),
    Resource("deployments", "apis/apps/v1"),
    Resource("statefulsets", "apis/apps/v1"),
    Resource("jobs", "apis/batch/v1"),
    Resource("leases", "apis/coordination.k8s.io/v1"),
    Resource("endpointslices", "apis/discovery.k8s.io/v1"),
    Resource("poddisruptionbudgets", "apis/policy/v1"),
    Resource("roles", "apis/rbac.authorization.k8s.io/v1"),
    Resource("rolebindings", "apis/rbac.authorization.k8s.io/v1"),
    Resource("clusterroles", "apis/rbac.authorization.k8s.io/v1", namespaced=False),
    Resource("clusterrolebindings", "apis/rbac.authorization.k8s.io/v1", namespaced=False),
    Resource("certificatesigningrequests", "apis/certificates.k8s.io/v1", namespaced=False),
)
#: By plural and singular name, as in kubectl.
_RESOURCES = {
    **{kind.plural: kind for kind in _KINDS},
    **{kind.plural.removesuffix("s"): kind for kind in _KINDS},
    "csr": next(kind for kind in _KINDS if kind.plural == "certificatesigningrequests"),
}


def is_supported(kind: str) -> bool:
    """Whether this module can read the resource."""
    return kind.lower() in _RESOURCES


def list_objects(
    cluster: Cluster,
    kind: str,
    *,
    namespace: str | None = None,
    selector: str | None = None,
    all_namespaces: bool = False,
    managed_fields: bool = False,
) -> list[Json]:
    """The objects of a supported resource, in ``default`` unless a namespace is given, or in all.

    :raises CommandFailed: the server does not answer, or rejects the request.
    """
    path = _path(kind, None if all_namespaces else namespace or "default")
    found = _get(cluster, path + (f"?{urlencode({'labelSelector': selector})}" if selector else ""))
    kind_of_items = str(found["kind"]).removesuffix("List")
    return [
        _object(item | {"kind": kind_of_items, "apiVersion": found["apiVersion"]}, managed_fields)
        for item in found["items"]
    ]


def get_object(cluster: Cluster, kind: str, name: str, *, namespace: str | None = None) -> Json:
    """One object of a supported resource, in ``default`` unless a namespace is given.

    :raises CommandFailed: the object does not exist, or the server does not answer.
    """
    return _object(_get(cluster, f"{_path(kind, namespace or 'default')}/{name}"), False)


def _path(kind: str, namespace: str | None) -> str:
    where = _RESOURCES[kind.lower()]
    inside = f"namespaces/{namespace}/" if namespace and where.namespaced else ""
    return f"/{where.group}/{inside}{where.plural}"


def _object(obj: Json, managed_fields: bool) -> Json:
    if not managed_fields:
        obj["metadata"].pop("managedFields", None)
    return obj


def _get(cluster: Cluster, path: str) -> Json:
    server, pool = _pool(cluster.kubeconfig, cluster.kubeconfig.stat().st_mtime_ns)
    try:
        answer = pool.request("GET", server + path, timeout=_TIMEOUT, retries=_RETRIES)
    except urllib3.exceptions.HTTPError as error:
        raise CommandFailed(f"GET {path}: {error}", where=f"the {cluster.name} cluster") from error
    if answer.status != 200:
        text = answer.data[:300].decode("utf-8", "replace")
        raise CommandFailed(
            f"GET {path}: {answer.status} {text}", where=f"the {cluster.name} cluster"
        )
    found: Json = orjson.loads(answer.data)
    return found


@functools.lru_cache(maxsize=32)
def _pool(kubeconfig: Path, changed: int) -> tuple[str, urllib3.PoolManager]:
    """The server and its connections; new ones after a change of the file."""
    del changed
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    server = str(config["clusters"][0]["cluster"]["server"])
    context: ssl.SSLContext | None = None
    if server.startswith("https:"):
        server, context = credential(kubeconfig)
    return server, urllib3.PoolManager(maxsize=4, ssl_context=context)
