"""Pods with the identities of the remote and without one, and with a flat pod network."""

from __future__ import annotations

from typing import Any

from sync.kube.api_resources import PODS
from tests import objects
from tests.golden import pods_scenario
from tests.golden.pods_scenario import REMOTE_SHOP
from tests.golden.worlds import World, read_input

_PODS = ("environment", "volumes-of-references", "scheduling", "unknown-priority", "job-never")


async def remote_accounts(world: World) -> dict[str, Any]:
    """Accounts of the remote, the prepared namespace of a tenant, and kept metadata."""
    world.put("references")
    pods_scenario.put_pods(world, *_PODS, "metadata-that-acts", "of-daemonset")
    options = [
        *("--service-accounts", "remote", "--network", "flat", "--storage", "none"),
        *("--namespace-template", "{home}-{namespace}", "--daemonsets", "run"),
        *(
            "--pod-metadata",
            "topology.kubernetes.io/*=keep,sidecar.istio.io/*=keep,example.com/*=drop",
        ),
        *("--control-plane-nodes", "allow"),
    ]
    async with world.bridge(*options):
        for name in ("default", "worker"):
            world.remote.put(objects.service_account(name, "berlin-shop"))
        await world.until(lambda: world.remote.find(PODS, "environment", "berlin-shop"))
        await world.settle()
        return world.redact(pods_scenario.remote_objects(world))


async def no_accounts(world: World) -> dict[str, Any]:
    """No identities, a flat network with the addresses of the remote's pods, limited capacity."""
    world.put("references")
    pods_scenario.put_pods(world, *_PODS, "probes")
    options = [
        *("--service-accounts", "none", "--network", "flat", "--storage", "none"),
        *("--remote-pod-cidr", "10.2.0.0/16", "--share", "0.5", "--reserve", "cpu=1,memory=1Gi"),
        *("--limits", "pods=50", "--node-selector", "pool=batch", "--labels", "tier=cheap"),
        *("--annotations", "example.com/owner=a", "--taints", "example.com/virtual=yes:NoExecute"),
    ]
    async with world.bridge(*options):
        found = {
            "remote": pods_scenario.remote_objects(world),
            "node": pods_scenario.node(world),
        }
        pod = next(entry for entry in read_input("statuses") if entry["name"] == "probes")
        world.remote.bind("probes", pod["node"], REMOTE_SHOP)
        world.remote.update(PODS, "probes", {"status": pod["status"]}, REMOTE_SHOP)
        await world.settle()
        found["status"] = world.home.get(PODS, "probes", "shop")["status"]
        return world.redact(found)
