"""`bridge cordon`, `bridge uncordon` and `bridge drain`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.base.command_output import Output, OutputOption, print_result
from bridge.cli.options.common_options import (
    DryRun,
    HomeContext,
    HomeKubeconfig,
    Node,
    duration_option,
)
from bridge.cli.options.value_parsing import Duration
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object


def _grace_period(value: str) -> float | None:
    """Seconds; None for each pod's own, which ``-1`` means as in kubectl."""
    return None if str(value) == "-1" else Duration()(value)


def cordon(
    node: Node,
    *,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Mark a virtual node unschedulable. Running pods are unaffected."""
    home = KubeconfigRef(home_kubeconfig, home_context)
    _cordon(home, node, wanted=True, dry_run=dry_run, output=output)


def uncordon(
    node: Node,
    *,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Mark a virtual node schedulable again."""
    home = KubeconfigRef(home_kubeconfig, home_context)
    _cordon(home, node, wanted=False, dry_run=dry_run, output=output)


def drain(
    node: Node,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also evict pods without a controller, which nothing replaces."
        ),
    ] = False,
    delete_emptydir_data: Annotated[
        bool,
        typer.Option(
            "--delete-emptydir-data",
            help="Also evict pods with emptyDir volumes, whose data is lost.",
        ),
    ] = False,
    ignore_daemonsets: Annotated[
        bool, typer.Option(help="Skip pods of DaemonSets instead of failing.")
    ] = True,
    grace_period: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            help="Time for each pod to terminate. Default: the pod's own grace period.",
            parser=_grace_period,
        ),
    ] = None,
    timeout: Annotated[
        float, duration_option("Maximum time to wait for pods to terminate.")
    ] = 600.0,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Cordon a virtual node and evict its pods, within their PodDisruptionBudgets.

    As kubectl drain: pods without a controller and pods with emptyDir volumes require an option;
    without it nothing is evicted. Pods of DaemonSets stay. A bridge must serve the node. After a
    failure or an interruption the node stays cordoned: drain it again, or uncordon it.
    """
    from bridge.cli.run_until_signal import report_line, run

    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.drain import drain_procedure
        from bridge.drain.pod_filters import DrainOptions

        options = DrainOptions(
            force=force,
            delete_emptydir_data=delete_emptydir_data,
            ignore_daemonsets=ignore_daemonsets,
            grace_period=None if grace_period is None else int(grace_period),
        )
        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                done = await drain_procedure.drain(
                    client,
                    node,
                    options=options,
                    timeout=timeout,
                    dry_run=dry_run,
                    notify=report_line,
                )
        data: Object = {
            "node": node,
            "cordoned": True,
            "changed": done.newly_cordoned,
            "evicted": drain_procedure.pod_references(done.evicted),
            "stay": drain_procedure.pod_references(done.skipped),
            "dryRun": dry_run,
        }
        print_result(data, output, lambda: _drained(data))

    run(command, stops=False)


def _cordon(home: KubeconfigRef, node: str, *, wanted: bool, dry_run: bool, output: Output) -> None:
    from bridge.cli.run_until_signal import run

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.drain import drain_procedure

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                changed = await drain_procedure.cordon(
                    client, node, unschedulable=wanted, dry_run=dry_run
                )
        data: Object = {"node": node, "cordoned": wanted, "changed": changed, "dryRun": dry_run}
        word = "cordoned" if wanted else "uncordoned"
        message = f"node {node} {word if changed else f'is {word} already'}{_dry(dry_run)}"
        print_result(data, output, lambda: message)

    run(command, stops=False)


def _drained(data: Object) -> str:
    lines = [f"pod {it['namespace']}/{it['name']} evicted" for it in data["evicted"]]
    lines += [f"pod {it['namespace']}/{it['name']} stays: of a DaemonSet" for it in data["stay"]]
    lines.append(f"node {data['node']} drained")
    return "\n".join(f"{line}{_dry(data['dryRun'])}" for line in lines)


def _dry(dry_run: bool) -> str:
    return " (dry run)" if dry_run else ""
