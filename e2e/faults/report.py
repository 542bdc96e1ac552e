"""The results of a run: JSON, a table for a terminal, and one for docs/development/reliability.md.

Pure, except that it reads the machine's properties.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from e2e.faults.fault_model import COUNTED, Fault, Tally, Trial, tallies

FILE = Path(__file__).parents[2] / "docs" / "development" / "reliability.md"
BEGIN = "<!-- faults, made by `python -m e2e.faults table --write REPORT...`: do not edit -->"
END = "<!-- end -->"
#: Lines of a run and of a fault, as written by `document`.
_HEAD = re.compile(r"^- `python -m e2e\.faults run .*$", re.MULTILINE)
_ROW = re.compile(
    r"^\| (?P<fault>[^|]+) \| [^|]+ \| (?P<tried>\d+) \| (?P<trials>\d+) \| (?P<counted>[^|]+) \|$",
    re.MULTILINE,
)
#: Width of output that is not a terminal.
_PLAIN_WIDTH = 140

Json = Mapping[str, Any]


def report(trials: Sequence[Trial], faults: Sequence[Fault], **parameters: Any) -> dict[str, Any]:
    """A run as JSON. Each of ``faults`` has a row, even without a trial."""
    found = {tally.fault: tally for tally in tallies(list(trials))}
    rows = [found.pop(fault.name, Tally(fault.name)) for fault in faults]
    return {
        "asked": parameters,
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "faults": [tally.as_json() for tally in (*rows, *found.values())],
        "counted": [
            {
                "fault": trial.fault,
                "findings": list(map(str, trial.findings)),
                "failed": trial.failed,
            }
            for trial in trials
            if not trial.clean
        ],
    }


def is_clean(found: Json) -> bool:
    """Whether there are no findings and failures."""
    return not found["counted"]


def show(found: Json) -> None:
    """Prints the report on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=_PLAIN_WIDTH, no_color=True)
    table = Table(title=_title(found), title_justify="left")
    table.add_column("fault")
    for column in ("tried", "audits", "counted"):
        table.add_column(column, justify="right")
    for row in found["faults"]:
        style = "red" if any(row["counted"].values()) else None
        cells = (row["fault"], str(row["tried"]), str(row["trials"]), _counted(row["counted"]))
        table.add_row(*cells, style=style)
    console.print(table)
    for one in found["counted"]:
        for line in (*one["findings"], *one["failed"]):
            console.print(f"{one['fault']}: {line}", markup=False, highlight=False)


def document(faults: Sequence[Fault], reports: Sequence[Json], recorded: str = "") -> str:
    """The table of docs/development/reliability.md: a row for every fault, tried or not.

    ``recorded`` is an earlier document; its runs and counts are added.
    """
    rows = {fault.name: Tally(fault.name) for fault in faults}
    for found in (_recorded(recorded), *reports):
        for row in found["faults"]:
            tally = rows.setdefault(row["fault"], Tally(row["fault"]))
            tally.trials += row["trials"]
            tally.tried += row["tried"]
            tally.counted.update(row["counted"])
    effects = {fault.name: fault.what for fault in faults}
    lines = ["| fault | what is done | tried | audits | counted |", "|---|---|---:|---:|---|"]
    for name, tally in rows.items():
        counted = _counted(tally.counted) if tally.tried else "not tried"
        what = effects.get(name, "jobs end, then all is deleted; no managed object is left")
        lines.append(f"| {name} | {what} | {tally.tried} | {tally.trials} | {counted} |")
    heads = _HEAD.findall(recorded)
    heads += [f"- {_title(found)}" for found in reports]
    heads = heads or ["- none yet"]
    return "\n".join(["Runs:", "", *heads, "", *lines])


def _recorded(text: str) -> Json:
    """The counts of an earlier document, in the form of a report."""
    return {
        "faults": [
            {
                "fault": row["fault"],
                "tried": int(row["tried"]),
                "trials": int(row["trials"]),
                "counted": _read_counted(row["counted"]),
            }
            for row in _ROW.finditer(text)
        ]
    }


def _read_counted(text: str) -> dict[str, int]:
    """The inverse of `_counted`."""
    if text in ("0", "not tried"):
        return {}
    pairs = (part.partition(" ") for part in text.split(", "))
    return {name: int(number) for number, _, name in pairs}


def renewed(text: str, table: str) -> str:
    """The document with a new table between its marks.

    :raises ValueError: the marks are missing.
    """
    before, begun, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begun and end):
        raise ValueError(f"no {BEGIN!r} … {END!r} in {FILE.name}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _title(found: Json) -> str:
    parameters = found["asked"]
    machine = found["machine"]
    command = "python -m e2e.faults run"
    command += f" --minutes {parameters['minutes']:g} --seed {parameters['seed']}"
    command += "".join(f" --only {name!r}" for name in parameters.get("only", ()))
    tried = sum(row["tried"] for row in found["faults"])
    return (
        f"`{command}`: {tried} faults in {parameters['took'] / 60:.0f} minutes, Kubernetes "
        f"{parameters['kubernetes']}, {machine['cpus']} CPUs, Python {machine['python']}"
    )


def _counted(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{counted[name]} {name}" for name in COUNTED if counted.get(name)) or "0"
