"""The commands of `python -m e2e.bench` that measure pods."""

from __future__ import annotations

from typing import Annotated

import typer

from e2e.bench.pods import burst as burst_bench
from e2e.bench.pods import idle_and_restart, revision_pair
from e2e.bench.pods import latency as latency_bench
from e2e.bench.pods.load_targets import LEAST, LOAD_TARGETS
from e2e.bench.pods.pod_load import Shape
from e2e.bench.pods.revision_pair import LeastBridgeChanged
from e2e.bench.report_output import Measure, measured, print_reports, say
from e2e.revisions import RevisionError, source_tree

#: A separate set of clusters, with simulated nodes.
PREFIX = "bench"

app = typer.Typer()

Pods = Annotated[int, typer.Option("--pods", "-n", help="Number of pods.", min=1)]
Rounds = Annotated[int, typer.Option(help="Number of rounds.", min=1)]
NodeCount = Annotated[int, typer.Option("--nodes", help="Number of remote nodes.", min=1)]
Prefix = Annotated[str, typer.Option(help="The set of clusters to use.")]


@app.command()
def burst(
    *,
    pods: Pods = 1000,
    rounds: Rounds = 3,
    namespaces: Annotated[int, typer.Option(help="Namespaces of the pods.", min=1)] = 1,
    references: Annotated[int, typer.Option(help="ConfigMaps that the pods share.", min=1)] = 10,
    tokens: Annotated[
        bool, typer.Option(help="Mount a service account token in the pods.")
    ] = False,
    kilobytes: Annotated[
        int, typer.Option(help="Kilobytes of environment variables of each pod.", min=0)
    ] = 0,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Targets: {', '.join(LOAD_TARGETS)}; default: all.")
    ] = None,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Create many pods at once: in the remote, behind the minimal bridge, behind the bridge."""
    shape = Shape(
        pods, namespaces=namespaces, references=references, tokens=tokens, kilobytes=kilobytes
    )
    targets = tuple(only or LOAD_TARGETS)
    if not set(targets) <= set(LOAD_TARGETS) or (namespaces > 1 and LEAST in targets):
        raise typer.BadParameter("targets are direct, least (with one namespace) and bridge")
    measure = burst_bench.measure
    _run(
        "burst",
        lambda pair: measure(pair, shape, rounds=rounds, say=say, targets=targets),
        nodes,
        prefix,
    )


@app.command()
def pair(
    revision: Annotated[str, typer.Argument(metavar="REV", help="The revision to compare with.")],
    *,
    pods: Pods = 1000,
    rounds: Rounds = 3,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Run the burst of this tree and of REV in turn, and compare rate, CPU time and memory, also
    with those of the least bridge."""
    measure = revision_pair.measure
    try:
        revision_pair.check_least_bridge()
        with source_tree(revision) as tree:
            _run(
                "pair",
                lambda clusters: measure(
                    clusters, Shape(pods), revision=revision, tree=tree, rounds=rounds, say=say
                ),
                nodes,
                prefix,
            )
    except (LeastBridgeChanged, RevisionError) as error:
        say(f"error: {error}")
        raise typer.Exit(2) from None


@app.command()
def latency(
    *,
    pods: Pods = 100,
    rounds: Rounds = 3,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Measure the steps in the life of one pod at a time."""
    measure = latency_bench.measure
    _run(
        "latency",
        lambda pair: measure(pair, pods=pods, rounds=rounds, say=say),
        nodes,
        prefix,
    )


@app.command()
def idle(
    *,
    pods: Pods = 5000,
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(help="How long a round is.", min=1)] = 60.0,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Measure an idle bridge whose pods all run."""
    _run(
        "idle",
        lambda pair: idle_and_restart.idle(
            pair, Shape(pods), rounds=rounds, seconds=seconds, say=say
        ),
        nodes,
        prefix,
    )


@app.command()
def restart(
    *,
    pods: Pods = 5000,
    rounds: Rounds = 3,
    nodes: NodeCount = 20,
    prefix: Prefix = PREFIX,
) -> None:
    """Measure a join that finds all pods running."""
    _run(
        "restart",
        lambda pair: idle_and_restart.restart(pair, Shape(pods), rounds=rounds, say=say),
        nodes,
        prefix,
    )


def _run(name: str, measure: Measure, nodes: int, prefix: str) -> None:
    with print_reports(name) as add:
        for report in measured({name: measure}, nodes=nodes, prefix=prefix):
            add(report)
