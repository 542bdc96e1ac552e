"""Pods and what they refer to: created, with statuses, updated, deleted."""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from sync.kube.api_resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
)
from tests import objects
from tests.golden.worlds import NODE, World, read_input

#: The remote namespace of the home namespace ``shop``.
REMOTE_SHOP = "shop-berlin"
#: Field paths in the message of an Event.
_FIELDS = re.compile(r"\b(?:spec|metadata)\.[A-Za-z][\w.\[\]-]*")
#: Families of metrics of features that the product gives up.
_OMITTED_FAMILIES = re.compile(r"_(placement|fleet|shard|kueue|room|remotes|profiles)")


async def collect(world: World) -> dict[str, Any]:
    """All pods from their creation to their deletion."""
    world.remote.route("GET", "/api/v1/nodes/*/proxy/*", _serve_kubelets)
    world.put("references")
    put_pods(world)
    options = ["--network", "none", "--storage", "none", "--home-api-address", "10.20.0.1:6443"]
    async with world.bridge(*options):
        first = {"remote": remote_objects(world), "home": home_pods(world), "node": node(world)}
        first["leases"] = leases(world)
        write_statuses(world)
        write_events(world)
        await world.settle()
        second = {"home": home_pods(world), "event": mirrored_event(world)}
        second["metrics"] = await _metrics(world)
        running = remote_objects(world)
        update_pods(world)
        await world.settle()
        third = {"remote": remote_objects(world), "home": home_pods(world)}
        delete_pods(world)
        await world.settle()
        fourth = {"remote": remote_objects(world), "home": home_pods(world)}
        seen = events(world)
    first, second, third, fourth, running = map(
        world.redact, (first, second, third, fourth, running)
    )
    return {
        "created": first["remote"],
        "home-pods": first["home"],
        "node": first["node"],
        "leases": first["leases"],
        "statuses": changes(first["home"], second["home"]),
        "mirrored-event": second["event"],
        "metrics": second["metrics"],
        "updates": changes(running, third["remote"]),
        "updates-home": changes(second["home"], third["home"]),
        "deletions": changes(third["remote"], fourth["remote"]),
        "deletions-home": changes(third["home"], fourth["home"]),
        "events": world.redact(seen),
    }


def put_pods(world: World, *names: str) -> None:
    """Puts the pods of `inputs/pods.yaml` into home, bound to the virtual node: all, or these."""
    for pod in read_input("pods"):
        if not names or pod["metadata"]["name"] in names:
            world.home.put({**pod, "spec": {**pod["spec"], "nodeName": NODE}})


def write_statuses(world: World) -> None:
    """Has the remote's scheduler and kubelets write the statuses of `inputs/statuses.yaml`."""
    for entry in read_input("statuses"):
        name = entry["name"]
        if "node" in entry:
            world.remote.bind(name, entry["node"], REMOTE_SHOP)
        world.remote.update(PODS, name, {"status": entry["status"]}, REMOTE_SHOP)


def write_events(world: World) -> None:
    """Has the remote's kubelet write Events."""
    pod = world.remote.get(PODS, "probes", REMOTE_SHOP)
    world.remote.put(objects.event(pod, "Pulled", count=3))
    world.remote.put(objects.event(pod, "Unhealthy") | {"type": "Warning"})


def update_pods(world: World) -> None:
    """Changes home pods in each way that the API allows."""
    update = world.home.update
    labels = {"labels": {"added": "a", "app": "changed"}, "annotations": {"example.com/note": None}}
    update(PODS, "environment", {"metadata": labels}, "shop")
    containers = world.home.get(PODS, "probes", "shop")["spec"]["containers"]
    resized = {**containers[0], "image": "busybox:1.37"}
    resized["resources"] = {"requests": {"cpu": "200m", "memory": "64Mi", "example.com/gpu": "1"}}
    update(PODS, "probes", {"spec": {"containers": [resized]}}, "shop")
    pod = world.home.get(PODS, "job-on-failure", "shop")
    added = {"key": "example.com/added", "operator": "Exists"}
    changed = {"tolerations": [*pod["spec"]["tolerations"], added], "activeDeadlineSeconds": 60}
    update(PODS, "job-on-failure", {"spec": changed}, "shop")
    debug = {"name": "debug", "image": "busybox:1.36", "targetContainerName": "main"}
    update(PODS, "security", {"spec": {"ephemeralContainers": [debug]}}, "shop")
    conditions = world.home.get(PODS, "probes", "shop")["status"]["conditions"]
    gate = {"type": "example.com/load-balancer", "status": "True"}
    update(PODS, "probes", {"status": {"conditions": [*conditions, gate]}}, "shop")
    update(CONFIG_MAPS, "conf", {"data": {"one": "changed", "two": "2"}}, "shop")
    update(SERVICES, "peers", {"spec": {"ports": [{"port": 81}]}}, "shop")


def delete_pods(world: World) -> None:
    """Deletes home pods and what they refer to, and ends a remote pod by force."""
    for name in ("probes", "environment", "scheduling", "unknown-priority"):
        world.home.delete(PODS, name, "shop", grace_seconds=7)
    world.home.delete(PODS, "elsewhere", "second")
    world.home.delete(SERVICES, "outside", "shop")
    world.remote.remove(PODS, "security", REMOTE_SHOP)


def remote_objects(world: World) -> Object:
    """The objects of the bridge in the remote."""
    kinds = (NAMESPACES, PODS, CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES)
    return _of_bridge(world.objects("remote", *kinds))


def home_pods(world: World) -> Object:
    """The metadata and status of home pods."""
    found = world.objects("home", PODS)
    return {
        key: {
            "metadata": {
                name: pod["metadata"][name]
                for name in ("annotations", "labels", "finalizers")
                if name in pod["metadata"]
            },
            "status": pod.get("status"),
        }
        for key, pod in found.items()
    }


def events(world: World) -> list[Object]:
    """Home's Events without names and times, sorted."""
    found = [
        {
            "about": f"{event['involvedObject']['kind']} {event['involvedObject']['name']}",
            "fieldPath": event["involvedObject"].get("fieldPath"),
            "type": event["type"],
            "reason": event["reason"],
            "fields": sorted(set(_FIELDS.findall(event.get("message", "")))),
            "component": event.get("reportingComponent")
            or (event.get("source") or {}).get("component"),
            "namespace": event["metadata"]["namespace"],
        }
        for event in world.home.objects(EVENTS)
    ]
    return sorted(found, key=lambda event: [str(part) for part in event.values()])


def mirrored_event(world: World) -> Object:
    """One Event of the remote's kubelet, as home has it."""
    return next(event for event in world.home.objects(EVENTS) if event["reason"] == "Pulled")


def leases(world: World) -> Object:
    """The Leases of both clusters without holders and times."""
    found: Object = {}
    for side in ("home", "remote"):
        for key, lease in world.objects(side, LEASES).items():
            spec = {**lease.get("spec", {})}
            for field in ("renewTime", "acquireTime", "holderIdentity"):
                if field in spec:
                    spec[field] = "<set>"
            metadata = {**lease["metadata"]}
            metadata["annotations"] = {
                name: value if name.startswith("namespaces.") else "<set>"
                for name, value in (metadata.get("annotations") or {}).items()
            }
            found[f"{side} {key}"] = {"metadata": metadata, "spec": spec}
    return found


async def _serve_kubelets(request: web.Request) -> web.Response:
    """The remote's kubelets, whose pods have used the same."""
    path = request.path.partition("/proxy/")[2]
    pods = (REMOTE_SHOP, "probes"), ("unmanaged", "unmanaged")
    if path == "stats/summary":
        cpu = {"time": "2020-01-02T03:04:05Z", "usageNanoCores": 5, "usageCoreNanoSeconds": 10**10}
        memory = {"time": "2020-01-02T03:04:05Z", "workingSetBytes": 1000}
        stats = [
            {"podRef": {"namespace": namespace, "name": name, "uid": "of the remote"}}
            | {"cpu": cpu, "memory": memory, "containers": [{"name": "main", "cpu": cpu}]}
            for namespace, name in pods
        ]
        return web.json_response({"node": {"nodeName": "worker-1"}, "pods": stats})
    lines = []
    for family, value in (("container_cpu_usage_seconds_total", 10), ("pod_memory_bytes", 1000)):
        lines.append(f"# TYPE {family} {'counter' if family.endswith('total') else 'gauge'}")
        for namespace, name in pods:
            labels = f'namespace="{namespace}",pod="{name}",container="main"'
            lines.append(f"{family}{{{labels}}} {value} 1577934245000")
    return web.Response(text="\n".join([*lines, "node_cpu_usage_seconds_total 1e6", ""]))


async def _metrics(world: World) -> Object:
    """The metrics of pods, and the families of the bridge's own metrics with their labels."""
    return {
        "resource": (await world.get("/metrics/resource")).splitlines(),
        "cadvisor": (await world.get("/metrics/cadvisor")).splitlines(),
        "summary": json.loads(await world.get("/stats/summary")),
        "own": _families(await world.get("/metrics")),
    }


def _families(text: str) -> Object:
    return {
        family.name: {
            "type": family.type,
            "labels": sorted({name for sample in family.samples for name in sample.labels}),
        }
        for family in text_string_to_metric_families(text)
        if family.name.startswith("bridge_") and not _OMITTED_FAMILIES.search(family.name)
    }


def changes(before: Object, after: Object) -> Object:
    """The objects that differ, and of each the parts that do; None for deleted objects."""
    return {
        key: _difference(before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def node(world: World) -> Object:
    """The virtual node, without the port of the kubelet API."""
    found = world.home.get(NODES, NODE)
    found["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": "<port>"}}
    return found


def _of_bridge(found: Object) -> Object:
    return {
        key: obj
        for key, obj in found.items()
        if any(name.startswith("cluster-bridge.io/") for name in obj["metadata"].get("labels", {}))
    }


def _difference(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return {
            key: _difference(before.get(key), after.get(key))
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        }
    return after
