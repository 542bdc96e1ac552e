"""Options that several commands have, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridge.base.settings import LogFormat

#: The heading in --help of the options that name clusters.
CLUSTERS = "The two clusters"

HomeKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of the home cluster; as kubectl finds it unless given.",
        rich_help_panel=CLUSTERS,
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(help="How lines are written: for people, or as JSON objects for collectors."),
]
HomeContext = Annotated[
    str | None,
    typer.Option(
        help="Context of home's kubeconfig; its current one unless given.",
        rich_help_panel=CLUSTERS,
    ),
]
#: For commands about a node that exists: it remembers where its remote is.
RemoteKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of the remote; the one of the last join unless given.",
        rich_help_panel=CLUSTERS,
    ),
]
RemoteContext = Annotated[
    str | None,
    typer.Option(help="Context of that kubeconfig.", rich_help_panel=CLUSTERS),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def check_traces(endpoint: str | None) -> str:
    """The URL that ``--traces`` names; "" where none is. Ends the command where it is of no use."""
    from urllib.parse import urlsplit

    from bridge.cli.runner import fail
    from bridge.observability.traces import EXTRA, is_installed

    if endpoint is None:
        return ""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # Not what was written: it can hold a password.
        raise fail("--traces: write a URL such as http://collector:4318", code=2)
    if not is_installed():
        raise fail(f"--traces needs packages that are not installed: {EXTRA}", code=2)
    return endpoint
