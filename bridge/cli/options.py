"""Options that several commands have, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The heading in --help of the options that name clusters.
CLUSTERS = "The two clusters"

HomeKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of the home cluster; as kubectl finds it unless given.",
        rich_help_panel=CLUSTERS,
    ),
]
HomeContext = Annotated[
    str | None,
    typer.Option(
        help="Context of home's kubeconfig; its current one unless given.",
        rich_help_panel=CLUSTERS,
    ),
]
