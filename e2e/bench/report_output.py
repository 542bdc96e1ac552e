"""Output of all commands: JSON on standard output, and a table on standard error.

A failed run appears in both, and in the exit status.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp
import typer
import uvloop

from e2e.bench import report_tables
from e2e.bench.pods.audit_log import LogGone
from e2e.bench.pods.benchmark_client import ApiFailed
from e2e.bench.pods.load_targets import ClusterPair, connected
from e2e.bench.pods.pod_load import PodsLost
from e2e.bench.report import Report, machine
from e2e.bench.targets import judge
from e2e.bridge_process import BridgeFailed
from e2e.clusters import Settings, down, find, specs, up
from e2e.clusters.cluster import Backend, Nodes
from sync.base.exception_summary import leaves

Json = dict[str, Any]
Measure = Callable[[ClusterPair], Awaitable[Report]]

#: Failures of a run: the report then has the reason instead of figures.
_FAILURES = (PodsLost, ApiFailed, BridgeFailed, LogGone, aiohttp.ClientError)


def say(line: str) -> None:
    """Prints a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def print_reports(name: str) -> Iterator[Callable[[Json], None]]:
    """Prints the reports that are added in the block: a single one as it is, several as
    ``reports``.

    Exits with status 1 if one of them failed.
    """
    found: list[Json] = []
    try:
        yield found.append
    finally:
        # After an interruption, the measurements so far are printed, too.
        if found:
            _print(name, found)
    if any("failed" in one for one in found):
        raise typer.Exit(1)


def _print(name: str, found: Sequence[Json]) -> None:
    if len(found) == 1 and found[0]["benchmark"] == name:
        report = found[0]
    else:
        report = {"benchmark": name, "machine": machine(), "reports": found}
    report_tables.show(report)
    typer.echo(json.dumps(report, indent=2))


def measured(measures: Mapping[str, Measure], *, nodes: int, prefix: str) -> Iterator[Json]:
    """Reports of these benchmarks, in sequence, on clusters with simulated nodes; clusters that are
    not up are started, and removed afterwards."""
    settings = Settings(prefix=prefix, backend=Backend.NATIVE)
    home = specs(["home"], nodes=Nodes.SIMULATED)
    remote = specs(["remote"], nodes=Nodes.SIMULATED, node_count=nodes)
    before = set(find(settings))

    async def run(measure: Measure) -> Report:
        async with connected(clusters) as pair:
            return await measure(pair)

    def run_in_loop(measure: Measure) -> Report:
        return uvloop.run(run(measure))

    try:
        clusters = up([*home, *remote], settings, say)
        for name, measure in measures.items():
            yield measured_report(name, partial(run_in_loop, measure))
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, say)


def measured_report(name: str, run: Callable[[], Report]) -> Json:
    """The report with its targets, or with the reason of its failure."""
    failed: list[str] = []
    report: Json = {}
    try:
        report = run().as_json()
    except* _FAILURES as group:
        failed = [str(one) or repr(one) for one in leaves(group)]
    if failed:
        return {"benchmark": name, "machine": machine(), "failed": "; ".join(failed)}
    return with_targets(report)


def with_targets(report: Json) -> Json:
    """The report with the verdicts on its figures."""
    return {**report, "targets": [one.as_json() for one in judge(report)]}
