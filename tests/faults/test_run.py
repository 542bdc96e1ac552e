"""The faults of a run, its counts, and its report."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
from itertools import islice, pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from e2e.audit import Finding, Kind
from e2e.faults import fault_list, report
from e2e.faults.clock import Clock
from e2e.faults.clock_and_disk import fill
from e2e.faults.fault_model import COUNTED, JoinMode, Trial, tallies
from e2e.faults.service_account_tokens import signed
from e2e.faults.untouched_pods import NAMES, compare, runs
from e2e.kubectl import Json
from tests.child_process import child_process

RUN_OPTIONS = {"seed": 7, "minutes": 30.0, "only": [], "took": 1800.0, "kubernetes": "1.34.4"}

# -- which faults -------------------------------------------------------------------------


def test_every_fault_has_a_unique_name_and_a_recovery() -> None:
    names = [fault.name for fault in fault_list.FAULTS]
    assert len(set(names)) == len(names)
    assert all(fault.what and fault.heals and ": " in fault.name for fault in fault_list.FAULTS)


def test_the_first_pass_has_each_fault_and_a_full_share_fifty_kills() -> None:
    faults = fault_list.FAULTS
    first = list(islice(fault_list.plan(faults, random.Random(1)), len(faults)))
    assert {fault.name for fault in first} == {fault.name for fault in faults}
    kills = [fault for fault in faults if fault.name.startswith("bridge: ")]
    ends = [fault for fault in kills if "kill" in fault.what or "SIGTERM" in fault.name]
    assert sum(fault.trials * fault.times * fault.counts for fault in ends) >= 50


def test_the_same_seed_is_the_same_plan() -> None:
    def names(seed: int) -> list[str]:
        plan = fault_list.plan(fault_list.FAULTS, random.Random(seed))
        return [fault.name for fault in islice(plan, 100)]

    assert names(1) == names(1) != names(2)


def test_a_pass_changes_the_join_as_seldom_as_may_be() -> None:
    joins = [fault.join for fault in fault_list.once(fault_list.FAULTS, random.Random(3))]
    changes = sum(one is not other for one, other in pairwise(joins))
    assert changes == len(JoinMode) - 1


def test_faults_are_found_by_how_their_names_begin() -> None:
    assert {fault.group for fault in fault_list.named(["credential"])} == {"credential"}
    assert fault_list.named([]) == list(fault_list.FAULTS)
    with pytest.raises(ValueError, match="no fault is called 'nothing'"):
        fault_list.named(["nothing"])


def test_without_processes_of_this_machine_some_are_left_out() -> None:
    left = fault_list.possible(fault_list.FAULTS, native=False)
    assert left
    assert not any(fault.packets or fault.native for fault in left)


def test_the_short_form_has_each_kind_of_fault() -> None:
    short = fault_list.short(fault_list.FAULTS)
    assert {fault.group for fault in short} >= {"bridge", "remote", "home", "answers", "by hand"}
    assert not any(fault.harms for fault in short)


# -- what is counted ---------------------------------------------------------------------


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


def test_table_is_replaced_only_between_its_marks() -> None:
    there = report.FILE.read_text()
    made = report.renewed(there, "a table")
    assert f"{report.BEGIN}\n\na table\n\n{report.END}" in made
    assert made.partition(report.BEGIN)[0] == there.partition(report.BEGIN)[0]
    assert made.rpartition(report.END)[2] == there.rpartition(report.END)[2]
    with pytest.raises(ValueError, match="no '<!-- faults"):
        report.renewed("# Reliability", "a table")


def test_runs_are_added_to_those_of_an_earlier_document() -> None:
    made = json.loads(json.dumps(report.report(trials(), fault_list.FAULTS, **RUN_OPTIONS)))
    once = report.document(fault_list.FAULTS, [made])
    assert report.document(fault_list.FAULTS, [], once) == once
    assert report.document(fault_list.FAULTS, [made], once) == report.document(
        fault_list.FAULTS, [made, made]
    )


# -- witnesses ---------------------------------------------------------------------------


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


# -- what faults are made with -----------------------------------------------------------

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


def test_a_token_is_signed_as_api_servers_read_it() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    head, claims, signature = signed({"sub": "alice"}, pem).split(".")

    def read(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    assert json.loads(read(head))["alg"] == "ES256"
    assert json.loads(read(claims)) == {"sub": "alice"}
    raw = read(signature)
    pair = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key.public_key().verify(pair, f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))


def test_a_disk_is_filled_to_its_last_byte() -> None:
    assert fill(Path("/dev/full")) == 0
