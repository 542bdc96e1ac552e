"""What the tests ask clusters, in the words of kubectl, and waiting for an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from e2e import api_reader
from e2e.clusters.cluster import Cluster

Json = dict[str, Any]
T = TypeVar("T")

#: What API servers call the bridge, from its user agent.
MANAGER = "cluster-bridge"
#: Seconds for something to come true: an image is there already, a container starts in two.
PATIENCE = 60.0


def get(
    cluster: Cluster,
    kinds: str,
    *,
    namespace: str | None = None,
    selector: str | None = None,
    every: bool = False,
) -> list[Json]:
    """As `kubectl get KINDS -o json` has them; ``every``: in all namespaces. ``kinds`` are
    separated by commas."""
    names = kinds.split(",")
    found = [
        obj
        for kind in filter(api_reader.knows, names)
        for obj in api_reader.listed(
            cluster, kind, namespace=namespace, selector=selector, every=every
        )
    ]
    if others := [kind for kind in names if not api_reader.knows(kind)]:
        args = ["get", ",".join(others), "-o", "json"]
        args += ["-n", namespace] if namespace else []
        args += ["-l", selector] if selector else []
        args += ["-A"] if every else []
        found += json.loads(cluster.kubectl(*args).stdout)["items"]
    return found


def read(cluster: Cluster, kinds: str) -> list[Json]:
    """Those of all namespaces, with who has written what (``metadata.managedFields``)."""
    return [
        obj
        for kind in kinds.split(",")
        for obj in api_reader.listed(cluster, kind, every=True, managed_fields=True)
    ]


def get_one(cluster: Cluster, kind: str, name: str, *, namespace: str | None = None) -> Json:
    """As `kubectl get KIND NAME -o json` has it."""
    if api_reader.knows(kind):
        return api_reader.one(cluster, kind, name, namespace=namespace)
    args = ["get", kind, name, "-o", "json"] + (["-n", namespace] if namespace else [])
    found: Json = json.loads(cluster.kubectl(*args).stdout)
    return found


def wait_for(condition: Callable[[], T], what: str, *, seconds: float = PATIENCE) -> T:
    """Asks until the answer is true, and returns it. Fails with ``what`` when time is up."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return answer


def uids(objects: list[Json]) -> dict[str, str]:
    """Name → UID."""
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in objects}


def versions(objects: list[Json]) -> dict[tuple[str, str, str], str]:
    """(kind, namespace, name) → resource version: two that are equal had no write between."""
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj[
            "metadata"
        ]["resourceVersion"]
        for obj in objects
    }


def made_by_bridge(*clusters: Cluster) -> set[str]:
    """The UIDs of all objects that a bridge has made or changed, of the kinds that it can.

    API servers note who wrote what in ``metadata.managedFields``, under the name of the client.
    """
    kinds = "nodes,namespaces,pods,leases,configmaps,secrets,services,endpointslices,events"
    found = set()
    for cluster in clusters:
        for obj in read(cluster, kinds):
            writers = {entry["manager"] for entry in obj["metadata"].get("managedFields", ())}
            if MANAGER in writers:
                found.add(str(obj["metadata"]["uid"]))
    return found


def is_ready(pod: Json) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
