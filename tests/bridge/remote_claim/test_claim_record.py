"""When a home may take a claim, by its record: pure functions."""

from __future__ import annotations

import pytest

from bridge.election import election_lease
from bridge.election.election_lease import Candidate
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_record import REMEMBERED, Claim, HomeRecord, objection, parse_record
from translators.object_accessors import Object
from translators.virtual_node_identity import Identity

ME = Candidate("me_1", "here (pid 1)")
IDENTITY = Identity(home_id="5316679d3cafe012", home_name="h", node="virtual")
#: Ids of acquisitions, in their order.
FIRST, SECOND = "a" * 16, "b" * 16


def made(text: str = f"7 {FIRST}", holder: str | None = "me_1") -> Object:
    annotations = {
        claim_record.ANNOTATION_CLAIM: text,
        election_lease.ANNOTATION_HOLDER: "host (pid 5)",
    }
    return {
        "metadata": {"uid": "uid-1", "resourceVersion": "9", "annotations": annotations},
        "spec": {"holderIdentity": holder, "renewTime": "2026-11-22T10:00:00.000000Z"},
    }


def claimed(text: str = f"7 {FIRST}") -> Claim:
    return claim_record.parse_claim(made(text))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (HomeRecord(7, (FIRST,)), ""),
        (HomeRecord(8, (SECOND, FIRST)), ""),  # a restored remote, or a renewal that was not sent
        (HomeRecord(6, (FIRST,)), "it was renewed after"),
        (HomeRecord(9, (SECOND,)), "has no record"),
        (HomeRecord(9), "has no record"),  # a home that was refused
        (HomeRecord(), "has no record"),  # a backup from before the first join
    ],
)
def test_a_record_that_is_behind_the_claim_is_an_objection(record: HomeRecord, why: str) -> None:
    found = objection(claimed(), record)
    assert why in found
    assert bool(found) == bool(why)


def test_a_person_overrules_the_objection_to_one_claim_alone() -> None:
    assert not objection(claimed(), HomeRecord(), take_over=FIRST)
    assert objection(claimed(f"9 {SECOND}"), HomeRecord(), take_over=FIRST)
    assert objection(claimed(), HomeRecord(), take_over="")


def test_an_acquisition_is_recorded_beside_the_one_that_it_follows() -> None:
    """Where the bridge ends between the two writes, the next one knows the claim all the same."""
    record = HomeRecord(7, (FIRST,)).for_acquisition(claimed(), SECOND)
    assert record == HomeRecord(8, (SECOND, FIRST))
    assert not objection(claimed(), record)
    assert not objection(claimed(f"8 {SECOND}"), record)
    assert HomeRecord().for_acquisition(None, FIRST) == HomeRecord(1, (FIRST,))
    assert HomeRecord(3, (SECOND,)).for_acquisition(claimed(), SECOND).sequence == 8


def test_ids_of_attempts_do_not_push_the_claims_id_out_of_the_record() -> None:
    record = HomeRecord(7, (FIRST,))
    for _ in range(3 * REMEMBERED):
        record = record.for_acquisition(claimed(), claim_record.new_claim_id())
    assert len(record.ids) == REMEMBERED
    assert not objection(claimed(), record)


@pytest.mark.parametrize(
    "text", ["", None, "x", "-1 a", f"{FIRST} 7", "\u0667 a", f"{5000 * '7'} a"]
)
def test_malformed_record_is_empty(text: str | None) -> None:
    assert parse_record(text) == HomeRecord()


def test_a_record_reads_as_it_was_written() -> None:
    for record in (
        HomeRecord(7, (SECOND, FIRST)),
        HomeRecord(7).for_rejection(),
        HomeRecord(7, (FIRST,)).for_renewal(),
    ):
        assert parse_record(str(record)) == record


@pytest.mark.parametrize("text", ["", "nonsense", "7", f"7 {FIRST};"])
def test_a_claim_that_names_no_id_has_one_that_a_person_can_give(text: str) -> None:
    found = claimed(text)
    assert found.id == "uid-1"
    assert objection(found, HomeRecord(9, (SECOND,)))


def test_holder_and_time_of_claim_are_printable() -> None:
    lease = made()
    lease["metadata"]["annotations"][election_lease.ANNOTATION_HOLDER] = "a\x1b[31m\n" + "b" * 999
    lease["spec"]["renewTime"] = "\x07"
    found = claim_record.parse_claim(lease)
    assert found.holder_name.startswith("a[31mb")
    assert len(found.holder_name) <= 200
    assert found.renewed == "an unknown time"


def test_renewal_names_the_holder_and_requires_the_observed_state() -> None:
    record = HomeRecord(8, (FIRST,))
    patch = claim_record.claim_patch(claimed(), IDENTITY, ME, record, renewed="now", seconds=15)
    assert patch["metadata"] == {
        "uid": "uid-1",
        "resourceVersion": "9",
        "annotations": {claim_record.ANNOTATION_CLAIM: f"8 {FIRST}"},
    }
    assert "acquireTime" not in patch["spec"]
    taken = claim_record.claim_patch(
        claimed(), IDENTITY, ME, HomeRecord(8, (SECOND, FIRST)), renewed="now", seconds=15
    )
    assert taken["spec"]["acquireTime"] == "now"
    assert taken["metadata"]["annotations"][election_lease.ANNOTATION_HOLDER] == ME.display_name


def test_a_released_claim_keeps_its_id() -> None:
    patch = claim_record.release_patch(claimed())
    assert patch["spec"] == {"holderIdentity": None}
    assert patch["metadata"] == {"uid": "uid-1", "resourceVersion": "9"}


def test_claim_lease_name_has_home_and_node() -> None:
    assert claim_record.claim_lease_name(IDENTITY) == "cluster-bridge.5316679d3cafe012.virtual"
    assert not claim_record.claim_lease_name(IDENTITY).startswith(
        election_lease.election_lease_name("")
    )
    long = [Identity("5316679d3cafe012", "h", "a" * 252 + letter) for letter in "bc"]
    names = {claim_record.claim_lease_name(it) for it in long}
    assert len(names) == 2
    assert max(map(len, names)) <= 253
