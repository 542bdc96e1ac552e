"""`bridge version`."""

from __future__ import annotations

from importlib import metadata

import typer


def version() -> None:
    """Print the bridge's version."""
    typer.echo(metadata.version("cluster-bridge"))
