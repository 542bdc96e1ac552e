"""The relay: endpoints in the home cluster that lead to the bridge, and agents in the remote."""

from __future__ import annotations

import socket
from typing import Any

from sync.kube.api_resources import ENDPOINT_SLICES, NODES, PODS, Object
from tests.golden import pods_scenario
from tests.golden.worlds import NODE, World

#: The status of a pod that runs.
_RUNNING: Object = {
    "phase": "Running",
    "podIP": "10.2.1.20",
    "podIPs": [{"ip": "10.2.1.20"}],
    "conditions": [{"type": "Ready", "status": "True"}],
}


async def collect(world: World) -> dict[str, Any]:
    """The objects once the pod runs, and once the relay agents do."""
    world.put("relay")
    _verify_endpoint(world)
    address = _own_address()
    options = [
        *("--network", "relay", "--service-accounts", "none", "--storage", "none"),
        *("--relay-address", address, "--relay-image", "example.com/bridge:1"),
    ]
    async with world.bridge(*options):
        _run_pods(world)
        await world.until(lambda: len(_pods(world)) > 1)
        _run_pods(world)
        await world.until(lambda: _home_slices(world))
        await world.settle()
        node = world.home.get(NODES, NODE)
        found = {
            "remote": pods_scenario.remote_objects(world),
            "home-endpoint-slices": _home_slices(world),
            "node-annotations": node["metadata"]["annotations"],
        }
    return world.redact(found, **{address: "<address>"})


def _verify_endpoint(world: World) -> None:
    """Names the pod's UID in its endpoint, as home's EndpointSlice controller does."""
    uid = world.home.get(PODS, "db", "shop")["metadata"]["uid"]
    (endpoint,) = world.home.get(ENDPOINT_SLICES, "home-db-1", "shop")["endpoints"]
    endpoint["targetRef"]["uid"] = uid
    world.home.update(ENDPOINT_SLICES, "home-db-1", {"endpoints": [endpoint]}, "shop")


def _own_address() -> str:
    """An address of this machine that is not loopback; the socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dialled:
        dialled.connect(("192.0.2.250", 9))
        return str(dialled.getsockname()[0])


def _pods(world: World) -> list[Object]:
    return world.remote.objects(PODS, pods_scenario.REMOTE_SHOP)


def _run_pods(world: World) -> None:
    """Has the remote's scheduler and kubelet run all pods."""
    for pod in _pods(world):
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            world.remote.bind(name, "worker-1", pods_scenario.REMOTE_SHOP)
            world.remote.update(PODS, name, {"status": _RUNNING}, pods_scenario.REMOTE_SHOP)


def _home_slices(world: World) -> Object:
    """The bridge's EndpointSlices in the home cluster, without the ports that the system chose."""
    found = {}
    for slice_ in world.home.objects(ENDPOINT_SLICES):
        meta = slice_["metadata"]
        if meta["name"] in ("kubernetes", "home-db-1"):
            continue
        for port in slice_["ports"]:
            port["port"] = "<port>"
        labels = {
            name: value for name, value in meta["labels"].items() if "cluster-bridge.io" in name
        }
        found[meta["labels"]["kubernetes.io/service-name"]] = {
            **slice_,
            "metadata": {"labels": labels},
        }
    return found
