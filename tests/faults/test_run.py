"""The faults of a run, its counts, and its report."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

from e2e.audit import Finding, Kind
from e2e.faults import fault_list, report
from e2e.faults.clock import Clock
from e2e.faults.fault_model import COUNTED, Trial, tallies
from e2e.faults.untouched_pods import NAMES, compare, runs
from e2e.kubectl import Json
from tests.child_process import child_process

RUN_OPTIONS = {"seed": 7, "minutes": 30.0, "only": [], "took": 1800.0, "kubernetes": "1.34.4"}


def test_the_first_pass_has_each_fault_and_a_full_share_fifty_kills() -> None:
    faults = fault_list.FAULTS
    first = list(islice(fault_list.plan(faults, random.Random(1)), len(faults)))
    assert {fault.name for fault in first} == {fault.name for fault in faults}
    kills = [fault for fault in faults if fault.name.startswith("bridge: ")]
    ends = [fault for fault in kills if "kill" in fault.what or "SIGTERM" in fault.name]
    assert sum(fault.trials * fault.times * fault.counts for fault in ends) >= 50


def test_the_short_form_has_each_kind_of_fault() -> None:
    short = fault_list.short(fault_list.FAULTS)
    assert {fault.group for fault in short} >= {"bridge", "remote", "home", "answers", "by hand"}


def trials() -> list[Trial]:
    lost = Finding(Kind.LOST, "Pod a/b", "no remote pod")
    return [
        Trial("bridge: kill -9", tried=4),
        Trial("bridge: kill -9", tried=4, findings=[lost]),
        Trial("home: cut", tried=1, failed=["BridgeEnded: it ended"]),
    ]


def test_trials_are_added_up_by_fault() -> None:
    first, second = (tally.as_json() for tally in tallies(trials()))
    assert (first["fault"], first["trials"], first["tried"]) == ("bridge: kill -9", 2, 8)
    assert first["counted"] == {**dict.fromkeys(COUNTED, 0), "lost": 1}
    assert second["counted"]["failed"] == 1


def test_report_has_counts_and_untried_faults() -> None:
    made = json.loads(json.dumps(report.report(trials(), fault_list.FAULTS, **RUN_OPTIONS)))
    assert not report.is_clean(made)
    assert made["counted"][0]["findings"] == ["lost: Pod a/b: no remote pod"]
    text = report.document(fault_list.FAULTS, [made])
    rows = {row.split(" | ")[0]: row for row in text.splitlines() if row.startswith("| ")}
    assert rows["| bridge: kill -9"].endswith("| 8 | 2 | 1 lost |")
    assert rows["| home: cut"].endswith("| 1 | 1 | 1 failed |")
    assert rows["| remote: cut"].endswith("| 0 | 0 | not tried |")
    assert "`python -m e2e.faults run --minutes 30 --seed 7`: 9 faults in 30 minutes" in text
    clean = report.report(trials()[:1], fault_list.FAULTS, **RUN_OPTIONS)
    assert report.is_clean(clean)


def test_the_table_of_the_docs_has_a_row_for_every_fault() -> None:
    _, begin, rest = report.FILE.read_text().partition(report.BEGIN)
    assert begin
    there = rest.partition(report.END)[0]
    for fault in fault_list.FAULTS:
        assert f"| {fault.name} | {fault.what} |" in there, "run python -m e2e.faults table --write"


def witness(name: str, *, uid: str = "u", restarts: int = 0) -> Json:
    status = {"containerID": f"containerd://{restarts}", "restartCount": restarts}
    return {
        "metadata": {"name": name, "uid": uid},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def test_a_witness_that_was_touched_is_a_finding() -> None:
    always, never = NAMES
    before = runs([witness(always), witness(never), witness("another")])
    assert compare(before, runs([witness(always), witness(never)])) == []
    for touched in ([witness(always)], [witness(always), witness(never, uid="other")]):
        [found] = compare(before, runs(touched))
        assert (found.kind, found.subject) == (Kind.HARMED, f"Pod {never}")
    [found] = compare(before, runs([witness(always, restarts=1), witness(never)]))
    assert found.subject == f"Pod {always}"


_ECHO_SCRIPT = """
import sys, time
from datetime import UTC, datetime
for line in sys.stdin:
    now = datetime.now(UTC)
    ok = isinstance(now, datetime) and abs(now.timestamp() - time.time()) < 1
    print(time.time() if ok else "they differ", flush=True)
"""


def test_a_clock_steps_for_one_process_while_it_runs(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    with child_process(
        [sys.executable, "-c", _ECHO_SCRIPT],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead in (0.0, 7200.0, -7200.0, 0.0):
            clock.put(ahead)
            process.stdin.write("now?\n")
            process.stdin.flush()
            assert abs(float(process.stdout.readline()) - time.time() - ahead) < 5
        process.stdin.close()
