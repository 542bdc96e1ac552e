"""Runs all checks for `bridge check`, before a join or of existing nodes.

Each check runs concurrently and for `CHECK_SECONDS` at most. A failure or defect of a check becomes
a finding of that check and hides no other; where a cluster does not respond, checks that need it
are not checked. Raises nothing but defects outside of the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from bridge.base.command_error import BridgeError
from bridge.base.join_settings import JoinSettings, NetworkChoice
from bridge.base.progress_lines import Waiting
from bridge.checks import (
    cluster_compatibility,
    daemonsets,
    kubelet_certificate,
    network_paths,
    permission_checks,
    policy_checks,
    remote_namespaces,
    storage,
    virtual_node,
    workloads,
)
from bridge.checks.check_context import CheckContext, ClusterConnectivity, Implementation
from bridge.checks.cluster_access import check_connectivity
from bridge.checks.findings import Finding, Report, Scope, build_report, error, not_checked, warning
from bridge.install.remote_kubeconfig_lookup import resolve_remote_kubeconfig
from bridge.node import join_record
from bridge.node.node_object import LABEL_REMOTE, is_virtual_node
from sync.base import exception_summary
from sync.kube.api_errors import Forbidden, KubeError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.derived_names import dns_label
from translators.object_accessors import Object, name_of

#: Timeout of one check in seconds: observing whether a Lease is renewed takes 4.
CHECK_SECONDS = 12.0
#: Seconds between two runs with --wait.
REPEAT_SECONDS = 2.0

IMPLEMENTATIONS = (
    *cluster_compatibility.IMPLEMENTATIONS,
    *permission_checks.IMPLEMENTATIONS,
    *policy_checks.IMPLEMENTATIONS,
    *virtual_node.IMPLEMENTATIONS,
    *kubelet_certificate.IMPLEMENTATIONS,
    *network_paths.IMPLEMENTATIONS,
    *workloads.IMPLEMENTATIONS,
    *daemonsets.IMPLEMENTATIONS,
    *remote_namespaces.IMPLEMENTATIONS,
    *storage.IMPLEMENTATIONS,
)


@dataclass(frozen=True, slots=True)
class NodeCheckSettings:
    """The options of a check of existing nodes."""

    home: KubeconfigRef
    name: str = ""
    """The virtual node; "" for all."""
    remote: KubeconfigRef | None = None
    """The remote's kubeconfig; None for the one that each node recorded."""
    network: NetworkChoice = "auto"
    """The network mode of a node without a join record."""


async def check_before_join(settings: JoinSettings) -> Report:
    """Checks two clusters that a join with these settings would use."""
    async with AsyncExitStack() as stack:
        home, remote = await asyncio.gather(
            check_connectivity(stack, settings.home, "home"),
            check_connectivity(stack, settings.remote, "remote"),
        )
        default = dns_label(remote.client.credentials.context if remote.client else "remote")
        context = CheckContext(settings, settings.name or default, home, remote)
        findings = [*home.findings, *remote.findings]
        findings += await _run(context, [it for it in IMPLEMENTATIONS if "node" not in it.needs])
    return build_report("preflight", findings)


async def check_nodes(settings: NodeCheckSettings) -> Report:
    """Checks home's virtual nodes, or one of them."""
    async with AsyncExitStack() as stack:
        home = await check_connectivity(stack, settings.home, "home")
        if home.client is None:
            return build_report("health", home.findings)
        nodes, problems = await _virtual_nodes(home.client, settings.name)
        results = await asyncio.gather(
            *(_check_node(stack, settings, home, home.client, it) for it in nodes)
        )
    found = [*home.findings, *problems, *(finding for result in results for finding in result)]
    # Findings about home are the same for each node.
    return build_report("health", dict.fromkeys(found))


async def _virtual_nodes(home: KubeClient, name: str) -> tuple[list[Object], list[Finding]]:
    """The virtual nodes to check, or why there are none."""
    hint = "see `kubectl get nodes`; before a join, `bridge check --pre --kubeconfig REMOTE`"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            if not name:
                nodes = (await home.list(NODES, labels=LABEL_REMOTE)).items
                none = [error("BRG301", "home", "home has no virtual node", hint)]
                return nodes, [] if nodes else none
            node = await home.find(NODES, name)
    except Forbidden as problem:
        if name:
            return [], [_failed_request("BRG301", problem, "home")]
        reason = "the credential may not list nodes at home; a bridge's own may read its node only"
        hint = "name the virtual node: `bridge check NODE`"
        return [], [not_checked("BRG301", "home", reason, hint)]
    except (KubeError, TimeoutError) as problem:
        return [], [_failed_request("BRG301", problem, "home")]
    if node is None:
        return [], [error("BRG301", "home", f"home has no node {name}", hint)]
    if not is_virtual_node(node):
        text = f"node {name} is not a bridge's virtual node"
        return [], [error("BRG301", "home", text, hint)]
    return [node], []


async def _check_node(
    stack: AsyncExitStack,
    settings: NodeCheckSettings,
    home: ClusterConnectivity,
    home_client: KubeClient,
    node: Object,
) -> list[Finding]:
    name, ignored = name_of(node), list[str]()
    remote, ref = ClusterConnectivity("remote"), None
    reason = "this machine does not have the remote's kubeconfig that the node recorded"
    missing = not_checked("BRG102", "remote", reason, "name it with --kubeconfig")
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            ref = await resolve_remote_kubeconfig(
                stack, home_client, node, settings.remote, warn=ignored.append
            )
    except (KubeError, TimeoutError) as problem:
        missing = _failed_request("BRG102", problem, "home")
    if ref is None:
        remote.findings.append(missing)
    else:
        remote = await check_connectivity(stack, ref, "remote")
    join_settings = join_record.read_settings(
        node,
        home=settings.home,
        remote=ref or KubeconfigRef(),
        network=settings.network,
    )
    context = CheckContext(join_settings, name, home, remote, node)
    findings = [*(warning("BRG102", "remote", it) for it in ignored), *remote.findings]
    findings += await _run(context, [it for it in IMPLEMENTATIONS if not it.only_before_join])
    # A finding about home's API server or permissions is not about the node.
    return [
        it if it.side == "home" and it.id < "BRG300" else replace(it, node=name) for it in findings
    ]


# -- running checks ------------------------------------------------------------------------


async def _run(context: CheckContext, implementations: Sequence[Implementation]) -> list[Finding]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_run_one(context, it), name=it.check_id) for it in implementations
        ]
    return [finding for task in tasks for finding in task.result()]


async def _run_one(context: CheckContext, implementation: Implementation) -> Sequence[Finding]:
    check_id, scope = implementation.check_id, _scope(implementation)
    for requirement in implementation.needs:
        if reason := context.unavailable(requirement):
            return [not_checked(check_id, scope, reason)]
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await implementation.run(context)
    except BridgeError as problem:
        return [error(check_id, scope, str(problem).removeprefix(f"{scope}: "))]
    except (KubeError, TimeoutError) as problem:
        return [_failed_request(check_id, problem, scope)]
    except Exception as defect:  # noqa: BLE001  # a defect must not hide the other findings
        text = f"not checked: a defect in the bridge: {exception_summary.summary(defect)}"
        return [warning(check_id, scope, text, "please report it")]


def _scope(implementation: Implementation) -> Scope:
    sides = {it for it in implementation.needs if it != "node"}
    return "both" if len(sides) != 1 else ("home" if "home" in sides else "remote")


def _failed_request(check_id: str, problem: Exception, scope: Scope) -> Finding:
    """The finding of a check whose requests failed."""
    if isinstance(problem, Forbidden):
        option = "--home-kubeconfig" if problem.side == "home" else "--kubeconfig"
        hint = (
            f"check again with a credential that has this permission ({option}), or have it granted"
        )
        return not_checked(
            check_id, problem.side, f"the credential may not: {problem.message}", hint
        )
    hint = "check again; `kubectl get --raw /readyz` there shows the health of the API server"
    if isinstance(problem, KubeError):
        return warning(check_id, problem.side, f"not checked: {problem.message}", hint)
    return warning(check_id, scope, f"not checked: no answer in {CHECK_SECONDS:.0f} s", hint)


async def repeat_until_passing(
    run_checks: Callable[[], Awaitable[Report]], seconds: float, *, notify: Callable[[str], None]
) -> Report:
    """Repeats the checks until none is an error, or for ``seconds``; returns the last report."""
    loop = asyncio.get_running_loop()
    end, errors = loop.time() + seconds, list[str]()
    while True:
        report = await run_checks()
        left = end - loop.time()
        if not report.failed or left <= 0:
            return report
        if report.errors != errors:
            errors = report.errors
            notify(Waiting(f"waiting, {left:.0f} s more at most: {', '.join(errors)}"))
        await asyncio.sleep(min(REPEAT_SECONDS, left))
