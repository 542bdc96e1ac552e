"""Reads objects of clusters by the names of kubectl, and waits for conditions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from e2e import api_reader
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import CommandFailed

Json = dict[str, Any]
T = TypeVar("T")

#: The field manager of the bridge, from its user agent.
MANAGER = "cluster-bridge"
#: Seconds until a condition is true: images are present, a container starts in two.
PATIENCE = 60.0
#: Polls of a condition before it fails: a machine can stall for longer than a short timeout.
LEAST_POLLS = 5


def get(
    cluster: Cluster,
    kinds: str,
    *,
    namespace: str | None = None,
    selector: str | None = None,
    all_namespaces: bool = False,
) -> list[Json]:
    """Objects as in `kubectl get KINDS -o json`. ``kinds`` are separated by commas;
    ``all_namespaces`` is ``-A``."""
    names = kinds.split(",")
    found = [
        obj
        for kind in filter(api_reader.is_supported, names)
        for obj in api_reader.list_objects(
            cluster, kind, namespace=namespace, selector=selector, all_namespaces=all_namespaces
        )
    ]
    if others := [kind for kind in names if not api_reader.is_supported(kind)]:
        args = ["get", ",".join(others), "-o", "json"]
        args += ["-n", namespace] if namespace else []
        args += ["-l", selector] if selector else []
        args += ["-A"] if all_namespaces else []
        found += json.loads(cluster.kubectl(*args).stdout)["items"]
    return found


def get_with_managed_fields(cluster: Cluster, kinds: str) -> list[Json]:
    """Objects of all namespaces with ``metadata.managedFields``."""
    return [
        obj
        for kind in kinds.split(",")
        for obj in api_reader.list_objects(cluster, kind, all_namespaces=True, managed_fields=True)
    ]


def get_one(cluster: Cluster, kind: str, name: str, *, namespace: str | None = None) -> Json:
    """One object, as in `kubectl get KIND NAME -o json`."""
    if api_reader.is_supported(kind):
        return api_reader.get_object(cluster, kind, name, namespace=namespace)
    args = ["get", kind, name, "-o", "json"] + (["-n", namespace] if namespace else [])
    found: Json = json.loads(cluster.kubectl(*args).stdout)
    return found


def get_events(cluster: Cluster, name: str, *, namespace: str) -> list[Json]:
    """The namespace's Events about objects with this name; all fields of an Event's reference to
    its object are optional (`core/v1.ObjectReference`)."""
    events = get(cluster, "events", namespace=namespace)
    return [event for event in events if event["involvedObject"].get("name") == name]


def wait_for(condition: Callable[[], T], what: str, *, seconds: float = PATIENCE) -> T:
    """Polls until the condition is true, and returns its value. Fails with ``what`` at timeout, but
    not before `LEAST_POLLS`. A failed command or connection counts as not yet true."""
    deadline = time.monotonic() + seconds
    polls = 0
    while True:
        failure: Exception | None = None
        try:
            if answer := condition():
                return answer
        except (CommandFailed, OSError) as error:
            failure = error
        polls += 1
        if time.monotonic() > deadline and polls >= LEAST_POLLS:
            raise AssertionError(f"not in {seconds:.0f} s: {what}") from failure
        time.sleep(0.2)


def create_namespace(cluster: Cluster, name: str) -> None:
    """Creates a namespace, and waits for the service account without which it accepts no pods."""
    cluster.kubectl("create", "namespace", name)
    wait_for(
        lambda: get(cluster, "serviceaccounts", namespace=name),
        f"{cluster.name} creates the service account of namespace {name}",
    )


def wait_for_definitions(cluster: Cluster, *args: str, text: str | None = None) -> None:
    """Waits until the API server serves the CustomResourceDefinitions that ``args`` name, or that
    are in ``text`` with ``-f -``. `kubectl wait` ends with an error while one has no conditions."""
    command = ("wait", "--for=condition=Established", "--timeout=10s", *args)
    wait_for(lambda: cluster.kubectl(*command, input=text), "the definitions are established")


def uids(objects: list[Json]) -> dict[str, str]:
    """Name → UID."""
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in objects}


def versions(objects: list[Json]) -> dict[tuple[str, str, str], str]:
    """(kind, namespace, name) → resource version; equal versions mean no write between."""
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj[
            "metadata"
        ]["resourceVersion"]
        for obj in objects
    }


def made_by_bridge(*clusters: Cluster) -> set[str]:
    """The UIDs of all objects that a bridge has created or changed, of the kinds that it may.

    API servers record the writers in ``metadata.managedFields``, by the client's name.
    """
    kinds = "nodes,namespaces,pods,leases,configmaps,secrets,services,endpointslices,events"
    found = set()
    for cluster in clusters:
        for obj in get_with_managed_fields(cluster, kinds):
            writers = {entry["manager"] for entry in obj["metadata"].get("managedFields", ())}
            if MANAGER in writers:
                found.add(str(obj["metadata"]["uid"]))
    return found


def is_ready(pod: Json) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
