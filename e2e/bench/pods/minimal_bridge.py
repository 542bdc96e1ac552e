"""A minimal bridge: the baseline of a burst when only pods are forwarded.

It creates a remote pod for each pod bound to its node, writes one status at home when that runs,
and passes deletions on. It supports no ConfigMaps, Services, restarts or errors, and is for
comparison only.

    python -m e2e.bench.pods.minimal_bridge HOME_KUBECONFIG REMOTE_KUBECONFIG NODE NAMESPACE
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from e2e.bench.pods.audit_log import LEAST
from e2e.bench.pods.benchmark_client import BenchmarkClient, connect

_KEPT = ("containers", "volumes", "terminationGracePeriodSeconds", "automountServiceAccountToken")


async def _watch(
    api: BenchmarkClient, query: dict[str, str], handle: Callable[[str, Any], None]
) -> None:
    async for event in api.watch("/api/v1/pods", query):
        handle(event["type"], event["object"])


async def _main(home_file: str, remote_file: str, node: str, namespace: str) -> None:
    async with (
        connect(home_file, agent=LEAST) as home,
        connect(remote_file, agent=LEAST) as remote,
    ):
        made: dict[str, str] = {}
        reported: set[str] = set()
        async with asyncio.TaskGroup() as group:

            def from_home(kind: str, pod: Any) -> None:
                meta = pod["metadata"]
                name = meta["name"]
                if kind != "DELETED" and meta.get("deletionTimestamp") and name in made:
                    group.create_task(remote.call("DELETE", path + "/" + made.pop(name)))
                elif kind == "ADDED":
                    made[name] = name
                    kept = {key: value for key, value in pod["spec"].items() if key in _KEPT}
                    body = {"metadata": {"name": name, "labels": {"least": node}}, "spec": kept}
                    group.create_task(remote.call("POST", path, body))

            def from_remote(kind: str, pod: Any) -> None:
                name = pod["metadata"]["name"]
                at_home = f"/api/v1/namespaces/{namespace}/pods/{name}"
                if kind == "DELETED":
                    reported.discard(name)
                    body = {"gracePeriodSeconds": 0}
                    group.create_task(home.call("DELETE", at_home, body))
                elif pod["status"].get("phase") == "Running" and name not in reported:
                    reported.add(name)
                    body = {"status": pod["status"]}
                    group.create_task(home.call("PATCH", at_home + "/status", body))

            path = f"/api/v1/namespaces/{namespace}/pods"
            group.create_task(_watch(remote, {"labelSelector": f"least={node}"}, from_remote))
            query = {"fieldSelector": f"spec.nodeName={node}"}
            group.create_task(_watch(home, query, from_home))
            sys.stdout.write("ready\n")
            sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
