"""`python -m e2e.conformance run|document`: the upstream tests on the real and the virtual node.

Prints the report as JSON to standard output, and progress to standard error. Exit status 0: the
virtual node passes every test that the real node passes; 1: it does not, or the tests could not
run; 2: invalid request. The environment selects the clusters, as for the tests
(`e2e/clusters/pytest_fixture.py`); clusters that were not up before are removed afterwards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from e2e.bridge_process import BridgeFailed
from e2e.clusters import Cluster, ClusterError, InvalidRequest, Settings, down, find, specs, up
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conformance import conformance_page, exceptions
from e2e.conformance.report import Report
from e2e.conformance.runner import Node, Request, conduct
from e2e.conformance.storage import Storage

# A real kubelet on two cores keeps up with so many concurrent tests, which mostly wait.
DEFAULT_PROCS = 8

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def run(
    *,
    focus: Annotated[str, typer.Option(help="Only tests of the selection that match this.")] = "",
    smoke: Annotated[bool, typer.Option("--smoke", help="Run a few quick tests only.")] = False,
    only: Annotated[Node | None, typer.Option(help="Run on one of the two nodes only.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="With --only virtual: an earlier report, for the real node's results."),
    ] = None,
    storage: Annotated[
        Storage | None,
        typer.Option(help="Only the tests of volumes, with volumes of this provisioner."),
    ] = None,
    procs: Annotated[int, typer.Option(help="Tests at a time.", min=1)] = DEFAULT_PROCS,
    repeat_failed: Annotated[
        bool, typer.Option(help="Repeat each failed test once, alone, and report both.")
    ] = True,
    output: Annotated[Path, typer.Option(help="Folder for logs and JUnit files.")] = Path(
        "conformance"
    ),
) -> None:
    """Run the selection on both nodes, and compare the results."""
    if baseline is not None and only is not Node.VIRTUAL:
        raise InvalidRequest("--baseline is for --only virtual", where="--baseline")
    request = Request(
        nodes=tuple(Node) if only is None else (only,),
        focus=focus,
        smoke=smoke,
        procs=procs,
        repeat_failed=repeat_failed,
        output=output.absolute(),
        baseline=json.loads(baseline.read_text()) if baseline else None,
        storage=storage,
    )
    settings = settings_from_environment()
    with _clusters(settings) as clusters:
        report, selection = conduct(request, clusters, settings, _say)
    about = {"kubernetes": str(settings.kubernetes), "left_out": selection.skipped}
    print(json.dumps(report.as_json(about), indent=2))
    _print_summary(report)
    if report.unexplained():
        raise typer.Exit(1)


@app.command()
def document(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether it is up to date.")
    ] = False,
) -> None:
    """Write the tables of docs/development/conformance.md from the selection and the exceptions."""
    there = conformance_page.FILE.read_text()
    made = conformance_page.renewed(there, exceptions.load(exceptions.FILE.read_text()))
    if made == there:
        return
    if check:
        _say(f"{conformance_page.FILE.name} is not up to date: run this without --check")
        raise typer.Exit(1)
    conformance_page.FILE.write_text(made)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        app(prog_name="python -m e2e.conformance")
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (ClusterError, BridgeFailed) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


@contextmanager
def _clusters(settings: Settings) -> Iterator[dict[str, Cluster]]:
    """Both clusters; those that were not up before are removed afterwards."""
    wanted = specs()
    before = set(find(settings))
    try:
        yield up(wanted, settings, _say)
    finally:
        if started := [spec.name for spec in wanted if spec.name not in before]:
            down(started, settings, _say)


def _print_summary(report: Report) -> None:
    """Prints the report in a few lines."""
    for name in report.unexplained():
        _say(f"fails on the virtual node: {name}")
    for name in report.stale():
        _say(f"obsolete exception, the test passes: {name}")
    for name in report.flaky():
        _say(f"failed on the virtual node, and passed when it was repeated: {name}")
    for node, counts in report.counts().items():
        _say(f"{node} node: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
