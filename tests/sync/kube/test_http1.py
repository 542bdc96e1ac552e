"""HTTP/1.1 heads and bodies: what is read, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.kube import http1

OK = "HTTP/1.1 403 Forbidden"


def parsed(*lines: str) -> http1.Head:
    """The head of these lines."""
    reader = http1.ResponseReader("GET")
    reader.feed("\r\n".join([*lines, "", ""]).encode())
    head = reader.head()
    assert head is not None
    return head


def body(lines: list[str], raw: bytes, *, ended: bool) -> bytes | None:
    """The body of a response with these headers, as far as it has arrived."""
    reader = http1.ResponseReader("GET")
    reader.feed("\r\n".join([OK, *lines, "", ""]).encode())
    head = reader.head()
    assert head is not None
    reader.feed(raw)
    found = reader.body(head)
    if ended and found is None:
        reader.feed(b"")
        found = reader.body(head)
    return found


def test_head_is_parsed() -> None:
    head = parsed("HTTP/1.1 101 Switching Protocols", "X-A: 1", "upgrade:SPDY/3.1 ", "x-a:  2")
    assert (head.status, head.reason) == (101, "Switching Protocols")
    assert head.values("X-A") == ["1", "2"]
    assert head.values("Upgrade") == ["SPDY/3.1"]
    assert head.values("none") == []


@pytest.mark.parametrize("line", ["HTTP/1.0 200 OK", "HTTP/1.1 200", "HTTP/1.1 200 "])
def test_status_lines_are_parsed(line: str) -> None:
    assert parsed(line).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        ["SSH-2.0-OpenSSH"],
        ["HTTP/2 200"],
        ["HTTP/1.1 99 Low"],
        ["HTTP/1.1 600 High"],
        ["HTTP/1.1 200 OK", "no colon"],
        ["HTTP/1.1 200 OK", " folded: a"],
        ["HTTP/1.1 200 OK", "name : a"],
        ["HTTP/1.1 200 OK", "name: a\nb: c"],
        ["HTTP/1.1 200 OK", "name: a\x00"],
        ["HTTP/1.1 200 OK", ": a"],
    ],
)
def test_malformed_heads_are_rejected(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="response"):
        parsed(*lines)


def test_request_is_formatted() -> None:
    raw = http1.request("POST", "/a?b=%20", [("Host", "h"), ("X", "\udcff")])
    assert raw == b"POST /a?b=%20 HTTP/1.1\r\nHost: h\r\nX: \xff\r\n\r\n"


@pytest.mark.parametrize("header", [("A", "b\r\nC: d"), ("A\r\nB", "c"), ("A B", "c"), ("A", "\n")])
def test_headers_with_line_breaks_are_rejected(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as error:
        http1.request("GET", "/", [header])
    assert "C: d" not in str(error.value)


@pytest.mark.parametrize("target", ["/\r\nHost: x", "/\n"])
def test_targets_with_line_breaks_are_rejected(target: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        http1.request("GET", target, [])


@pytest.mark.parametrize(
    ("lines", "raw", "ended", "whole"),
    [
        (["Content-Length: 3"], b"ab", False, None),
        (["Content-Length: 3"], b"abc", False, b"abc"),
        (["Content-Length: 3"], b"abcdef", True, b"abc"),
        (["Content-Length: 0"], b"", False, b""),
        (["Content-Length: 3", "Content-Length: 3"], b"abc", False, b"abc"),
        (["Transfer-Encoding: chunked"], b"3\r\nabc\r\n", False, None),
        (["Transfer-Encoding: chunked"], b"3\r\nab", False, None),
        (["Transfer-Encoding: chunked"], b"3", False, None),
        (
            ["Transfer-Encoding: Chunked"],
            b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            False,
            b"abc0123456789",
        ),
        ([], b"abc", False, None),
        ([], b"abc", True, b"abc"),
    ],
)
def test_bodies(lines: list[str], raw: bytes, ended: bool, whole: bytes | None) -> None:
    assert body(lines, raw, ended=ended) == whole


@pytest.mark.parametrize(
    ("lines", "raw", "ended"),
    [
        (["Content-Length: 3"], b"ab", True),
        (["Content-Length: -1"], b"", False),
        (["Content-Length: x"], b"", False),
        (["Content-Length: " + "9" * 5000], b"", False),
        (["Content-Length: 3", "Content-Length: 4"], b"abcd", False),
        (["Content-Length: 3", "Transfer-Encoding: chunked"], b"abc", False),
        (["Transfer-Encoding: gzip, chunked"], b"", False),
        (["Transfer-Encoding: chunked"], b"x\r\n", False),
        (["Transfer-Encoding: chunked"], b"3\r\nabcdef", False),
        (["Transfer-Encoding: chunked"], b"3\r\nabc\r\n", True),
        (["Transfer-Encoding: chunked"], b"fffff\r\n" + bytes(http1.BODY_LIMIT + 1), False),
        ([], bytes(http1.BODY_LIMIT + 1), False),
    ],
)
def test_malformed_bodies_are_rejected(lines: list[str], raw: bytes, ended: bool) -> None:
    with pytest.raises(ValueError, match=r"response's (body|head)"):
        body(lines, raw, ended=ended)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_a_response_or_a_value_error(pieces: list[bytes]) -> None:
    reader = http1.ResponseReader("GET")
    with suppress(ValueError):
        for piece in pieces:
            reader.feed(piece)
            if (head := reader.head()) is not None:
                reader.body(head)
                return


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.integers(0, 300))
def test_chunks_are_joined_wherever_they_are_cut(parts: list[bytes], cut: int) -> None:
    raw = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    reader = http1.ResponseReader("GET")
    reader.feed(f"{OK}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    head = reader.head()
    assert head is not None
    whole = None
    for piece in (raw[:cut], raw[cut:]):
        if piece and whole is None:
            reader.feed(piece)
            whole = reader.body(head)
    assert whole == b"".join(parts)


def test_interim_responses_are_heads_of_their_own() -> None:
    reader = http1.ResponseReader("POST")
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching\r\nA: b\r\n\r\nrest")
    heads = [reader.head(), reader.head()]
    assert [head and head.status for head in heads] == [100, 101]
    assert reader.rest == b"rest"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * (http1.MAX_PARTS + 1),
        b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * (http1.MAX_PARTS + 1),
    ],
)
def test_response_of_too_many_parts_is_rejected(raw: bytes) -> None:
    reader = http1.ResponseReader("GET")
    reader.feed(raw)

    def read() -> None:
        while (head := reader.head()) is not None:
            if head.status == 500:
                reader.body(head)

    with pytest.raises(ValueError, match="too many parts"):
        read()
