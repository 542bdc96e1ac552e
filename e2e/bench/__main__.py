"""`python -m e2e.bench COMMAND`: JSON reports on standard output; progress, and tables of figures
and targets, on standard error.

Uses the clusters of ``--prefix``; clusters that are not up are started, and removed afterwards. If
a run lost or left a pod, the exit status is 1, and the report has the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from e2e import bridge_image, debian_image
from e2e.bench import (
    performance_page,
    relay_forward,
    relay_reverse,
    report_tables,
)
from e2e.bench import remotes as remotes_bench
from e2e.bench import streams as stream_bench
from e2e.bench import volume as volume_bench
from e2e.bench import watches as watches_bench
from e2e.bench.pods.commands import PREFIX
from e2e.bench.pods.commands import app as pods
from e2e.bench.report_output import measured, print_reports, say, with_targets
from e2e.bench.suites import SUITES, Streams
from e2e.clusters import ClusterSpec, Nodes, Settings, down, find, specs, up
from e2e.clusters.cluster import Cluster

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
app.add_typer(pods)

StreamsPrefix = Annotated[str, typer.Option(help="The set of clusters to use.")]
Rounds = Annotated[int, typer.Option(help="Number of rounds.", min=1)]
Megabytes = Annotated[int, typer.Option(help="Size of a download.", min=1)]
Idle = Annotated[int, typer.Option(help="Number of idle connections, for their memory.", min=0)]


@app.command()
def streams(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 7,
    megabytes: Annotated[int, typer.Option(help="Data per stream.", min=1)] = 200,
    idle: Annotated[
        int, typer.Option(help="Number of idle streams, for their memory.", min=0)
    ] = 200,
) -> None:
    """Measure exec, port-forward and logs: throughput and latency, with and without the bridge."""
    with print_reports("streams") as add:
        add(_streams(Streams(rounds=rounds, megabytes=megabytes, idle=idle), prefix))


@app.command()
def relay(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    megabytes: Megabytes = 200,
    idle: Idle = 0,
    without_spdy: Annotated[
        bool, typer.Option("--without-spdy", help="Open a WebSocket for each connection.")
    ] = False,
) -> None:
    """Measure connections to Services through the bridge, and over a flat network."""
    wanted = relay_forward.Settings(
        rounds=rounds, size=megabytes * 10**6, idle=idle, without_spdy=without_spdy
    )
    with print_reports("relay") as add, _pair(prefix) as (home, remote, log):
        add(with_targets(relay_forward.run(home, remote, wanted, say, log).as_json()))


@app.command("relay-back")
def relay_back(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    megabytes: Megabytes = 200,
    idle: Idle = 0,
) -> None:
    """Measure connections from the remote to home's pods through a relay agent."""
    wanted = relay_forward.Settings(rounds=rounds, size=megabytes * 10**6, idle=idle)
    with print_reports("relay-back") as add, _pair(prefix) as (home, remote, log):
        made = bridge_image.load(remote, Settings(prefix=prefix).cache, say)
        add(with_targets(relay_reverse.run(home, remote, wanted, say, log, image=made).as_json()))


@app.command()
def watches(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    watches: Annotated[int, typer.Option("--watches", "-n", help="Number of watches.", min=1)] = (
        1000
    ),
) -> None:
    """Measure the memory of a watch of one object, with and without HTTP/2."""
    with print_reports("watches") as add, _pair(prefix) as (home, _, __):
        report = watches_bench.run(home, say, watches=watches, rounds=rounds)
        add(with_targets(report.as_json()))


@app.command()
def volume(
    *,
    prefix: StreamsPrefix = "cb",
    rounds: Rounds = 3,
    megabytes: Annotated[int, typer.Option(help="Size of the volume.", min=1)] = 1000,
) -> None:
    """Measure the copy of a volume between two clusters, beside kubectl cp to one."""
    wanted = volume_bench.Settings(rounds=rounds, size=megabytes * 10**6)
    with print_reports("volume") as add, _pair(prefix) as (home, remote, log):
        image = debian_image.load((home, remote), Settings(prefix=prefix).cache, say)
        report = volume_bench.run(home, remote, wanted, say, log, image=image)
        add(with_targets(report.as_json()))


@app.command()
def remotes(
    *,
    prefix: StreamsPrefix = "cbremotes",
    remotes: Annotated[int, typer.Option("--remotes", "-n", help="Number of remotes.", min=1)] = 20,
    nodes: Annotated[int, typer.Option(help="Nodes of each remote.", min=1)] = 20,
    idle_seconds: Annotated[float, typer.Option(help="Time of the measurement.", min=30)] = 120.0,
) -> None:
    """Measure the bridges of many idle remotes that one release of the Helm chart runs."""
    with (
        print_reports("remotes") as add,
        _pair(
            prefix,
            [*specs(["home"]), *specs(["remote"], nodes=Nodes.SIMULATED, node_count=nodes)],
        ) as (home, remote, _),
    ):
        image = bridge_image.load(home, Settings(prefix=prefix).cache, say)
        report = remotes_bench.run(
            home, remote, say, image=image, remotes=remotes, idle_seconds=idle_seconds
        )
        add(with_targets(report.as_json()))


@app.command()
def short() -> None:
    """Run all benchmarks in short, in under ten minutes on two cores, to detect regressions."""
    _suite("short")


@app.command()
def full() -> None:
    """Run all benchmarks at the sizes of the targets: about two hours on two cores."""
    _suite("full")


@app.command()
def table(
    reports: Annotated[
        list[Path], typer.Argument(help="Reports of these commands.", exists=True, dir_okay=False)
    ],
    *,
    write: Annotated[
        bool, typer.Option(help="Write them into docs/development/performance.md.")
    ] = False,
) -> None:
    """Print the tables of docs/development/performance.md from the last reports."""
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


def _suite(name: str) -> None:
    suite = SUITES[name]
    with print_reports(name) as add:
        add(_streams(suite.streams, "cb"))
        for report in measured(suite.pods, nodes=suite.nodes, prefix=PREFIX):
            add(report)


def _streams(size: Streams, prefix: str) -> dict[str, Any]:
    wanted = stream_bench.Settings(rounds=size.rounds, size=size.megabytes * 10**6, idle=size.idle)
    with _pair(prefix) as (home, remote, log):
        return with_targets(
            stream_bench.as_report(stream_bench.run(home, remote, wanted, say, log))
        )


@contextmanager
def _pair(
    prefix: str, wanted: Sequence[ClusterSpec] = specs(["home", "remote"])
) -> Iterator[tuple[Cluster, Cluster, Path]]:
    """Two clusters, and the path of a bridge's log; clusters that are not up are started, and
    removed afterwards."""
    settings = Settings(prefix=prefix)
    before = set(find(settings))
    try:
        found = up(wanted, settings, say)
        with TemporaryDirectory() as folder:
            yield found["home"], found["remote"], Path(folder, "bridge.log")
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, say)


if __name__ == "__main__":
    app(prog_name="python -m e2e.bench")
