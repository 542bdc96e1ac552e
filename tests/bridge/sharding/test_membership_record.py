"""Records of replicas on the Lease."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.sharding import membership_record
from bridge.sharding.membership_record import LEASE_SECONDS, PREFIX, Member, Observer
from translators.object_accessors import Object

ME = Member("host-a (pid 1)", {"east": "serving", "west": "cold"})


def lease(**records: str) -> Object:
    return membership_record.new_lease(records)


def record(renewal: int = 1) -> str:
    return membership_record.record_text(ME, renewal=renewal)


def test_record_is_read_as_it_was_written() -> None:
    assert membership_record.parse_record(record()) == ME


@given(st.text() | st.none() | st.integers())
def test_any_text_is_a_record_or_none(text: object) -> None:
    membership_record.parse_record(text)


@pytest.mark.parametrize("text", ["[]", "{", '{"serving":1}', "[" * 5000, '{"serving":{"a":1}}'])
def test_malformed_record_is_no_member(text: str) -> None:
    assert membership_record.parse_record(text) is None


def test_keys_that_are_no_text_are_skipped_and_names_printable() -> None:
    found = membership_record.parse_record('{"name":"a\\u001b[31m","ready":["b",1,null]}')
    assert found == Member("a[31m", {"b": "ready"})


def test_replica_is_live_while_its_record_changes() -> None:
    observer = Observer("me")
    observer.observe(lease(), now=0)
    observer.observe(lease(other=record(1)), now=1)
    assert observer.live(now=1) == {"other": ME}
    observer.observe(lease(other=record(1)), now=4)
    assert observer.live(now=1 + LEASE_SECONDS) == {"other": ME}
    assert not observer.live(now=1.1 + LEASE_SECONDS)
    observer.observe(lease(other=record(2)), now=9)
    assert observer.live(now=9) == {"other": ME}


def test_replica_of_the_first_look_is_live_once_it_renews() -> None:
    observer = Observer("me")
    observer.observe(lease(other=record(1)), now=0)
    assert observer.is_aware
    assert not observer.live(now=0)
    observer.observe(lease(other=record(2)), now=1)
    assert observer.live(now=1) == {"other": ME}


def test_own_record_and_other_annotations_are_no_replicas() -> None:
    observer = Observer("me")
    observer.observe(None, now=0)
    found = lease(me=record())
    found["metadata"]["annotations"]["example.com/other"] = record()
    observer.observe(found, now=0)
    assert not observer.is_aware


def test_replicas_have_their_time_again_after_this_one_was_away() -> None:
    observer = Observer("me")
    observer.observe(None, now=0)
    observer.observe(lease(other=record()), now=1)
    observer.forgive(now=100)
    assert observer.live(now=100 + LEASE_SECONDS)
    assert not observer.live(now=101 + LEASE_SECONDS)


def test_a_withdrawn_replica_is_gone_at_once_and_a_crashed_one_is_listed_for_removal() -> None:
    observer = Observer("me")
    observer.observe(lease(other=record(), crashed=record()), now=0)
    observer.observe(lease(crashed=record()), now=1)
    assert observer.gone(now=700, seconds=600) == ["crashed"]
    body: Any = membership_record.patch(dict.fromkeys(["crashed"]))
    assert body["metadata"]["annotations"] == {f"{PREFIX}crashed": None}
