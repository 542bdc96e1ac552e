"""A hostile tenant of the remote, who creates namespaces and objects with the bridge's labels and
annotations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one

_DOMAIN = "cluster-bridge.io"


def home_id(home: Cluster) -> str:
    """The home ID in the bridge's labels: every user of the remote can read it there."""
    uid = get_one(home, "namespace", "kube-system")["metadata"]["uid"]
    return hashlib.sha256(uid.encode()).hexdigest()[:16]


def owner_labels(bridged: Bridged) -> Json:
    """The labels of objects that the bridge creates."""
    return {f"{_DOMAIN}/home": home_id(bridged.home), f"{_DOMAIN}/node": bridged.node}


def origin(bridged: Bridged, name: str, uid: str = "guessed") -> Json:
    """The annotations of objects that the bridge creates."""
    return {
        f"{_DOMAIN}/home-namespace": bridged.namespace,
        f"{_DOMAIN}/home-name": name,
        f"{_DOMAIN}/home-uid": uid,
    }


@contextmanager
def namespace(bridged: Bridged, name: str, *, forged: bool, accepts: str = "") -> Iterator[str]:
    """A tenant's namespace in the remote; ``forged``: with the bridge's labels and annotations."""
    meta: Json = {"name": name, "labels": {}, "annotations": {}}
    if forged:
        meta["labels"] = owner_labels(bridged)
        meta["annotations"] = {f"{_DOMAIN}/home-namespace": bridged.namespace}
    if accepts:
        meta["annotations"][f"{_DOMAIN}/accepts-home"] = accepts
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    bridged.remote.kubectl("create", "-f", "-", input=json.dumps(body))
    try:
        yield name
    finally:
        bridged.remote.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
