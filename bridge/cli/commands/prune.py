"""`bridge prune`."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.command_output import NamesOutputOption, Output, format_table, print_result
from bridge.base.join_settings import SettingsError, check_name, parse_remote_namespaces
from bridge.cli.options.common_options import CLUSTERS, RemoteContext, Yes, duration_option
from bridge.cli.options.option_declaration import is_given
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

#: A home's identity as the table has it (`translators.virtual_node_identity.home_id_from_uid`).
_HOME = re.compile(r"[0-9a-f]{16}")


def prune(
    ctx: typer.Context,
    *,
    kubeconfig: Annotated[
        Path,
        typer.Option(
            help="Kubeconfig of the remote cluster.", show_default=False, rich_help_panel=CLUSTERS
        ),
    ],
    context: RemoteContext = None,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="HOME",
            help="Remove the resources of this home cluster, after confirmation; HOME is an ID of "
            "the list.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="With --remove: only those of this virtual node of that home."),
    ] = None,
    remote_namespaces: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Prepared namespaces, NAME[,NAME], for a kubeconfig that may read these alone. "
            "Default: the whole remote.",
            show_default=False,
        ),
    ] = "",
    timeout: Annotated[
        float, duration_option("Maximum time to wait for pods to terminate.")
    ] = 600.0,
    yes: Yes = False,
    output: NamesOutputOption = Output.TABLE,
) -> None:
    """List or remove what bridges left in a remote cluster, without a home cluster.

    For home clusters that no longer exist, and for what bridge leave could not reach or was asked
    to keep. Shows when a bridge last wrote each home's resources; only you know whether a bridge
    still manages them.
    """
    from bridge.cli.run_until_signal import STOP_SECONDS, confirm_removal, fail, report_line, run
    from bridge.prune import remote_leftovers
    from bridge.prune.remote_leftovers import PruneSettings

    ref = KubeconfigRef(kubeconfig, context)
    try:
        namespaces = parse_remote_namespaces(remote_namespaces)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if remove is None:
        if node is not None or yes:
            raise fail("--node and --yes require --remove HOME", code=2)
        listing = PruneSettings(ref, namespaces=namespaces)
        found = run(
            lambda _: remote_leftovers.list_leftovers(listing, notify=report_line), stops=False
        )
        print_result(
            {"leftovers": found},
            output,
            lambda: _table(found) if found else "no bridge has resources in this cluster",
            names=lambda: [f"home/{it['home']}" for it in found],
        )
        return
    if is_given(ctx, "output"):
        raise fail("--output and --remove exclude each other", code=2)
    if not _HOME.fullmatch(remove):
        raise fail(
            f'--remove: "{remove}" is not the ID of a home cluster; use one of the list, 16 digits '
            "of 0-9 and a-f",
            code=2,
        )
    try:
        only = check_name(node, "--node") if node is not None else ""
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = PruneSettings(ref, remove, only, timeout, namespaces)
    if not yes and not sys.stdin.isatty():
        raise fail(
            "standard input is not a terminal; use --yes to remove without confirmation", code=2
        )

    confirm = functools.partial(confirm_removal, assume_yes=yes)
    if not run(
        lambda _: remote_leftovers.remove_leftovers(settings, notify=report_line, confirm=confirm),
        stops=False,
        exit_within=STOP_SECONDS,
    ):
        raise fail("nothing was removed")


def _table(found: list[Object]) -> str:
    return format_table(list(found[0]), [list(map(str, it.values())) for it in found])
