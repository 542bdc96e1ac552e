"""The DNS messages with which a cluster's start looks whether names resolve."""

from __future__ import annotations

import struct

from e2e.clusters.coredns import is_answered, question

NAME = "kubernetes.default.svc.cluster.local"


def answer(number: int = 7, flags: int = 0x8180, records: int = 1) -> bytes:
    return struct.pack("!6H", number, flags, 1, records, 0, 0)


def test_the_question_is_one_for_an_ipv4_address() -> None:
    query = question(NAME, 7)
    assert struct.unpack("!6H", query[:12]) == (7, 0x0100, 1, 0, 0, 0)
    assert query[12:] == b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\0\0\x01\0\x01"


def test_an_answer_is_one_to_the_question_with_a_record_in_it() -> None:
    assert is_answered(answer(), 7)
    assert not is_answered(answer(number=8), 7), "another's"
    assert not is_answered(answer(flags=0x8183), 7), "no such name"
    assert not is_answered(answer(records=0), 7), "no address"
    assert not is_answered(question(NAME, 7), 7), "a question"
    assert not is_answered(b"", 7)
