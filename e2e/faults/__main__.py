"""`python -m e2e.faults COMMAND`: faults on two real clusters, and an audit after each.

Uses the clusters of ``--prefix``; clusters that are not up are started, and removed afterwards.
The exit status is 1 if an audit found something or a trial failed.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from e2e.clusters import Settings, down, find, specs, up
from e2e.clusters.cluster import Backend
from e2e.faults import fault_list, report
from e2e.faults.environment import set_up
from e2e.faults.runner import Run, seeded

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

#: Faults need processes and network namespaces of this machine.
BACKEND = Backend.NATIVE


@app.command("list")
def list_faults() -> None:
    """List every fault: its name, what it does, and how it heals."""
    for fault in fault_list.FAULTS:
        typer.echo(f"{fault.name}\n    {fault.what}; {fault.heals}")


@app.command()
def run(
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only faults whose names have this prefix. Repeatable.", metavar="NAME"),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Minutes in which new trials start.", min=0)] = 30,
    seed: Annotated[int | None, typer.Option(help="Random seed; chosen if absent.")] = None,
    file: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file.", metavar="FILE")
    ] = None,
    write: Annotated[
        bool, typer.Option(help="Write the table into docs/development/reliability.md.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="The set of clusters to use.")] = "cb",
    verbose: Annotated[bool, typer.Option(help="Log every step of the load, too.")] = False,
) -> None:
    """Run trials of faults for some minutes, then print a table."""
    try:
        faults = fault_list.named(only or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from None
    folder = Path(mkdtemp(prefix="cluster-bridge-faults-"))
    chosen, begin = seeded(seed), time.monotonic()
    say(f"faults: --seed {chosen} --minutes {minutes:g}; logs are in {folder}")
    settings = Settings(prefix=prefix, backend=BACKEND)
    before = set(find(settings))
    try:
        found = up(specs(["home", "remote"]), settings, say)
        home, remote = found["home"], found["remote"]
        steps = (folder / "steps.log").open("w", buffering=1)

        def step(line: str) -> None:
            print(line, file=steps)
            if verbose:
                say(line)

        with steps, set_up(home, remote, settings, folder=folder, seed=chosen, say=step) as stage:
            made = Run(stage, say)
            plan = fault_list.plan(faults, random.Random(chosen))
            try:
                made.faults(plan, until=time.monotonic() + minutes * 60)
            finally:
                parameters = {"seed": chosen, "minutes": minutes, "only": only or []}
                took = time.monotonic() - begin
                result = report.report(
                    made.trials, faults, **parameters, took=took, kubernetes=home.kubernetes
                )
                report.show(result)
                if file is not None:
                    file.write_text(json.dumps(result, indent=2) + "\n")
    finally:
        if started := [name for name in find(settings) if name not in before]:
            down(started, settings, say)
    if write:
        _write([result])
    if not report.is_clean(result):
        raise typer.Exit(1)


@app.command()
def table(
    reports: Annotated[
        list[Path], typer.Argument(help="Reports of `run --json`.", exists=True, dir_okay=False)
    ],
    *,
    add: Annotated[bool, typer.Option(help="Add the reports to the runs on the page.")] = False,
    write: Annotated[
        bool, typer.Option(help="Write it into docs/development/reliability.md.")
    ] = False,
) -> None:
    """Print the table of docs/development/reliability.md, with the sums of these reports."""
    found = [json.loads(path.read_text()) for path in reports]
    recorded = report.FILE.read_text() if add else ""
    if write:
        _write(found, recorded)
    else:
        typer.echo(report.document(fault_list.FAULTS, found, recorded))


def _write(found: list[report.Json], recorded: str = "") -> None:
    made = report.document(fault_list.FAULTS, found, recorded)
    report.FILE.write_text(report.renewed(report.FILE.read_text(), made))


def say(line: str) -> None:
    """Prints a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app(prog_name="python -m e2e.faults")
