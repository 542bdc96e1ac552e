"""Messages for connections that do not come about."""

from __future__ import annotations

import errno
import socket

import pytest

from sync.kube.connections import connect_message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 6443)"),
            "connection refused by 127.0.0.1:6443",
        ),
        (
            OSError(errno.EHOSTUNREACH, "Connect call failed ('127.0.0.1', 6443)"),
            "127.0.0.1:6443: No route to host",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "127.0.0.1:6443: Name or service not known",
        ),
        (OSError(), "127.0.0.1:6443: cannot connect"),
    ],
    ids=["refused", "no route", "no such name", "no reason"],
)
def test_connect_message_names_address_and_cause(error: OSError, expected: str) -> None:
    assert connect_message(error, "https://127.0.0.1:6443") == expected


def test_connect_message_has_no_user_information() -> None:
    message = connect_message(OSError(errno.ECONNREFUSED, ""), "http://me:canary@proxy:3128")
    assert message == "connection refused by proxy:3128"
