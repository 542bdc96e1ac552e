"""`bridge leave` and `bridge uninstall`."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.base.join_settings import (
    SettingsError,
    invalid_option,
    parse_remote_namespaces,
)
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    Node,
    RemoteContext,
    RemoteKubeconfig,
    Yes,
    check_argument,
    check_context,
    duration_option,
)
from sync.kube.kubeconfig_ref import KubeconfigRef

WORKLOADS = "Pods of the virtual node"


def leave(
    node: Node,
    *,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Evict the pods first, within their PodDisruptionBudgets. Works best while the "
            "bridge still serves the node.",
            rich_help_panel=WORKLOADS,
        ),
    ] = False,
    keep_workloads: Annotated[
        bool,
        typer.Option(
            "--keep-workloads",
            help="Leave the remote pods and what they use running, unmanaged.",
            rich_help_panel=WORKLOADS,
        ),
    ] = False,
    keep_volumes: Annotated[
        bool,
        typer.Option(
            "--keep-volumes",
            help="Leave even if volumes of home have their data in the remote. Volumes and data "
            "stay, and pods can use them after the next join of this remote.",
            rich_help_panel=WORKLOADS,
        ),
    ] = False,
    timeout: Annotated[
        float,
        duration_option(
            "Maximum time to wait for evictions and for pods to terminate.", panel=WORKLOADS
        ),
    ] = 600.0,
    cert_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the node's serving certificate, if it was joined with --cert-dir."
        ),
    ] = None,
    remote_namespaces: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Prepared namespaces of the remote, NAME[,NAME], if its credential may read these "
            "alone. Default: those of the last join.",
            show_default=False,
        ),
    ] = "",
    deployment: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Deployment in the home cluster that runs the node's bridges and that another "
            "tool (the Helm chart) removes later: scaled to 0 after the evictions of --drain. "
            "Default: an installation of bridge install, which is removed.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Leave even if a bridge serves the node (that bridge ends), or if the remote is "
            "unreachable (only home is cleaned; the output lists what may remain there).",
        ),
    ] = False,
) -> None:
    """Remove a virtual node and the bridge's resources from both clusters.

    Lists these resources and asks for confirmation. Deletes the pods on the node; their controllers
    replace them elsewhere. Unmanaged resources are not touched. Run it again after a failure or an
    interruption: it resumes.
    """
    from bridge.cli.run_until_signal import STOP_SECONDS, confirm_removal, fail, report_line, run
    from bridge.leave.leave_procedure import leave as leave_clusters
    from bridge.leave.leave_summary import LeaveSettings

    check_argument(node, "NODE")
    try:
        namespaces = parse_remote_namespaces(remote_namespaces)
        place = None if deployment is None else _parse_deployment(deployment)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    check_context(kubeconfig, context)
    if drain and keep_workloads:
        raise fail("--drain and --keep-workloads exclude each other", code=2)
    if not yes and not sys.stdin.isatty():
        raise fail(
            "standard input is not a terminal; use --yes to remove without confirmation", code=2
        )
    settings = LeaveSettings(
        name=node,
        home=KubeconfigRef(home_kubeconfig, home_context),
        remote=KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        force=force,
        drain=drain,
        keep_workloads=keep_workloads,
        keep_volumes=keep_volumes,
        timeout=timeout,
        cert_dir=cert_dir,
        remote_namespaces=namespaces,
        deployment=place,
    )

    confirm = functools.partial(confirm_removal, assume_yes=yes)
    if not run(
        lambda _: leave_clusters(settings, notify=report_line, confirm=confirm),
        stops=False,
        exit_within=STOP_SECONDS,
    ):
        raise fail("nothing was removed")


def _parse_deployment(text: str) -> tuple[str, str]:
    """Namespace and name. Raises SettingsError."""
    parts = re.fullmatch(r"([a-z0-9-]+)/([a-z0-9.-]+)", text)
    if parts is None:
        raise invalid_option("--deployment", text, "a Deployment", "NAMESPACE/NAME")
    return parts[1], parts[2]


@functools.wraps(leave, assigned=("__annotations__",))
def uninstall(**options: Any) -> None:
    """Remove an installed bridge and its virtual node from both clusters.

    Same as bridge leave, which also removes the installation in the home cluster.
    """
    leave(**options)
