"""`bridge version`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridge.base.command_output import Output, OutputOption, format_table, print_result
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    RemoteContext,
    RemoteKubeconfig,
    check_context,
)
from sync.kube.kubeconfig_ref import KubeconfigRef


def version(
    *,
    client: Annotated[
        bool,
        typer.Option(
            "--client", help="Print the version of this command only; contact no cluster."
        ),
    ] = False,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the versions of this command, of both clusters and of the running bridges.

    Shows the reason in place of a version that cannot be determined.
    """
    from bridge.cli.run_until_signal import run
    from bridge.status import version_report

    check_context(kubeconfig, context)
    if client:
        ours = {"client": version_report.client_version()}
        print_result(ours, output, lambda: str(ours["client"]["version"]))
        return
    home = KubeconfigRef(home_kubeconfig, home_context)
    remote = KubeconfigRef(kubeconfig, context) if kubeconfig else None
    found = run(lambda _: version_report.collect_versions(home, remote), stops=False)
    print_result(found, output, lambda: _table(found))


def _table(found: dict[str, Any]) -> str:
    rows = [["client", "", found["client"]["version"], f"python {found['client']['python']}"]]
    rows.append(["home", "", *_side(found["home"])])
    for node in found["nodes"]:
        served = f"served by {node['servedBy']}" if node["servedBy"] else "not served"
        rows.append(["bridge", node["name"], node["bridge"] or "?", served])
        rows.append(["remote", node["name"], *_side(node["remote"])])
    return format_table(["what", "node", "version", "note"], rows)


def _side(its: dict[str, Any]) -> list[str]:
    return [its["version"] or "?", its["problem"]]


def print_version(*, wanted: bool) -> None:
    """Prints the version and ends, for ``bridge --version``."""
    if wanted:
        from bridge.base.version import version as own_version

        typer.echo(f"cluster-bridge {own_version()}")
        raise typer.Exit
