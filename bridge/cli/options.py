"""Options that several commands have, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeKubeconfig = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig of the home cluster; as kubectl finds it unless given."),
]
HomeContext = Annotated[
    str | None, typer.Option(help="Context of home's kubeconfig; its current one unless given.")
]
