"""Runs the checks, before a join (`preflight`) or of nodes that exist (`health`).

Each looks by itself and for `PROBE` seconds at most; what it raises becomes a finding of its own,
under its id, and hides no other. A cluster that is not reached is told once, and what needs it is
told as not checked. Raises nothing but for defects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from bridge.base.errors import PreflightError
from bridge.base.settings import JoinSettings, NetworkChoice
from bridge.checks import (
    clusters,
    daemonsets,
    kubelet_certificate,
    network,
    virtual_node,
    workloads,
)
from bridge.checks.connectivity import Connectivity, check_connectivity
from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, Report, Scope, build_report, error, info, warning
from bridge.install.remote_kubeconfig import resolve_remote_kubeconfig
from bridge.node import join_record as asked_of
from bridge.node import node_object
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden, KubeError, NotFound, Side
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.resources import NODES
from translators.names import dns_label
from translators.objects import Object, name_of

#: Seconds for one look: seeing whether a lease is renewed takes 4, and an API server may be slow.
CHECK_SECONDS = 12.0
#: Seconds between one check and the next, where somebody waits until all is well.
REPEAT_SECONDS = 2.0

IMPLEMENTATIONS = (
    *clusters.IMPLEMENTATIONS,
    *virtual_node.IMPLEMENTATIONS,
    *kubelet_certificate.IMPLEMENTATIONS,
    *network.IMPLEMENTATIONS,
    *workloads.IMPLEMENTATIONS,
    *daemonsets.IMPLEMENTATIONS,
)


@dataclass(frozen=True, slots=True)
class NodeCheckSettings:
    """What a check of nodes that exist is asked for."""

    home: KubeconfigRef
    name: str = ""
    """The virtual node; "" for all that home has."""
    remote: KubeconfigRef | None = None
    """The remote's kubeconfig; the one that each node remembers unless given."""
    network: NetworkChoice = "flat"
    """How pods are said to reach each other."""


async def check_before_join(settings: JoinSettings) -> Report:
    """Of two clusters that are to be joined."""
    async with AsyncExitStack() as stack:
        home, remote = await asyncio.gather(
            check_connectivity(stack, settings.home, "home"),
            check_connectivity(stack, settings.remote, "remote"),
        )
        context = remote.client.config.context if remote.client else "remote"
        subject = CheckContext(settings, settings.name or dns_label(context), home, remote)
        found = [*home.findings, *remote.findings]
        found += await _all(subject, [it for it in IMPLEMENTATIONS if "node" not in it.needs])
    return build_report("preflight", found)


async def check_nodes(settings: NodeCheckSettings) -> Report:
    """Of home's virtual nodes, or the one that is named."""
    async with AsyncExitStack() as stack:
        home = await check_connectivity(stack, settings.home, "home")
        if home.client is None:
            return build_report("health", home.findings)
        found = list(home.findings)
        nodes, why = await _nodes(home.client, settings.name)
        found += why
        for several in await asyncio.gather(*(_of_node(stack, settings, home, it) for it in nodes)):
            found += several
    return build_report("health", _once(found))


async def _nodes(home: KubeClient, name: str) -> tuple[list[Object], list[Finding]]:
    """The virtual nodes that are meant, or why there are none."""
    hint = "see `kubectl get nodes`; before a join, `bridge check --pre --kubeconfig REMOTE`"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            if not name:
                nodes = (await home.list(NODES, labels=node_object.LABEL_REMOTE)).items
                none = [error("BRG301", "home", "home has no virtual node", hint)]
                return nodes, [] if nodes else none
            known = await home.get(NODES, name)
    except NotFound:
        return [], [error("BRG301", "home", f"home has no node {name}", hint)]
    except (KubeError, TimeoutError) as problem:
        return [], [_unknown("BRG301", problem, "home")]
    if not virtual_node.is_virtual_node(known):
        said = f"node {name} is not a bridge's virtual node"
        return [], [error("BRG301", "home", said, hint)]
    return [known], []


async def _of_node(
    stack: AsyncExitStack, settings: NodeCheckSettings, home: Connectivity, known: Object
) -> list[Finding]:
    name = name_of(known)
    ignored: list[str] = []
    found_ref = (
        await resolve_remote_kubeconfig(
            stack, home.client, known, settings.remote, warn=ignored.append
        )
        if home.client
        else None
    )
    if found_ref is None:
        remote = Connectivity("remote", None)
        said = "the node's kubeconfig of the remote is not on this machine, so only home is checked"
        hint = "name it with --kubeconfig"
        remote.findings.append(info("BRG102", "remote", said, hint))
    else:
        remote = await check_connectivity(
            stack, found_ref.ref, "remote", named=found_ref.description
        )
    asked = asked_of.read_settings(
        known,
        home=settings.home,
        remote=found_ref.ref if found_ref else KubeconfigRef(),
        network=settings.network,
    )
    subject = CheckContext(asked, name, home, remote, known)
    found = [warning("BRG102", "remote", it) for it in ignored]
    found += [
        *remote.findings,
        *await _all(subject, [it for it in IMPLEMENTATIONS if not it.only_before_join]),
    ]
    return [_placed(it, name) for it in found]


def _placed(finding: Finding, name: str) -> Finding:
    """The same of every node is home's: it is told once (`_once`)."""
    of_home = finding.side == "home" and finding.id < "BRG300"
    return finding if of_home or finding.node else replace(finding, node=name)


def _once(findings: Iterable[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


# -- one look after the other --------------------------------------------------------------


async def _all(subject: CheckContext, probes: Sequence[Implementation]) -> list[Finding]:
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(_look(subject, it), name=it.check_id) for it in probes]
    return [finding for look in looks for finding in look.result()]


async def _look(subject: CheckContext, probe: Implementation) -> Sequence[Finding]:
    for need in probe.needs:
        if why := subject.unavailable(need):
            return [info(probe.check_id, _where(probe), f"not checked: {why}")]
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await probe.run(subject)
    except PreflightError as problem:
        return [error(probe.check_id, _where(probe), str(problem))]
    except (KubeError, TimeoutError) as problem:
        return [_unknown(probe.check_id, problem, _where(probe))]


def _where(probe: Implementation) -> Scope:
    sides = {it for it in probe.needs if it != "node"}
    return "both" if len(sides) != 1 else ("home" if "home" in sides else "remote")


def _unknown(of: str, problem: Exception, side: Scope) -> Finding:
    """A look that did not end: that says nothing of what it was to see."""
    if isinstance(problem, Forbidden):
        said = f"not checked, the credential may not: {problem.message}"
        return warning(of, problem.side, said, f"check again with {_allowed(problem.side)}")
    again = "check again; `kubectl get --raw /readyz` there says how the API server is"
    if isinstance(problem, KubeError):
        return warning(of, problem.side, f"not checked: {problem.message}", again)
    return warning(of, side, f"not checked: no answer in {CHECK_SECONDS:.0f} s", again)


def _allowed(side: Side) -> str:
    option = "--home-kubeconfig" if side == "home" else "--kubeconfig"
    return f"a credential that has this permission ({option}), or have it granted"


async def repeat_until_passing(
    run_checks: Callable[[], Awaitable[Report]], seconds: float, *, notify: Callable[[str], None]
) -> Report:
    """Checks until nothing is an error, for so many seconds; the last report."""
    loop = asyncio.get_running_loop()
    end, errors = loop.time() + seconds, list[str]()
    while True:
        found = await run_checks()
        left = end - loop.time()
        if not found.failed or left <= 0:
            return found
        if found.errors != errors:
            errors = found.errors
            notify(f"waiting, {left:.0f} s more at most: {', '.join(errors)}")
        await asyncio.sleep(min(REPEAT_SECONDS, left))
