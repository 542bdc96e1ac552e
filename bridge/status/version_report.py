"""Which versions there are: of this command, of home, of each running bridge and of its remote.

What cannot be reached is told as a problem beside what is known, and is no failure.
"""

from __future__ import annotations

import asyncio
import platform
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bridge.base.version import version
from bridge.checks import virtual_node
from bridge.checks.connectivity import Connectivity, check_connectivity
from bridge.checks.report import Severity
from bridge.election import election_record
from bridge.install.remote_kubeconfig import resolve_remote_kubeconfig
from bridge.node import node_object
from bridge.node.lease import LEASE_NAMESPACE
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError, NotFound
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.resources import LEASES, NODES
from translators.objects import Object, name_of

#: Seconds for what is asked of home, once it is reached.
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class VersionSettings:
    """What `bridge version` is asked for."""

    home: KubeconfigRef
    remote: KubeconfigRef | None = None
    """The remote's kubeconfig; the one that each node remembers unless given."""


def client_version() -> Object:
    """This command's own."""
    return {"version": version(), "python": platform.python_version()}


async def collect_versions(settings: VersionSettings) -> Object:
    """All that can be known from here."""
    async with AsyncExitStack() as stack:
        home = await check_connectivity(stack, settings.home, "home")
        found: Object = {"client": client_version(), "home": _side(home), "nodes": []}
        if home.client is None:
            return found
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                nodes = (await home.client.list(NODES, labels=node_object.LABEL_REMOTE)).items
                found["nodes"] = await asyncio.gather(
                    *(_of_node(stack, settings, home.client, it) for it in nodes)
                )
        except (KubeError, TimeoutError) as problem:
            found["home"]["problem"] = str(problem) or "no answer in time"
        return found


async def _of_node(
    stack: AsyncExitStack, settings: VersionSettings, home: KubeClient, known: Object
) -> Object:
    ignored: list[str] = []
    found = await resolve_remote_kubeconfig(
        stack, home, known, settings.remote, warn=ignored.append
    )
    remote: Object = {"version": "", "problem": "its kubeconfig is not on this machine"}
    if found is not None:
        remote = _side(
            await check_connectivity(stack, found.ref, "remote", named=found.description)
        )
    remote["problem"] = "; ".join(it for it in (*ignored, remote["problem"]) if it)
    info = (known.get("status") or {}).get("nodeInfo") or {}
    return {
        "name": name_of(known),
        "bridge": virtual_node.bridge_version(known),
        "servedBy": await _served_by(home, name_of(known)),
        "kubelets": str(info.get("kubeletVersion") or ""),
        "remote": remote,
    }


async def _served_by(home: KubeClient, name: str) -> str:
    """Whose the lease was at last: whether it still renews it, `bridge check` sees."""
    try:
        lease = await home.get(
            LEASES, election_record.election_lease_name(name), namespace=LEASE_NAMESPACE
        )
    except NotFound:
        return ""
    return election_record.parse_lease(lease).holder_name


def _side(its: Connectivity) -> Object:
    problems = [it.found for it in its.findings if it.severity is Severity.ERROR]
    return {"version": its.version, "problem": "; ".join(problems)}
