"""`bridge status` and `bridge dashboard`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.base.command_output import ListOutputOption, Output, print_result
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    OptionalNode,
    check_argument,
)
from sync.kube.kubeconfig_ref import KubeconfigRef


def status(
    node: OptionalNode = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print the status again when it changes.")
    ] = False,
    output: ListOutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Show virtual nodes: conditions, capacity and usage, pods, lag, errors and versions.

    Needs only home's kubeconfig, and get nodes/proxy at home for what the bridge itself reports.
    Exit code 1 if a node is not Ready.
    """
    from bridge.cli.run_until_signal import run

    check_argument(node, "NODE")
    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(stop: asyncio.Event) -> bool:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.status import status_client, terminal_output

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                if watch:
                    async with status_client.watch_statuses(client, node) as watched:
                        return await terminal_output.follow(watched, stop, output)
                found = await status_client.read_statuses(client, node)
            print_result(
                {"nodes": found},
                output,
                lambda: terminal_output.render(found),
                names=lambda: terminal_output.node_names(found),
                as_wide=lambda: terminal_output.render_table(found),
                is_drawn=True,
            )
            return terminal_output.all_ready(found)

    if not run(command, stops=watch):
        raise SystemExit(1)


def dashboard(
    node: OptionalNode = None,
    *,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 is any free port.")
    ] = 0,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Show all remotes, their pods and the last hour on a page of this machine, live.

    Serves the page read-only on 127.0.0.1, prints its address, opens it in the browser and runs
    until Ctrl-C. With NODE, the page shows this virtual node alone.
    """
    from bridge.cli.run_until_signal import report_line, run

    check_argument(node, "NODE")
    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(stop: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.dashboard import loopback_server

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                await loopback_server.serve(
                    client,
                    node,
                    ref=home,
                    port=port,
                    stop=stop,
                    open_browser=opens,
                    announce=report_line,
                )

    run(command)
