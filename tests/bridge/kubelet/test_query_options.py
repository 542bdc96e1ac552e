"""Options of logs, exec, attach and port-forward in the query of a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.query_options import (
    MAX_PARAMETERS,
    exec_query,
    log_query,
    parse_query,
    port_forward_query,
    run_command_line,
)


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        ("", []),
        ("&&", []),
        ("a=1&b&a=", [("a", "1"), ("b", ""), ("a", "")]),
        ("a=b=c&d+e=%2B%26", [("a", "b=c"), ("d e", "+&")]),
        ("a=%e2%82%ac%ff", [("a", "€\udcff")]),
    ],
)
def test_query_is_parsed(raw: str, pairs: list[tuple[str, str]]) -> None:
    assert parse_query(raw) == pairs


@pytest.mark.parametrize(
    "raw",
    ["a=%", "a=%2", "a=%zz", "%=1", "a=1;b=2", "&".join("a" for _ in range(MAX_PARAMETERS + 1))],
)
def test_malformed_query_is_rejected(raw: str) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_query(raw)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", ""),
        ("follow=true&previous=1&timestamps", "follow=true&previous=true&timestamps=true"),
        ("follow=false&previous=0&timestamps=False", ""),
        ("follow=&previous=yes", "follow=true&previous=true"),
        ("sinceSeconds=1", "sinceSeconds=1"),
        ("sinceTime=", ""),
        ("sinceTime=2026-01-31T12:00:00Z", "sinceTime=2026-01-31T12:00:00Z"),
        (
            "sinceTime=2026-01-31T12:00:00.123456789%2B02:00",
            "sinceTime=2026-01-31T12:00:00.123456789+02:00",
        ),
        ("tailLines=0", "tailLines=0"),
        ("tail=3&tailLines=4", "tailLines=3"),
        ("tail=all&tailLines=4", ""),
        ("tail=&tailLines=4", "tailLines=4"),
        ("limitBytes=1", "limitBytes=1"),
        ("limitBytes=%2B7", "limitBytes=7"),
        ("stream=All&insecureSkipTLSVerifyBackend=true&container=other&pretty=1", ""),
    ],
)
def test_log_options_are_translated(raw: str, expected: str) -> None:
    query = log_query(parse_query(raw), container="app")
    assert query[0] == ("container", "app")
    assert "&".join(f"{key}={value}" for key, value in query[1:]) == expected


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        ("sinceSeconds=", 400),
        ("sinceSeconds=1.5", 400),
        ("sinceSeconds=9223372036854775808", 400),
        ("sinceSeconds=" + "9" * 5000, 400),
        ("sinceSeconds=٣", 400),
        ("sinceSeconds=0", 422),
        ("sinceSeconds=-1", 422),
        ("sinceSeconds=1&sinceTime=2026-01-31T12:00:00Z", 422),
        ("sinceTime=2026-01-31", 400),
        ("sinceTime=2026-02-31T12:00:00Z", 400),
        ("sinceTime=2026-01-31T12:00:00", 400),
        ("sinceTime=2026-01-31t12:00:00z", 400),
        ("tailLines=-1", 422),
        ("tailLines=many", 400),
        ("tail=many", 400),
        ("limitBytes=0", 422),
        ("limitBytes=x", 400),
        ("stream=Stdout", 400),
    ],
)
def test_invalid_log_options_are_rejected(raw: str, status: int) -> None:
    with pytest.raises(HttpError) as refusal:
        log_query(parse_query(raw), container="app")
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "output=1&command=a&command=&command=c",
            ["stdout=true", "command=a", "command=", "command=c"],
        ),
        ("input=1&output=1&error=1", ["stdin=true", "stdout=true", "stderr=true"]),
        ("input=1&output=1&error=1&tty=1", ["stdin=true", "stdout=true", "tty=true"]),
        ("output=1&input=true&error=yes&tty=true", ["stdout=true"]),
        ("output=1&container=other&stdin=true", ["stdout=true"]),
    ],
)
def test_exec_options_are_translated(raw: str, expected: list[str]) -> None:
    query = exec_query(parse_query(raw), container="app")
    assert query[0] == ("container", "app")
    assert [f"{key}={value}" for key, value in query[1:]] == expected


@pytest.mark.parametrize("raw", ["", "command=ls", "input=0&output=true", "tty=1&error=1"])
def test_exec_without_a_stream_gets_400(raw: str) -> None:
    with pytest.raises(HttpError) as refusal:
        exec_query(parse_query(raw), container="app")
    assert refusal.value.status == 400


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_non_utf8_arguments_are_preserved(arguments: list[bytes]) -> None:
    quoted = "&".join("command=" + "".join(f"%{byte:02x}" for byte in raw) for raw in arguments)
    query = exec_query(parse_query("output=1&" + quoted), container="app")
    commands = [value for key, value in query if key == "command"]
    assert [value.encode("utf-8", "surrogateescape") for value in commands] == arguments


def test_port_forward_ports_are_translated() -> None:
    assert port_forward_query([], websocket=False) == []
    assert port_forward_query([("port", "080"), ("port", "65535")], websocket=True) == [
        ("ports", "80"),
        ("ports", "65535"),
    ]


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "80,81", "http", "\uff19"])
def test_invalid_ports_are_rejected(port: str) -> None:
    with pytest.raises(HttpError) as refusal:
        port_forward_query([("port", port)], websocket=True)
    assert refusal.value.status == 400


def test_websocket_needs_a_port() -> None:
    with pytest.raises(HttpError, match="no port is requested"):
        port_forward_query([], websocket=True)


def test_command_line_is_split_at_spaces() -> None:
    assert run_command_line(parse_query("cmd=ls%20-l++/&cmd=other")) == ["ls", "-l", "", "/"]


@pytest.mark.parametrize("raw", ["", "cmd=", "command=ls", "cmd=%ff"])
def test_invalid_command_lines_are_rejected(raw: str) -> None:
    with pytest.raises(HttpError) as refusal:
        run_command_line(parse_query(raw))
    assert refusal.value.status == 400
