"""Collects the versions of this command, of home, and of each bridge and its remote.

An unreachable cluster or bridge is reported as a problem next to the known versions, not raised.
"""

from __future__ import annotations

import asyncio
import platform
from contextlib import AsyncExitStack

from bridge.base.version import version
from bridge.checks.check_context import ClusterConnectivity
from bridge.checks.cluster_access import check_connectivity
from bridge.checks.findings import Severity
from bridge.election.serving_bridge_lookup import read_election
from bridge.install.remote_kubeconfig_lookup import resolve_remote_kubeconfig
from bridge.node import node_object
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, name_of

#: Timeout of reading from home after connecting, in seconds.
TIMEOUT_SECONDS = 10.0


def client_version() -> Object:
    """The version of this command."""
    return {"version": version(), "python": platform.python_version()}


async def collect_versions(
    home_ref: KubeconfigRef, remote_ref: KubeconfigRef | None = None
) -> Object:
    """All versions that can be read from this machine, with ``remote_ref`` or the kubeconfig of the
    remote that each node records."""
    async with AsyncExitStack() as stack:
        home = await check_connectivity(stack, home_ref, "home")
        found: Object = {"client": client_version(), "home": _cluster_version(home), "nodes": []}
        if home.client is None:
            return found
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                nodes = (await home.client.list(NODES, labels=node_object.LABEL_REMOTE)).items
                found["nodes"] = await asyncio.gather(
                    *(_node_versions(stack, home.client, it, remote_ref) for it in nodes)
                )
        except (KubeError, TimeoutError) as problem:
            found["home"]["problem"] = str(problem) or "no answer in time"
        return found


async def _node_versions(
    stack: AsyncExitStack, home: KubeClient, known: Object, remote_ref: KubeconfigRef | None
) -> Object:
    ignored: list[str] = []
    found = await resolve_remote_kubeconfig(stack, home, known, remote_ref, warn=ignored.append)
    remote: Object = {"version": "", "problem": "its kubeconfig is not on this machine"}
    if found is not None:
        remote = _cluster_version(await check_connectivity(stack, found, "remote"))
    remote["problem"] = "; ".join(it for it in (*ignored, remote["problem"]) if it)
    info = (known.get("status") or {}).get("nodeInfo") or {}
    return {
        "name": name_of(known),
        "bridge": node_object.bridge_version(known),
        "servedBy": await _served_by(home, name_of(known)),
        "kubelets": str(info.get("kubeletVersion") or ""),
        "remote": remote,
    }


async def _served_by(home: KubeClient, name: str) -> str:
    """The last holder of the election lease, even if it has expired; `bridge check` shows that."""
    election = await read_election(home, name)
    return election.holder_name if election is not None else ""


def _cluster_version(its: ClusterConnectivity) -> Object:
    problems = [it.found for it in its.findings if it.severity is Severity.ERROR]
    return {"version": its.version, "problem": "; ".join(problems)}
