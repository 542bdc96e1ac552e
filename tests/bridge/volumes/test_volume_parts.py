"""The parts of a transfer: summaries of volumes, framed input, planning, and progress."""

from __future__ import annotations

import io
import itertools
import os
import random
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.volumes import (
    node_choice,
    transfer_checks,
    transfer_record,
    volume_scripts,
    volume_swap,
)
from bridge.volumes.content_scan import LINE_MAX, ContentScan, ScanError
from bridge.volumes.framed_input import FRAME, MESSAGE, FramedInput
from bridge.volumes.progress_meter import format_size, progress_text
from bridge.volumes.transfer_record import ANNOTATION_MOVE, MoveRecord
from bridge.volumes.volume_scripts import PART
from bridge.volumes.volume_swap import Create, Remove, SetPolicy
from tests import objects
from translators.object_accessors import Object

LINES = [
    b"d 755 0 0 .",
    b"f 644 1 2 1 5 1700000000 ./a",
    b"f 644 1 3000000 1 7 1700000000 ./b",
    b"a" * 64 + b"  ./a",
    b"b" * 64 + b"  ./b",
    b"l 0 0 './c' -> 'a'",
]


def scan(lines: list[bytes], size: int = 7) -> ContentScan:
    """The summary of these lines, received in pieces of so many bytes."""
    found, data = ContentScan(contents=True), b"".join(it + b"\n" for it in lines)
    for begin in range(0, len(data), size):
        found.feed(data[begin : begin + size])
    found.finish()
    return found


def test_scan_counts_files_and_bytes() -> None:
    found = scan(LINES)
    assert (found.lines, found.files, found.size, found.hashed) == (6, 2, 12, 12)
    assert found.largest_id == 3_000_000


def test_digests_of_parts_count_as_their_bytes() -> None:
    digest = b"a" * 128
    lines = [
        b"f 644 1 2 1 %d 1700000000 ./large" % (PART + 5),
        b"p 0 %s ./large" % digest,
        b"p %d %s ./large" % (PART, digest),
        b"f 644 1 2 1 3 1700000000 ./small",
    ]
    assert scan(lines).hashed == PART + 5
    assert scan([*lines, digest + b"  ./small"]).hashed == PART + 8


def test_input_without_frames_replaces_the_volume(tmp_path: Path) -> None:
    """As over SPDY, which can end the input."""
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target / "lost+found"):
        folder.mkdir(parents=True)
    (source / "file").write_text("text")
    (target / "stale").write_text("text")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        made.add(source, ".")
    done = subprocess.run(
        ["sh", "-c", volume_scripts.RECEIVE],
        input=f"{volume_scripts.RAW}\n".encode() + archive.getvalue(),
        env={**os.environ, "VOLUME": str(target)},
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(it.name for it in target.iterdir()) == ["file", "lost+found"]


#: Programs in place of `DIGESTS`: one computes for some tenths of a second, one waits for longer.
_COMPUTES = "cat >/dev/null; i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"
_WAITS = "cat >/dev/null; sleep 2"


@pytest.mark.parametrize(
    ("sha256sum", "sha512sum", "chosen"),
    [
        (_COMPUTES, _WAITS, "sha512sum"),
        (_WAITS, _COMPUTES, "sha256sum"),
        ("exit 1", _COMPUTES, "sha512sum"),
        (_COMPUTES, "exit 1", "sha256sum"),
        ("exit 1", "exit 1", "sha256sum"),
    ],
)
def test_digest_with_the_least_cpu_time_is_chosen(
    tmp_path: Path, sha256sum: str, sha512sum: str, chosen: str
) -> None:
    """However long a loaded node takes."""
    for name, script in (("sha256sum", sha256sum), ("sha512sum", sha512sum)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", f"(\n{volume_scripts.FASTEST_DIGEST}\n)"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (f"{chosen}\n", "")


def test_order_and_cuts_of_lines_do_not_matter() -> None:
    shuffled = LINES.copy()
    random.Random(1).shuffle(shuffled)
    assert scan(LINES).equals(scan(shuffled, size=1000))


@pytest.mark.parametrize("index", range(len(LINES)))
def test_any_difference_is_found(index: int) -> None:
    changed = LINES.copy()
    changed[index] = changed[index][:-1] + b"x"
    assert not scan(LINES).equals(scan(changed))
    assert not scan(LINES).equals(scan(LINES[:index] + LINES[index + 1 :]))


def test_exchanged_contents_are_found() -> None:
    exchanged = [*LINES[:3], b"b" * 64 + b"  ./a", b"a" * 64 + b"  ./b", LINES[5]]
    assert not scan(LINES).equals(scan(exchanged))


def test_many_files_need_no_memory() -> None:
    """The peak of a hundred thousand entries does not depend on their number."""
    batch = b"".join(b"f 644 0 0 1 5 1700000000 ./%d\n" % it for it in range(1000))
    found = ContentScan(contents=False)
    found.feed(batch)
    tracemalloc.start()
    try:
        for _ in range(100):
            found.feed(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.files == 101_000
    assert peak < 1_000_000


def test_endless_line_is_rejected() -> None:
    found = ContentScan()
    with pytest.raises(ScanError):
        found.feed(b"x" * (LINE_MAX + 1))


@pytest.mark.parametrize("size", [0, 1, MESSAGE, FRAME - 1, FRAME, FRAME + 1])
async def test_frames_are_filled_and_ended(size: int) -> None:
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    framed, data = FramedInput(send), random.Random(size).randbytes(size)
    for begin in range(0, size, 10_000):
        await framed.write(data[begin : begin + 10_000])
        assert sum(map(len, sent)) > begin - MESSAGE
    await framed.end()
    received, rest = b"", b"".join(sent)
    while rest.startswith(b"+\n"):
        received, rest = received + rest[2 : FRAME + 2], rest[FRAME + 2 :]
    assert rest == b"-\n"
    assert len(received) % FRAME == 0
    assert received[:size] == data
    assert not received[size:].strip(b"\0")


# -- swap --------------------------------------------------------------------------------


def volume(name: str, data: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "finalizers": ["kubernetes.io/pv-x", "f"]},
        "spec": {
            "csi": {"volumeHandle": data},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "n", "name": f"of-{name}", "uid": f"claim-{name}"},
            **spec,
        },
    }


def test_swapped_volumes_keep_name_and_claim() -> None:
    one, other = volume("a", "1", storageClassName="x"), volume("b", "2")
    found = volume_swap.swapped(one, other)
    assert found["a"]["spec"]["csi"] == other["spec"]["csi"]
    assert found["a"]["spec"]["claimRef"]["uid"] == "claim-a"
    assert found["b"]["spec"]["storageClassName"] == "x"
    assert found["b"]["metadata"] == {"name": "b", "finalizers": ["f"]}
    again = volume_swap.restored(found)
    assert volume_swap.has_data(one, again["a"])
    assert volume_swap.has_data(other, again["b"])


def test_no_two_volumes_ever_lead_to_the_same_data() -> None:
    """From any state on the way, a volume is created after those with other data were deleted."""
    old = {"a": volume("a", "1"), "b": volume("b", "2")}
    new = volume_swap.swapped(old["a"], old["b"])
    states: list[list[Object | None]] = [[None, old[it], new[it]] for it in ("a", "b")]
    for a, b in itertools.product(*states):
        current = {"a": a, "b": b}
        actions = volume_swap.plan_volumes(current, new)
        stale = [it for name, it in current.items() if it is not None and it is old[name]]
        missing = [name for name, it in current.items() if it is None]
        expected: list[Any] = [Remove(it) for it in stale]
        assert actions == (expected or [Create(new[it]) for it in missing])


def test_reclaim_policy_is_restored() -> None:
    wanted = {"a": volume("a", "1")}
    retained = {"a": volume("a", "1", persistentVolumeReclaimPolicy="Retain")}
    assert volume_swap.plan_volumes(retained, wanted) == [SetPolicy(retained["a"], "Delete")]


# -- checks ------------------------------------------------------------------------------


def node(name: str, **labels: str) -> Object:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    labels = {it.replace("_", "-"): value for it, value in labels.items()}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["x", "y"], True),
        ("In", ["y"], False),
        ("NotIn", ["y"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["1"], False),
    ],
)
def test_node_affinity_of_a_volume(operator: str, values: list[str], *, matches: bool) -> None:
    expression = {"key": "zone", "operator": operator, "values": values}
    terms = [{"matchExpressions": [expression]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    found = volume("a", "1", nodeAffinity=affinity)
    assert node_choice.has_volume(node("n", zone="x"), found) == matches


def test_pods_that_use_the_claim_have_a_next_step() -> None:
    """One that is being deleted needs patience only."""
    claim = {"metadata": {"namespace": "n", "name": "c"}}
    runs, ends = (objects.pod(name, "n", node="x") for name in ("runs", "ends"))
    for it in (runs, ends):
        it["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(PreflightError, match=r"ends, runs uses .*; scale its controller to zero"):
        transfer_checks.check_unused(claim, [runs, ends])
    with pytest.raises(PreflightError, match=r"ends uses .*; it is being deleted: run the command"):
        transfer_checks.check_unused(claim, [ends])


def test_writers_since_the_copy_began() -> None:
    """A pod without a node has not written; one that has ended before has been seen."""
    claim = {"metadata": {"namespace": "n", "name": "c"}}

    def pod(name: str, phase: str, created: str, on: str = "x") -> Object:
        made = objects.pod(name, "n", node=on)
        made["metadata"]["creationTimestamp"] = created
        made["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        return {**made, "status": {"phase": phase}}

    pods = [
        pod("runs", "Running", "2026-01-01T00:00:00Z"),
        pod("ended-before", "Succeeded", "2026-01-01T00:00:00Z"),
        pod("ended-meanwhile", "Succeeded", "2026-01-02T00:00:01Z"),
        pod("waits", "Pending", "2026-01-02T00:00:01Z", on=""),
    ]
    found = transfer_checks.possible_writers(claim, pods, "2026-01-02T00:00:00Z")
    assert [it["metadata"]["name"] for it in found] == ["runs", "ended-meanwhile"]


def test_record_round_trip_and_damage() -> None:
    record = MoveRecord("node", "run", "target", "swapping", "then", {"a": volume("a", "1")})
    claim = {"metadata": {"annotations": {ANNOTATION_MOVE: record.as_annotation()}}}
    assert transfer_record.move_record(claim) == record
    for damaged in ("{}", "x", '{"node": 1}'):
        claim["metadata"]["annotations"][ANNOTATION_MOVE] = damaged
        with pytest.raises(PreflightError, match="is not readable"):
            transfer_record.move_record(claim)


def test_progress_has_rate_and_time_left() -> None:
    text = progress_text("copying", 400_000_000, 1_000_000_000, 4.0)
    assert text == "copying: 400 MB of 1.0 GB (40%), 100 MB/s, 6 s left"
    assert progress_text("copying", 0, 0, 0.0) == "copying: 0 B of 0 B"
    assert format_size(999) == "999 B"
