"""`bridge status`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, print_result
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
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.status import status_client, terminal

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                if page:
                    from bridge.status import loopback_server

                    await loopback_server.serve(
                        client, node, stop=stop, open_browser=opens, announce=step
                    )
                    return True
                if watch:
                    async with status_client.watch_statuses(client, node) as watched:
                        return await terminal.follow(watched, stop, output)
                found = await status_client.read_statuses(client, node)
            print_result({"nodes": found}, output, lambda: terminal.render(found), is_drawn=True)
            return terminal.all_ready(found)

    if not run(command, stops=watch or page):
        raise SystemExit(1)
