"""`python -m e2e.bench COMMAND`: figures as JSON on standard output, progress on standard error.

The clusters are those of ``--prefix``; they are started when they are not up, and then taken down.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from e2e.bench import streams as bench
from e2e.bench.pods.commands import app as pods
from e2e.clusters import Settings, down, find, specs, up

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
app.add_typer(pods)


@app.command()
def streams(
    *,
    prefix: Annotated[str, typer.Option(help="The set of clusters to use.")] = "cb",
    rounds: Annotated[int, typer.Option(help="How often each is measured.", min=1)] = 7,
    megabytes: Annotated[int, typer.Option(help="What goes over a stream at once.", min=1)] = 200,
    idle: Annotated[int, typer.Option(help="Idle streams to measure memory with.", min=0)] = 200,
) -> None:
    """exec, port-forward and logs: throughput and latency, with and without the bridge."""
    settings = Settings(prefix=prefix)
    before = set(find(settings))
    try:
        found = up(specs(["home", "remote"]), settings, _say)
        wanted = bench.Settings(rounds=rounds, size=megabytes * 1_000_000, idle=idle)
        with TemporaryDirectory() as folder:
            log = Path(folder, "bridge.log")
            made = bench.run(found["home"], found["remote"], wanted, _say, log)
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, _say)
    typer.echo(bench.text(made))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app(prog_name="python -m e2e.bench")
