"""`bridge version`."""

from __future__ import annotations

import typer


def version() -> None:
    """Print the bridge's version."""
    from bridge.version import version as installed

    typer.echo(installed())
