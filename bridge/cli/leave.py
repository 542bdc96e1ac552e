"""`bridge leave`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.settings import SettingsError, check_name
from bridge.cli.shared_options import (
    HomeContext,
    HomeKubeconfig,
    RemoteContext,
    RemoteKubeconfig,
    Yes,
)
from sync.kube.kubeconfig_ref import KubeconfigRef

WORKLOADS = "What becomes of the pods"


def leave(
    *,
    name: Annotated[str, typer.Option(help="Name of the virtual node.", show_default=False)],
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Evict the pods first, as PodDisruptionBudgets allow it; best while the bridge "
            "still serves the node.",
            rich_help_panel=WORKLOADS,
        ),
    ] = False,
    keep_workloads: Annotated[
        bool,
        typer.Option(
            "--keep-workloads",
            help="Let the remote's pods run on with what they use, looked after by nobody.",
            rich_help_panel=WORKLOADS,
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            help="The longest wait for evictions, and for pods to end, in seconds.",
            min=1,
            rich_help_panel=WORKLOADS,
        ),
    ] = 600.0,
    cert_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the node's serving certificate; the one of the last join unless given."
        ),
    ] = None,
    yes: Yes = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Leave although a bridge serves the node, which ends that bridge, or although the "
            "remote cannot be reached; home is cleaned then, and what may be left there is told.",
        ),
    ] = False,
) -> None:
    """Remove a virtual node, and what is the bridge's, from both clusters.

    Says what that is, and asks. Pods on the node are deleted; their controllers make others
    elsewhere. Nothing that is not the bridge's is touched. Where it fails or is interrupted, run
    it again: it goes on where it stopped.
    """
    from bridge.cli.runner import STOP_SECONDS, agreed, fail, run, step
    from bridge.leave.procedure import leave as leave_clusters
    from bridge.leave.summary import LeaveSettings

    try:
        check_name(name)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if context and not kubeconfig:
        raise fail("--context is one of a kubeconfig; name that with --kubeconfig", code=2)
    if drain and keep_workloads:
        raise fail("--drain and --keep-workloads exclude each other", code=2)
    if not yes and not sys.stdin.isatty():
        raise fail("there is nobody to ask; say --yes to remove without a question", code=2)
    settings = LeaveSettings(
        name=name,
        home=KubeconfigRef(home_kubeconfig, home_context),
        remote=KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        force=force,
        drain=drain,
        keep_workloads=keep_workloads,
        timeout=timeout,
        cert_dir=cert_dir,
    )

    agree = functools.partial(agreed, unasked=yes)
    if not run(
        lambda _: leave_clusters(settings, notify=step, agree=agree),
        stops=False,
        end_by=STOP_SECONDS,
    ):
        raise fail("nothing was removed")
