"""The commands of `python -m e2e.bench` that measure pods."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
import uvloop

from e2e.bench.pods import burst as burst_bench
from e2e.bench.pods import growth as growth_bench
from e2e.bench.pods import latency as latency_bench
from e2e.bench.pods import resting
from e2e.bench.pods.load import Shape
from e2e.bench.pods.ways import WAYS, Pair, connected
from e2e.clusters import Settings, down, find, specs, up
from e2e.clusters.model import Backend, Nodes

#: A set of its own, with simulated nodes.
PREFIX = "bench"

app = typer.Typer()

Pods = Annotated[int, typer.Option("--pods", "-n", help="How many pods.", min=1)]
Rounds = Annotated[int, typer.Option(help="How often each is measured.", min=1)]
NodeCount = Annotated[int, typer.Option("--nodes", help="Nodes of the remote.", min=1)]
Prefix = Annotated[str, typer.Option(help="The set of clusters to use.")]


@app.command()
def burst(
    *,
    pods: Pods = 1000,
    rounds: Rounds = 3,
    namespaces: Annotated[int, typer.Option(help="Namespaces of the pods.", min=1)] = 1,
    references: Annotated[int, typer.Option(help="ConfigMaps that the pods share.", min=1)] = 10,
    tokens: Annotated[bool, typer.Option(help="Pods have a service account's token.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(WAYS)}; all unless given.")
    ] = None,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Many pods at once: made in the remote, behind the least bridge, behind the bridge."""
    shape = Shape(pods, namespaces=namespaces, references=references, tokens=tokens)
    ways = tuple(only or WAYS)
    if not set(ways) <= set(WAYS) or (namespaces > 1 and "least" in ways):
        raise typer.BadParameter("ways are direct, least (with one namespace) and bridge")
    measure = burst_bench.measure
    _run(lambda pair: measure(pair, shape, rounds=rounds, say=_say, ways_=ways), nodes, prefix)


@app.command()
def latency(*, pods: Pods = 100, nodes: NodeCount = 20, prefix: Prefix = PREFIX) -> None:
    """One pod at a time: the steps of its life."""
    _run(lambda pair: latency_bench.measure(pair, pods=pods, say=_say), nodes, prefix)


@app.command()
def idle(
    *,
    pods: Pods = 5000,
    seconds: Annotated[float, typer.Option(help="How long it is watched.", min=1)] = 60.0,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """What a bridge costs whose pods all run."""
    shape = Shape(pods)
    _run(lambda pair: resting.idle(pair, shape, seconds=seconds, say=_say), nodes, prefix)


@app.command()
def restart(*, pods: Pods = 5000, nodes: NodeCount = 20, prefix: Prefix = PREFIX) -> None:
    """What a join costs that finds all pods running."""
    _run(lambda pair: resting.restart(pair, Shape(pods), say=_say), nodes, prefix)


@app.command()
def growth(*, rounds: Rounds = 3, nodes: NodeCount = 20, prefix: Prefix = PREFIX) -> None:
    """Processor time a pod, at many pods, namespaces and ConfigMaps against few."""
    _run(lambda pair: growth_bench.measure(pair, rounds=rounds, say=_say), nodes, prefix)


def _run(measure: Callable[[Pair], Awaitable[dict[str, Any]]], nodes: int, prefix: str) -> None:
    """Measures on clusters that are started when they are not up, and then taken down."""
    settings = Settings(prefix=prefix, backend=Backend.NATIVE)
    home = specs(["home"], nodes=Nodes.SIMULATED)
    remote = specs(["remote"], nodes=Nodes.SIMULATED, node_count=nodes)
    before = set(find(settings))

    async def measured() -> dict[str, Any]:
        async with connected(clusters) as pair:
            return await measure(pair)

    try:
        clusters = up([*home, *remote], settings, _say)
        report = uvloop.run(measured())
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, _say)
    typer.echo(json.dumps(report, indent=2))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
