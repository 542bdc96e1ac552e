"""`bridge bugreport`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, format_table, print_result
from bridge.base.settings import SettingsError, check_name
from bridge.cli.shared_options import HomeContext, HomeKubeconfig, RemoteContext, RemoteKubeconfig
from sync.kube.kubeconfig_ref import KubeconfigRef


def bugreport(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="The virtual node; all that home has unless given.",
            show_default=False,
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="The archive to write; bridge-bugreport-TIME.tar.gz unless given. One that exists "
            "is left alone.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    addresses: Annotated[
        bool, typer.Option("--addresses", help="Tell the addresses of the API servers too.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write down what is known of a virtual node, with nothing in it that is secret.

    Versions, what bridge check finds, the Node, its Leases, pods' status, Events, and the names of
    what the bridge has made. What is in the archive is listed: read it before you send it.
    """
    from bridge.bug_report import archive
    from bridge.bug_report.collector import BugReportSettings, collect
    from bridge.cli.runner import fail, run, step

    if context and not kubeconfig:
        raise fail("--context is one of a kubeconfig; name that with --kubeconfig", code=2)
    try:
        name = check_name(node, "NODE") if node is not None else ""
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = BugReportSettings(
        KubeconfigRef(home_kubeconfig, home_context),
        name,
        KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        addresses,
    )
    path = file or archive.default_name(time.localtime())

    async def written() -> list[dict[str, object]]:
        return archive.write(path, await collect(settings, notify=step))

    listed = run(lambda _: written(), stops=False)
    rows = [[str(it["file"]), str(it["bytes"]), str(it["what"])] for it in listed]
    print_result(
        {"archive": str(path), "files": listed},
        output,
        lambda: f"{path}\n\n{format_table(['file', 'bytes', 'what'], rows)}",
    )
