"""Checks of the two clusters together: versions, clocks, who they are, and rights."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime

from bridge.checks.connectivity import Connectivity
from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, Scope, error, info, ok, warning
from bridge.clusters.connection import cluster_uid
from bridge.node.lease import LEASE_NAMESPACE
from bridge.rbac import permissions
from sync.kube.errors import NotFound, Side
from sync.kube.resources import LEASES
from translators.timestamps import parse_time

#: The oldest minor versions: of the remote because of scheduling gates, which are on from 1.27;
#: of home because nothing older is tested.
OLDEST_REMOTE, OLDEST_HOME = 27, 34
#: How many minor versions a kubelet may be older than its API server (kubernetes.io, version skew).
KUBELET_SKEW = 3
#: Seconds that clocks may differ before it is worth a word, and before certificates fail: those
#: that are made here begin an hour ago (`bridge.certificates.tls_key_pair.CLOCK_SKEW`).
APART, FAR_APART = 10.0, 3600.0


def minor(version: str) -> int | None:
    """``v1.34.4-eks`` → 34; None for what is no version of Kubernetes."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


async def versions(subject: CheckContext) -> list[Finding]:
    """BRG106, of both sides."""
    found = []
    for its, oldest in ((subject.home, OLDEST_HOME), (subject.remote, OLDEST_REMOTE)):
        if its.client is not None:
            found.append(_version(its, oldest))
    return found


def _version(its: Connectivity, oldest: int) -> Finding:
    number = minor(its.version)
    if number is None:
        return warning("BRG106", its.side, f"{its.version or 'no version'}: nobody has tried it")
    if number >= oldest:
        return ok("BRG106", its.side, its.version)
    said = f"{its.version} is older than 1.{oldest}"
    if its.side == "remote":
        return error("BRG106", its.side, f"{said}: it knows no scheduling gates")
    return warning("BRG106", its.side, f"{said}, the oldest that is tested")


async def skew(subject: CheckContext) -> list[Finding]:
    """BRG107."""
    home, remote = minor(subject.home.version), minor(subject.remote.version)
    said = f"home {subject.home.version}, remote {subject.remote.version}"
    if home is None or remote is None:
        return [info("BRG107", "both", f"not known: {said}")]
    if remote > home:
        return [warning("BRG107", "both", f"{said}: the remote is newer")]
    if home - remote > KUBELET_SKEW:
        return [warning("BRG107", "both", f"{said}: more than {KUBELET_SKEW} minor versions apart")]
    return [ok("BRG107", "both", said)]


async def clocks(subject: CheckContext) -> list[Finding]:
    """BRG108, of whichever side has answered."""
    return [_clock(it.side, it.clock_ahead) for it in (subject.home, subject.remote) if it.client]


def _clock(side: Side, ahead: float | None) -> Finding:
    if ahead is None:
        return info("BRG108", side, "its answers have no date")
    if abs(ahead) < APART:
        return ok("BRG108", side, "its clock and this machine's agree")
    way = "ahead of" if ahead > 0 else "behind"
    said = f"its clock is {abs(ahead):.0f} s {way} this machine's"
    return (error if abs(ahead) >= FAR_APART else warning)("BRG108", side, said)


async def bridges_clock(subject: CheckContext) -> list[Finding]:
    """BRG108, of the machine that the bridge runs on: what it writes into the node's Lease cannot
    be later than now at home."""
    try:
        lease = await subject.home_client.get(LEASES, subject.name, namespace=LEASE_NAMESPACE)
    except NotFound:
        return []
    renewed = str((lease.get("spec") or {}).get("renewTime") or "")
    ahead = _later_than_now(renewed, subject.home.clock_ahead or 0.0) if renewed else 0.0
    if ahead < APART:
        return []
    said = f"the clock of the bridge's machine is {ahead:.0f} s ahead of home's (its Lease)"
    return [replace(warning("BRG108", "home", said), node=subject.name)]


def _later_than_now(moment: str, homes_ahead: float) -> float:
    try:
        said = parse_time(moment)
    except ValueError:
        return 0.0
    return (said - datetime.now(UTC)).total_seconds() - homes_ahead


async def two(subject: CheckContext) -> list[Finding]:
    """BRG109."""
    home, remote = await asyncio.gather(
        cluster_uid(subject.home_client), cluster_uid(subject.remote_client)
    )
    if home == remote:
        server = subject.remote_client.config.server
        return [error("BRG109", "both", f"{server} is the home cluster itself")]
    return [ok("BRG109", "both", "home and remote are two clusters")]


async def rights_at_home(subject: CheckContext) -> list[Finding]:
    """BRG201."""
    wanted = permissions.required_at_home(subject.settings)
    missing = await permissions.missing_permissions(subject.home_client, wanted, subject.name)
    return [_rights("BRG201", "home", missing, subject)]


async def rights_in_remote(subject: CheckContext) -> list[Finding]:
    """BRG202."""
    missing = await permissions.missing_permissions(
        subject.remote_client, permissions.REMOTE, subject.name
    )
    return [_rights("BRG202", "remote", missing, subject)]


def _rights(of: str, side: Side, missing: list[str], subject: CheckContext) -> Finding:
    if not missing:
        return ok(of, side, "the credential may do what the bridge does")
    said = f"the credential may not {', '.join(missing)}"
    command = permissions.rbac_command(side, subject.settings)
    hint = f"`{command}` prints what to apply at {side}; or use another credential"
    if subject.node is None:
        return error(of, side, said, hint)
    # A person who looks after a bridge has seldom all that it has.
    return info(of, side, f"{said}; a bridge that has another one may have that", hint)


async def namespaces(subject: CheckContext) -> list[Finding]:
    """BRG203."""
    side: Scope = "home"
    asked = subject.settings
    wanted = permissions.for_home_namespaces(
        network=asked.network, service_accounts=asked.service_accounts
    )
    if await permissions.are_granted(subject.home_client, wanted):
        return [ok("BRG203", side, "pods of all namespaces may come")]
    said = "pods of a namespace run when the bridge may read it"
    return [info("BRG203", side, said, "`bridge rbac namespace NAME` prints what opens one")]


IMPLEMENTATIONS = (
    Implementation("BRG106", versions, ()),
    Implementation("BRG107", skew, ("home", "remote")),
    Implementation("BRG108", clocks, ()),
    Implementation("BRG108", bridges_clock, ("home", "node")),
    Implementation("BRG109", two, ("home", "remote")),
    Implementation("BRG201", rights_at_home, ("home",)),
    Implementation("BRG202", rights_in_remote, ("remote",)),
    Implementation("BRG203", namespaces, ("home",)),
)
