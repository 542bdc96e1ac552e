"""`bridge bug-report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.command_output import Output, OutputOption, format_table, print_result
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    OptionalNode,
    RemoteContext,
    RemoteKubeconfig,
    check_argument,
    check_context,
)
from sync.kube.kubeconfig_ref import KubeconfigRef


def bug_report(
    node: OptionalNode = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Archive to write; must not exist. Default: bridge-bugreport-TIME.tar.gz.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    addresses: Annotated[
        bool, typer.Option("--addresses", help="Include the addresses of the API servers.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Collect the state of a virtual node, without secrets, in an archive for a bug report.

    Contains versions, the results of bridge check, the Node, its Leases, the status of pods,
    Events, and the names of the bridge's resources. Prints the list of files: read them before you
    send the archive.
    """
    from bridge.bug_report import collector
    from bridge.cli.run_until_signal import report_line, run

    check_context(kubeconfig, context)
    name = check_argument(node, "NODE") or ""
    settings = collector.BugReportSettings(
        KubeconfigRef(home_kubeconfig, home_context),
        name,
        KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        addresses,
    )
    path = file or collector.default_archive(time.localtime())

    async def written() -> list[dict[str, object]]:
        return collector.write_archive(path, await collector.collect(settings, notify=report_line))

    listed = run(lambda _: written(), stops=False)
    rows = [[str(it["file"]), str(it["bytes"]), str(it["what"])] for it in listed]
    print_result(
        {"archive": str(path), "files": listed},
        output,
        lambda: f"{path}\n\n{format_table(['file', 'bytes', 'what'], rows)}",
    )
