"""Observations and patches of the election Lease."""

from __future__ import annotations

import pytest

from bridge.election import election_lease
from bridge.election.election_lease import (
    LEASE_SECONDS,
    Candidate,
    ElectionRecord,
    Observation,
    observe,
)
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN

ME = Candidate("me_1", "here (pid 1)")


def lease(holder: str | None = "other_1", *, version: str = "7", **meta: object) -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 4, "leaseTransitions": 2}
    return {"metadata": {"uid": "u", "resourceVersion": version, **meta}, "spec": spec}


def record(holder: str | None = "other_1", version: str = "7") -> ElectionRecord:
    return election_lease.parse_lease(lease(holder, version=version))


def seen(
    before: Observation | None, now: ElectionRecord | None, at: float, *, served: bool = True
) -> Observation:
    return observe(before, now, candidate="me_1", now=at, node_exists=served)


def test_missing_lease_without_node_is_free() -> None:
    assert seen(None, None, 10.0, served=False).free_at == 10.0


def test_missing_lease_beside_a_node_is_not_free_at_once() -> None:
    assert seen(None, None, 10.0).free_at == 10.0 + LEASE_SECONDS


@pytest.mark.parametrize("holder", [None, "", "me_1"], ids=["released back", "empty", "mine"])
def test_lease_without_other_holder_is_free(holder: str | None) -> None:
    assert seen(None, record(holder), 10.0).free_at == 10.0


def test_held_lease_is_free_after_its_duration_without_change() -> None:
    first = seen(None, record(), 10.0)
    assert (first.free_at, first.holder_is_live) == (14.0, False)
    assert seen(first, record(), 13.0) is first


def test_renewal_restarts_duration_and_shows_live_holder() -> None:
    renewed = seen(seen(None, record(), 10.0), record(version="8"), 11.0)
    assert (renewed.free_at, renewed.holder_is_live) == (15.0, True)


def test_new_holder_restarts_duration() -> None:
    other = seen(seen(None, record(), 10.0), record("third_1", "8"), 13.0)
    assert (other.free_at, other.holder_is_live) == (17.0, False)


def test_recreated_lease_with_same_version_is_a_change() -> None:
    again = election_lease.parse_lease(lease(uid="u2"))
    assert seen(seen(None, record(), 10.0), again, 13.0).free_at == 17.0


def test_deleted_lease_is_free_when_it_would_have_expired() -> None:
    gone = seen(seen(None, record(), 10.0), None, 11.0)
    assert gone.free_at == 14.0
    assert seen(gone, None, 12.0).free_at == 14.0


def test_longer_lease_duration_is_respected() -> None:
    longer = lease()
    longer["spec"]["leaseDurationSeconds"] = 15
    assert seen(None, election_lease.parse_lease(longer), 10.0).free_at == 25.0
    shorter = lease()
    shorter["spec"]["leaseDurationSeconds"] = 1
    assert seen(None, election_lease.parse_lease(shorter), 10.0).free_at == 14.0


def test_holder_name_is_one_printable_line() -> None:
    annotations = {election_lease.ANNOTATION_HOLDER: "host\n\x1b[31m (pid 5)" + "x" * 999}
    holder = election_lease.parse_lease(lease(annotations=annotations)).holder_name
    assert holder.startswith("host[31m (pid 5)x")
    assert len(holder) <= 200
    assert record("host.example_4711").holder_name == "host.example"


def test_empty_lease_has_no_holder() -> None:
    found = election_lease.parse_lease({"metadata": {}})
    assert (found.holder, found.holder_name, found.leaving) == ("", "", False)


def test_lease_name_is_a_valid_object_name() -> None:
    assert election_lease.election_lease_name("burst") == "election-burst"
    long, other = "a" * 252 + "b", "a" * 252 + "c"
    assert len(election_lease.election_lease_name(long)) <= 253
    assert election_lease.election_lease_name(long) != election_lease.election_lease_name(other)


def test_acquire_patch_has_observed_version_as_precondition() -> None:
    patch = election_lease.holder_patch(record(), ME)
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("u", "7")
    spec = patch["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("me_1", 3)
    assert spec["leaseDurationSeconds"] == LEASE_SECONDS
    assert spec["acquireTime"] == spec["renewTime"]
    assert patch["metadata"]["annotations"] == {election_lease.ANNOTATION_HOLDER: "here (pid 1)"}
    assert "ownerReferences" not in patch["metadata"]


def test_renewal_patch_has_only_the_time() -> None:
    patch = election_lease.holder_patch(record("me_1"), ME)
    assert patch["metadata"].keys() == {"uid", "resourceVersion"}
    assert patch["spec"].keys() == {"holderIdentity", "leaseDurationSeconds", "renewTime"}


def test_remote_lost_is_written_when_it_changes() -> None:
    mine = record("me_1")
    lost = election_lease.holder_patch(mine, ME, remote_lost=True)
    assert lost["metadata"]["annotations"] == {election_lease.ANNOTATION_REMOTE_LOST: "true"}
    marks = {
        election_lease.ANNOTATION_REMOTE_LOST: "true",
        election_lease.ANNOTATION_REQUESTED_BY: "other",
    }
    request = election_lease.parse_lease(lease("me_1", annotations=marks))
    assert (request.remote_lost, request.requested_by) == (True, "other")
    assert (
        "annotations" not in election_lease.holder_patch(request, ME, remote_lost=True)["metadata"]
    )
    gone = dict.fromkeys(marks)
    assert election_lease.holder_patch(request, ME)["metadata"]["annotations"] == gone
    released = election_lease.release_patch(request)["metadata"]["annotations"]
    assert released.items() >= {election_lease.ANNOTATION_HOLDER: None, **gone}.items()
    assert set(released.values()) == {None}
    asks = election_lease.request_patch(mine, ME)
    assert asks["metadata"]["annotations"] == {election_lease.ANNOTATION_REQUESTED_BY: ME.identity}
    assert asks["metadata"]["resourceVersion"] == mine.version
    assert asks["spec"] == {}


def test_changed_record_is_written_and_stays() -> None:
    note = {f"{DOMAIN}/some-record": "1"}
    assert (
        election_lease.holder_patch(record("me_1"), ME, records=note)["metadata"]["annotations"]
        == note
    )
    there = election_lease.parse_lease(
        lease("me_1", annotations={**note, "example.com/other": "2"})
    )
    assert there.records == note
    assert "annotations" not in election_lease.holder_patch(there, ME, records=note)["metadata"]
    for patch in (
        election_lease.release_patch(there),
        election_lease.holder_patch(there, Candidate("next_1", "next")),
    ):
        assert not note.keys() & patch["metadata"]["annotations"].keys()


def test_created_lease_has_no_precondition() -> None:
    made = election_lease.holder_patch(None, ME)
    assert (made["kind"], made["spec"]["leaseTransitions"]) == ("Lease", 0)
    assert made["metadata"].keys() == {"annotations"}


def test_leaving_annotation_is_removed_by_next_holder() -> None:
    left = election_lease.leave_patch(record(), ME)
    assert left["metadata"]["annotations"][election_lease.ANNOTATION_LEAVING] == "true"
    marked = election_lease.parse_lease(
        lease(annotations={election_lease.ANNOTATION_LEAVING: "true"})
    )
    assert marked.leaving
    for patch in (election_lease.holder_patch(marked, ME), election_lease.release_patch(marked)):
        assert patch["metadata"]["annotations"][election_lease.ANNOTATION_LEAVING] is None
    released = election_lease.release_patch(record("me_1"))
    assert released["spec"] == {"holderIdentity": None}
    assert released["metadata"]["annotations"][election_lease.ANNOTATION_HOLDER] is None
