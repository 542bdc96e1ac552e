"""`python -m e2e.release COMMAND`: builds, verifies and signs a release.

Exit status 0: success; 1: the release cannot be built, or an artefact is wrong.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.release import (
    base_layer,
    debian_packages,
    python_locks,
    signing,
    verification,
)
from e2e.release import (
    build as building,
)
from e2e.release.architectures import ARCHITECTURES, native
from e2e.release.errors import ReleaseError
from e2e.release.source import REPOSITORY

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Folder = Annotated[Path, typer.Option("--dist", help="Folder of the release.")]
Version = Annotated[str, typer.Option("--version", help="Version that the commit must have.")]
Address = Annotated[
    str, typer.Option("--source", help="Address of the project, for labels and the plugin.")
]
_DIST = REPOSITORY / "dist"


@app.command()
def build(
    *, version: Version, dist: Folder = _DIST, source: Address = building.LOCAL_ADDRESS
) -> None:
    """Build the artefacts from the commit that is checked out."""
    with _reported():
        building.build(version, dist, address=source, cache=_cache(), progress=_say)
        for name in signing.checksums(dist):
            typer.echo(f"{(dist / name).stat().st_size:>11,}  {name}")


@app.command()
def verify(*, version: Version, dist: Folder = _DIST) -> None:
    """Install and run the artefacts as a user would."""
    with _reported(), tempfile.TemporaryDirectory(prefix="cluster-bridge-verify-") as folder:
        verification.verify(version, dist, Path(folder), _say)


@app.command()
def reproduce(*, version: Version, source: Address = building.LOCAL_ADDRESS) -> None:
    """Build twice, in different folders and circumstances, and compare every byte."""
    with _reported(), tempfile.TemporaryDirectory(prefix="cluster-bridge-twice-") as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        building.build(version, first, address=source, cache=_cache(), progress=_say)
        with verification.other_circumstances():
            building.build(version, second, address=source, cache=_cache(), progress=_say)
        compared = verification.compare(first, second)
        typer.echo(f"{compared} files of two builds are equal")


@app.command()
def sign(
    *,
    dist: Folder = _DIST,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the artefacts and print the commands only.")
    ] = False,
) -> None:
    """Sign checksums and provenance by the identity of the release workflow."""
    with _reported():
        if dry_run:
            signing.check(dist)
            for command in signing.commands(dist):
                typer.echo(shlex.join(command))
        else:
            signing.sign(dist)


@app.command()
def lock() -> None:
    """Update the locks to the newest packages."""
    with _reported(), tempfile.TemporaryDirectory(prefix="cluster-bridge-lock-") as folder:
        _say("resolving packages of Python")
        python_locks.update(REPOSITORY)
        _say("looking up packages of Debian")
        packages = debian_packages.newest()
        roots = {name: Path(folder) / name for name in ARCHITECTURES}
        for name, root in roots.items():
            base_layer.lay_out(debian_packages.fetch(packages[name], _cache()), root)
        interpreter = base_layer.Interpreter(roots[native().name], native())
        layers = {}
        for name, root in roots.items():
            interpreter.compile(root, f"usr/lib/{debian_packages.PYTHON}")
            layers[name] = base_layer.layer(root)[1]
        debian_packages.write_lock(packages, layers)


@contextmanager
def _reported() -> Iterator[None]:
    """Prints an error of the release, and ends with status 1."""
    try:
        yield
    except ReleaseError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def _cache() -> Path:
    return settings_from_environment().cache / "release"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app(prog_name="python -m e2e.release")
