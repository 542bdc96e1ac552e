"""`python -m e2e.docs`: makes the pages of docs/ that are made from the code, and checks the site.

Exit status 0: done; 1: a site that needs something from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from e2e.docs import external_resources, generated_pages

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def write() -> None:
    """Make the pages anew."""
    for name, made in generated_pages.MADE.items():
        file = generated_pages.DOCS / name
        text = made()
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
            typer.echo(f"{name}: written")


@app.command("offline")
def check(
    site: Annotated[Path, typer.Argument(help="The folder of a site that is built.")],
) -> None:
    """Check that no page of the site loads anything from elsewhere."""
    found = external_resources.loaded(site)
    for line in found:
        typer.echo(line, err=True)
    if found:
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m e2e.docs")
