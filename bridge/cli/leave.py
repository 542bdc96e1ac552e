"""`bridge leave`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bridge.cli.options import CLUSTERS, HomeContext, HomeKubeconfig
from bridge.settings import SettingsError, check_name
from sync.kube.kubeconfig import KubeconfigRef


def leave(
    *,
    name: Annotated[str, typer.Option(help="Name of the virtual node.", show_default=False)],
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="Kubeconfig of the remote; the one of the last join unless given.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="Context of that kubeconfig.", rich_help_panel=CLUSTERS),
    ] = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Leave although a bridge seems to serve the node.")
    ] = False,
) -> None:
    """Remove a virtual node, and what is the bridge's, from both clusters.

    Says what that is, and asks. Pods on the node are deleted; their controllers make others
    elsewhere. Nothing that is not the bridge's is touched.
    """
    from bridge.cli.running import ask, fail, run, step
    from bridge.leave import LeaveSettings
    from bridge.leave import leave as leave_clusters

    try:
        check_name(name)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if context and not kubeconfig:
        raise fail("--context is one of a kubeconfig; name that with --kubeconfig", code=2)
    if not yes and not sys.stdin.isatty():
        raise fail("there is nobody to ask; say --yes to remove without a question", code=2)
    settings = LeaveSettings(
        name=name,
        home=KubeconfigRef(home_kubeconfig, home_context),
        remote=KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        force=force,
    )

    def agree(lines: list[str]) -> bool:
        if not lines:
            typer.echo("nothing is left to remove", err=True)
            return True
        typer.echo("To be removed:\n  " + "\n  ".join(lines), err=True)
        return yes or ask("Remove all this?")

    if not run(lambda _: leave_clusters(settings, told=step, agree=agree), stops=False):
        raise fail("nothing was removed")
