"""`python -m e2e.bench COMMAND`: figures as JSON on standard output; on standard error progress,
and a table that sets them beside their targets.

The clusters are those of ``--prefix``; they are started when they are not up, and then taken down.
A run that lost or left a pod fails: the exit status is 1, and the report says what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from e2e import bridge_image
from e2e.bench import memory_savings as memory_measures
from e2e.bench import performance_page, report_tables
from e2e.bench import relay_forward as carried
from e2e.bench import relay_reverse as back
from e2e.bench import streams as bench
from e2e.bench.pods.commands import PREFIX
from e2e.bench.pods.commands import app as pods
from e2e.bench.report_output import Plot, measured, print_reports, say, with_targets
from e2e.bench.suites import SUITES, Streams
from e2e.clusters import Settings, down, find, specs, up
from e2e.clusters.cluster import Cluster

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
app.add_typer(pods)

StreamsPrefix = Annotated[str, typer.Option(help="The set of clusters to use.")]
Rounds = Annotated[int, typer.Option(help="How often each is measured.", min=1)]
Megabytes = Annotated[int, typer.Option(help="What is downloaded at once.", min=1)]
Idle = Annotated[int, typer.Option(help="Idle connections to measure memory with.", min=0)]


@app.command()
def streams(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 7,
    megabytes: Annotated[int, typer.Option(help="What goes over a stream at once.", min=1)] = 200,
    idle: Annotated[int, typer.Option(help="Idle streams to measure memory with.", min=0)] = 200,
    plot: Plot = None,
) -> None:
    """exec, port-forward and logs: throughput and latency, with and without the bridge."""
    with print_reports("streams", plot) as add:
        add(_streams(Streams(rounds=rounds, megabytes=megabytes, idle=idle), prefix))


@app.command()
def relay(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    megabytes: Megabytes = 200,
    idle: Idle = 0,
    plot: Plot = None,
) -> None:
    """Connections to Services, carried by the bridge and over a flat network."""
    wanted = carried.Settings(rounds=rounds, size=megabytes * 10**6, idle=idle)
    with print_reports("relay", plot) as add, _pair(prefix) as (home, remote, log):
        add(with_targets(carried.run(home, remote, wanted, say, log).as_json()))


@app.command("relay-back")
def relay_back(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    megabytes: Megabytes = 200,
    idle: Idle = 0,
    plot: Plot = None,
) -> None:
    """The same from the remote to home's pods, through a relay pod of the bridge's image."""
    wanted = carried.Settings(rounds=rounds, size=megabytes * 10**6, idle=idle)
    with print_reports("relay-back", plot) as add, _pair(prefix) as (home, remote, log):
        made = bridge_image.load(remote, Settings(prefix=prefix).cache, say)
        add(with_targets(back.run(home, remote, wanted, say, log, image=made).as_json()))


@app.command()
def memory(
    *,
    rounds: Rounds = 3,
    pods: Annotated[
        int, typer.Option(help="Pods of the burst, of 30 containers each.", min=1)
    ] = 400,
) -> None:
    """Resident memory with and without each measure that saves memory; needs no cluster."""
    typer.echo(json.dumps(memory_measures.measure(rounds=rounds, pods=pods, say=say), indent=2))


@app.command()
def short(*, plot: Plot = None) -> None:
    """All of it in short, in under ten minutes on two cores: is anything slower than it was?"""
    _suite("short", plot)


@app.command()
def full(*, plot: Plot = None) -> None:
    """All of it at the sizes of the targets: about two hours on two cores."""
    _suite("full", plot)


@app.command()
def table(
    reports: Annotated[
        list[Path], typer.Argument(help="Reports of these commands.", exists=True, dir_okay=False)
    ],
    *,
    write: Annotated[
        bool, typer.Option(help="Put them into docs/development/performance.md.")
    ] = False,
) -> None:
    """Print the tables of docs/development/performance.md; the last report of each counts."""
    found = [
        part
        for file in reports
        for part in report_tables.parts(json.loads(file.read_text()))
        if "figures" in part
    ]
    if write:
        performance_page.FILE.write_text(
            performance_page.renewed(performance_page.FILE.read_text(), found)
        )
    else:
        typer.echo(f"{performance_page.targets(found)}\n\n{performance_page.figures(found)}")


def _suite(name: str, plot: Path | None) -> None:
    suite = SUITES[name]
    with print_reports(name, plot) as add:
        add(_streams(suite.streams, "cb"))
        for report in measured(suite.pods, nodes=suite.nodes, prefix=PREFIX):
            add(report)


def _streams(asked: Streams, prefix: str) -> dict[str, Any]:
    wanted = bench.Settings(rounds=asked.rounds, size=asked.megabytes * 10**6, idle=asked.idle)
    with _pair(prefix) as (home, remote, log):
        return with_targets(bench.as_report(bench.run(home, remote, wanted, say, log)))


@contextmanager
def _pair(prefix: str) -> Iterator[tuple[Cluster, Cluster, Path]]:
    """Two clusters, and where a bridge between them is to log; they are started when they are not
    up, and then taken down."""
    settings = Settings(prefix=prefix)
    before = set(find(settings))
    try:
        found = up(specs(["home", "remote"]), settings, say)
        with TemporaryDirectory() as folder:
            yield found["home"], found["remote"], Path(folder, "bridge.log")
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, say)


if __name__ == "__main__":
    app(prog_name="python -m e2e.bench")
