"""`bridge status`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, show
from bridge.cli.shared_options import HomeContext, HomeKubeconfig
from sync.kube.kubeconfig_ref import KubeconfigRef

NodeArgument = Annotated[
    str | None,
    typer.Argument(metavar="NODE", help="A virtual node; all unless given.", show_default=False),
]


def status(
    node: NodeArgument = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again when something changes.")
    ] = False,
    output: OutputOption = Output.TABLE,
    page: Annotated[
        bool,
        typer.Option(
            "--page", help="Make the node's own page reachable at this machine, and say where."
        ),
    ] = False,
    opens: Annotated[
        bool,
        typer.Option(
            "--open",
            envvar="CLUSTER_BRIDGE_STATUS_OPEN",
            help="The same, and open it in the browser.",
        ),
    ] = False,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Show virtual nodes as trees: conditions, capacity and use, pods, lag, errors, versions.

    Home's kubeconfig is enough. What the bridge says of itself comes through home's API server,
    with the right to get nodes/proxy. The exit code is 1 where a node is not Ready.
    """
    from bridge.cli.runner import fail, run, step

    page = page or opens
    if page and (watch or output is not Output.TABLE):
        raise fail("--page and --open show a page; leave --watch and --output out", code=2)
    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(stop: asyncio.Event) -> bool:
        from bridge.preflight.cluster_facts import connected, explained
        from bridge.status import node_status, terminal

        async with connected(home, side="home", told=lambda _: None) as client:
            with explained("home"):
                if page:
                    from bridge.status import local_page

                    await local_page.serve(client, node, stop=stop, opens=opens, announce=step)
                    return True
                if watch:
                    async with node_status.watched(client, node) as watched:
                        return await terminal.follow(watched, stop, output)
                found = await node_status.once(client, node)
            show({"nodes": found}, output, lambda: terminal.people(found), is_drawn=True)
            return terminal.are_ready(found)

    if not run(command, stops=watch or page):
        raise SystemExit(1)
