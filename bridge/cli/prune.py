"""`bridge garbage`."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.printable_text import escape_line
from bridge.base.settings import SettingsError, check_name
from bridge.cli.shared_options import CLUSTERS, RemoteContext, Yes
from sync.kube.kubeconfig_ref import KubeconfigRef

#: A home's identity as the table has it (`translators.identity.home_id_from_uid`).
_HOME = re.compile(r"[0-9a-f]{16}")


def garbage(
    *,
    kubeconfig: Annotated[
        Path,
        typer.Option(
            help="Kubeconfig of the remote.", show_default=False, rich_help_panel=CLUSTERS
        ),
    ],
    context: RemoteContext = None,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="HOME",
            help="Remove what this home has in the remote, after asking; HOME as in the list.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="Of that home's virtual nodes this one alone; NODE as in the list."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="The longest wait for pods to end, in seconds.", min=1)
    ] = 600.0,
    yes: Yes = False,
) -> None:
    """List or remove what bridges have left in a remote cluster, without asking any home.

    For homes that are gone, and what `bridge leave` could not reach or was told to keep. Says when
    a bridge last wrote there: whether one still looks after these objects, only you know.
    """
    from bridge.cli.runner import STOP_SECONDS, agreed, fail, run, step
    from bridge.prune.leftovers import PruneSettings, list_leftovers
    from bridge.prune.leftovers import remove_leftovers as remove_garbage

    ref = KubeconfigRef(kubeconfig, context)
    if remove is None:
        if node is not None or yes:
            raise fail("--node and --yes are for --remove HOME", code=2)
        for line in run(lambda _: list_leftovers(PruneSettings(ref), notify=step), stops=False) or [
            "no bridge has anything in this cluster"
        ]:
            typer.echo(escape_line(line))
        return
    if not _HOME.fullmatch(remove):
        raise fail(
            f"--remove {remove!r}: name a home as the list has it, 16 digits of 0-9 and a-f", code=2
        )
    try:
        only = check_name(node, "--node") if node is not None else ""
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = PruneSettings(ref, remove, only, timeout)
    if not yes and not sys.stdin.isatty():
        raise fail("there is nobody to ask; say --yes to remove without a question", code=2)

    agree = functools.partial(agreed, unasked=yes)
    if not run(
        lambda _: remove_garbage(settings, notify=step, agree=agree),
        stops=False,
        end_by=STOP_SECONDS,
    ):
        raise fail("nothing was removed")
