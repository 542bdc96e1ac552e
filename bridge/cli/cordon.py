"""`bridge cordon`, `bridge uncordon` and `bridge drain`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, print_result
from bridge.cli.shared_options import HomeContext, HomeKubeconfig
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.objects import Object

_Node = Annotated[str, typer.Argument(metavar="NODE", help="A virtual node.", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def cordon(
    node: _Node,
    *,
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Have a virtual node take no new pods. Those on it go on."""
    home = KubeconfigRef(home_kubeconfig, home_context)
    _cordon(home, node, wanted=True, dry_run=dry_run, output=output)


def uncordon(
    node: _Node,
    *,
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Have a virtual node take new pods again."""
    home = KubeconfigRef(home_kubeconfig, home_context)
    _cordon(home, node, wanted=False, dry_run=dry_run, output=output)


def drain(
    node: _Node,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Evict pods that no controller creates again, too.")
    ] = False,
    delete_emptydir_data: Annotated[
        bool,
        typer.Option(
            "--delete-emptydir-data",
            help="Evict pods with emptyDir volumes, whose data is lost, too.",
        ),
    ] = False,
    ignore_daemonsets: Annotated[
        bool, typer.Option(help="Leave pods of DaemonSets, rather than refuse to drain.")
    ] = True,
    grace_period: Annotated[
        int,
        typer.Option(help="Seconds that pods have to end; -1 for each pod's own.", min=-1),
    ] = -1,
    timeout: Annotated[
        float, typer.Option(help="The longest wait for pods to go, in seconds.", min=1)
    ] = 600.0,
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Cordon a virtual node and evict its pods, as PodDisruptionBudgets allow it.

    As `kubectl drain`: pods without a controller and pods with emptyDir volumes take an option, and
    nothing is evicted without it. Pods of DaemonSets stay. The bridge must serve the node. Where it
    fails or is interrupted, the node stays cordoned; drain again to go on, or uncordon it.
    """
    from bridge.cli.runner import run, step

    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.drain import node_commands as cordoning
        from bridge.drain.filters import DrainOptions

        options = DrainOptions(
            force=force,
            delete_emptydir_data=delete_emptydir_data,
            ignore_daemonsets=ignore_daemonsets,
            grace_period=grace_period if grace_period >= 0 else None,
        )
        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                done = await cordoning.drain(
                    client, node, options=options, timeout=timeout, dry_run=dry_run, notify=step
                )
        data: Object = {
            "node": node,
            "cordoned": True,
            "changed": done.newly_cordoned,
            "evicted": cordoning.pod_references(done.evicted),
            "stay": cordoning.pod_references(done.skipped),
            "dryRun": dry_run,
        }
        print_result(data, output, lambda: _drained(data))

    run(command, stops=False)


def _cordon(home: KubeconfigRef, node: str, *, wanted: bool, dry_run: bool, output: Output) -> None:
    from bridge.cli.runner import run

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.drain import node_commands as cordoning

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                changed = await cordoning.cordon(
                    client, node, unschedulable=wanted, dry_run=dry_run
                )
        data: Object = {"node": node, "cordoned": wanted, "changed": changed, "dryRun": dry_run}
        word = "cordoned" if wanted else "uncordoned"
        said = f"node {node} {word if changed else f'is {word} already'}{_dry(dry_run)}"
        print_result(data, output, lambda: said)

    run(command, stops=False)


def _drained(data: Object) -> str:
    lines = [f"pod {it['namespace']}/{it['name']} evicted" for it in data["evicted"]]
    lines += [f"pod {it['namespace']}/{it['name']} stays: of a DaemonSet" for it in data["stay"]]
    lines.append(f"node {data['node']} drained")
    return "\n".join(f"{line}{_dry(data['dryRun'])}" for line in lines)


def _dry(dry_run: bool) -> str:
    return " (dry run)" if dry_run else ""
