"""`python -m e2e.docs`: writes the generated pages of docs/, and checks the site.

Exit status 0: success; 1: the site loads external resources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from e2e.docs import external_resources, generated_pages

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def write() -> None:
    """Write the generated pages."""
    for name, generate in generated_pages.GENERATED_PAGES.items():
        file = generated_pages.DOCS / name
        text = generate()
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
            typer.echo(f"{name}: written")


@app.command("offline")
def check(
    site: Annotated[Path, typer.Argument(help="Folder of the built site.")],
) -> None:
    """Check that no page of the site loads external resources."""
    found = external_resources.external_addresses(site)
    for line in found:
        typer.echo(line, err=True)
    if found:
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m e2e.docs")
