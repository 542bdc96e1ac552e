"""Checks that the two clusters fit together: versions, clocks, and that they are two."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bridge.checks.check_context import CheckContext, ClusterConnectivity, Implementation
from bridge.checks.findings import Finding, error, not_checked, ok, warning
from bridge.clusters.remote_identity import SYSTEM
from bridge.node.node_lease import LEASE_NAMESPACE
from sync.kube.api_errors import Forbidden, Side
from sync.kube.api_resources import LEASES, NAMESPACES
from translators.object_accessors import uid_of
from translators.timestamps import parse_time

#: The oldest minor versions: of the remote, because scheduling gates are enabled from 1.27; of
#: home, because nothing older is tested.
OLDEST_REMOTE, OLDEST_HOME = 27, 34
#: Minor versions that a kubelet may be older than its API server (kubernetes.io, version skew).
KUBELET_SKEW = 3
#: Seconds of clock skew that are a warning, and an error: certificates that the bridge issues are
#: valid from an hour ago (`bridge.certificates.tls_key_pair.CLOCK_SKEW`).
SKEW_WARNING, SKEW_ERROR = 10.0, 3600.0


def minor(version: str) -> int | None:
    """``v1.34.4-eks`` → 34; None for no version of Kubernetes."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


async def check_kubernetes_versions(context: CheckContext) -> list[Finding]:
    """BRG106, for each cluster that responded."""
    sides = ((context.home, OLDEST_HOME), (context.remote, OLDEST_REMOTE))
    return [_version(cluster, oldest) for cluster, oldest in sides if cluster.client is not None]


def _version(cluster: ClusterConnectivity, oldest: int) -> Finding:
    number = minor(cluster.version)
    if number is None:
        text = f"{cluster.version or 'no version'}: an unknown version, not tested"
        return warning("BRG106", cluster.side, text)
    if number >= oldest:
        return ok("BRG106", cluster.side, cluster.version)
    text = f"{cluster.version} is older than 1.{oldest}"
    if cluster.side == "remote":
        return error("BRG106", cluster.side, f"{text}: it has no scheduling gates")
    return warning("BRG106", cluster.side, f"{text}, the oldest tested version")


async def check_version_skew(context: CheckContext) -> list[Finding]:
    """BRG107."""
    home, remote = minor(context.home.version), minor(context.remote.version)
    text = f"home {context.home.version}, remote {context.remote.version}"
    if home is None or remote is None:
        return [not_checked("BRG107", "both", f"a version is unknown ({text})")]
    if remote > home:
        return [warning("BRG107", "both", f"{text}: the remote is newer")]
    if home - remote > KUBELET_SKEW:
        return [warning("BRG107", "both", f"{text}: more than {KUBELET_SKEW} minor versions apart")]
    return [ok("BRG107", "both", text)]


async def check_api_server_clocks(context: CheckContext) -> list[Finding]:
    """BRG108, for each cluster that responded."""
    return [_clock(it.side, it.clock_ahead) for it in (context.home, context.remote) if it.client]


def _clock(side: Side, ahead: float | None) -> Finding:
    if ahead is None:
        return not_checked("BRG108", side, "responses have no Date")
    if abs(ahead) < SKEW_WARNING:
        return ok("BRG108", side, "its clock and this machine's agree")
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"its clock is {abs(ahead):.0f} s {relation} this machine's"
    return (error if abs(ahead) >= SKEW_ERROR else warning)("BRG108", side, text)


async def check_bridge_clock(context: CheckContext) -> list[Finding]:
    """BRG108, for the machine of the bridge: the renewTime that it writes to the node's Lease
    cannot be in the future of home."""
    lease = await context.home_client.find(LEASES, context.name, namespace=LEASE_NAMESPACE)
    try:
        renewed = parse_time(str(((lease or {}).get("spec") or {}).get("renewTime")))
    except ValueError:
        return []
    now = datetime.now(UTC) + timedelta(seconds=context.home.clock_ahead or 0.0)
    ahead = (renewed - now).total_seconds()
    if ahead < SKEW_WARNING:
        return []
    text = f"the clock of the bridge's machine is {ahead:.0f} s ahead of home's (its Lease)"
    return [replace(warning("BRG108", "home", text), node=context.name)]


async def _home_uid(context: CheckContext, namespace: str) -> str:
    """The UID of home's namespace of this name; "" if there is none. Raises KubeError."""
    if namespace == SYSTEM:
        return await context.home_uid()
    found = await context.home_client.find(NAMESPACES, namespace)
    return uid_of(found) if found is not None else ""


async def check_two_clusters(context: CheckContext) -> list[Finding]:
    """BRG109."""
    remote = await context.remote_identity()
    try:
        home_uid = await _home_uid(context, remote.namespace)
    except Forbidden:
        text = f"neither kube-system of the remote nor {remote.namespace} at home may be read"
        return [not_checked("BRG109", "both", text)]
    if home_uid == remote.uid:
        server = context.remote_client.endpoint.server
        text = f"{server} is the home cluster itself (same {remote.namespace} namespace)"
        return [error("BRG109", "both", text)]
    return [ok("BRG109", "both", "home and remote are two clusters")]


IMPLEMENTATIONS = (
    Implementation("BRG106", check_kubernetes_versions, ()),
    Implementation("BRG107", check_version_skew, ("home", "remote")),
    Implementation("BRG108", check_api_server_clocks, ()),
    Implementation("BRG108", check_bridge_clock, ("home", "node")),
    Implementation("BRG109", check_two_clusters, ("home", "remote")),
)
