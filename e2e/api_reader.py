"""Reads of API servers as `kubectl get -o json` has them, over connections that stay open.

Tests look until something is true, five times a second: a kubectl for each look would take most of
two cores, and each asks for the server's kinds first. What people do with kubectl, and how it shows
things, tests do with kubectl (`Cluster.kubectl`).

The credential is the first of the kubeconfig, a client certificate as `e2e.clusters` makes them.
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

#: Seconds for an answer, and for a connection.
_TIMEOUT = urllib3.Timeout(connect=10.0, read=30.0)
#: A connection that the server has closed meanwhile shows when it is used: once more, on a new one.
_RETRIES = urllib3.Retry(total=1, status=0, redirect=0, backoff_factor=0.0)


class Kind(NamedTuple):
    """Where objects of a kind are."""

    plural: str
    group: str = "api/v1"
    namespaced: bool = True


_KINDS = (
    Kind("configmaps"),
    Kind("events"),
    Kind("namespaces", namespaced=False),
    Kind("nodes", namespaced=False),
    Kind("pods"),
    Kind("secrets"),
    Kind("serviceaccounts"),
    Kind("services"),
    Kind("daemonsets", "apis/apps/v1"),
    Kind("deployments", "apis/apps/v1"),
    Kind("statefulsets", "apis/apps/v1"),
    Kind("jobs", "apis/batch/v1"),
    Kind("leases", "apis/coordination.k8s.io/v1"),
    Kind("endpointslices", "apis/discovery.k8s.io/v1"),
    Kind("poddisruptionbudgets", "apis/policy/v1"),
    Kind("roles", "apis/rbac.authorization.k8s.io/v1"),
    Kind("rolebindings", "apis/rbac.authorization.k8s.io/v1"),
    Kind("clusterroles", "apis/rbac.authorization.k8s.io/v1", namespaced=False),
    Kind("clusterrolebindings", "apis/rbac.authorization.k8s.io/v1", namespaced=False),
    Kind("certificatesigningrequests", "apis/certificates.k8s.io/v1", namespaced=False),
)
#: By the names that kubectl takes.
_NAMED = {
    **{kind.plural: kind for kind in _KINDS},
    **{kind.plural.removesuffix("s"): kind for kind in _KINDS},
    "csr": next(kind for kind in _KINDS if kind.plural == "certificatesigningrequests"),
}


def knows(kind: str) -> bool:
    """Whether the kind is one of those that tests look at again and again."""
    return kind.lower() in _NAMED


def listed(
    cluster: Cluster,
    kind: str,
    *,
    namespace: str | None = None,
    selector: str | None = None,
    every: bool = False,
    managed_fields: bool = False,
) -> list[Json]:
    """The objects of one kind that `knows`: in ``default`` unless a namespace is given, or all.

    :raises CommandFailed: the server does not answer, or refuses.
    """
    path = _path(kind, None if every else namespace or "default")
    found = _get(cluster, path + (f"?{urlencode({'labelSelector': selector})}" if selector else ""))
    kind_of_items = str(found["kind"]).removesuffix("List")
    return [
        _object(item | {"kind": kind_of_items, "apiVersion": found["apiVersion"]}, managed_fields)
        for item in found["items"]
    ]


def one(cluster: Cluster, kind: str, name: str, *, namespace: str | None = None) -> Json:
    """One object of a kind that `knows`, in ``default`` unless a namespace is given.

    :raises CommandFailed: it is not there, or the server does not answer.
    """
    return _object(_get(cluster, f"{_path(kind, namespace or 'default')}/{name}"), False)


def _path(kind: str, namespace: str | None) -> str:
    where = _NAMED[kind.lower()]
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
        said = answer.data[:300].decode("utf-8", "replace")
        raise CommandFailed(
            f"GET {path}: {answer.status} {said}", where=f"the {cluster.name} cluster"
        )
    found: Json = orjson.loads(answer.data)
    return found


@functools.lru_cache(maxsize=32)
def _pool(kubeconfig: Path, changed: int) -> tuple[str, urllib3.PoolManager]:
    """The server, and its connections; anew when the file has changed."""
    del changed
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    server = str(config["clusters"][0]["cluster"]["server"])
    context: ssl.SSLContext | None = None
    if server.startswith("https:"):
        server, context = credential(kubeconfig)
    return server, urllib3.PoolManager(maxsize=4, ssl_context=context)
