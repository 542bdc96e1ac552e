"""Callers without credentials flood the kubelet API: others are served, and the bridge stays far
below the memory limit of an installation."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from e2e.bench.pods import process_usage
from e2e.conftest import Bridged
from e2e.kubectl import wait_for
from e2e.kubelet_client import endpoint
from e2e.workload_manifests import pod, shell
from tests.tls_control_records import ControlRecords

#: Connections of a flood; the bridge keeps at most 128 without credentials.
CONNECTIONS = 30
#: Seconds for a caller to connect and to send.
PATIENCE = 5.0
#: MB that a flood may add to the bridge's memory; an installation's limit is 1 GiB.
MAX_GROWTH = 128
#: A request of 0.9 MiB, which a kubelet accepts.
REQUEST = (
    b"GET /pods HTTP/1.1\r\nHost: x\r\n"
    + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 16_000) for number in range(45))
    + b"\r\n"
)

Address = tuple[str, int]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def send_large_heads(at: Address, ended: threading.Event) -> None:
    """Pipelines requests, and reads no response."""
    with (
        socket.create_connection(at, PATIENCE) as plain,
        _context().wrap_socket(plain, server_hostname=at[0]) as tls,
    ):
        while not ended.is_set():
            tls.sendall(REQUEST)


def request_new_keys(at: Address, ended: threading.Event) -> None:
    """Requests renegotiations of TLS 1.2, and reads no reply."""
    with socket.create_connection(at, PATIENCE) as sock:
        for record in ControlRecords(sock, _context(), version="TLSv1_2").records():
            if ended.is_set():
                return
            sock.sendall(record)


@contextmanager
def flood(
    send: Callable[[Address, threading.Event], None], at: Address
) -> Iterator[Callable[[], int]]:
    """Hostile callers, who connect again when the bridge ends a connection; yields a function that
    counts their connections."""
    ended = threading.Event()
    opened = [0] * CONNECTIONS

    def attack(number: int) -> None:
        while not ended.is_set():
            opened[number] += 1
            with contextlib.suppress(OSError):
                send(at, ended)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(opened)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("send", [send_large_heads, request_new_keys])
def test_callers_without_credentials_disturb_nobody(
    bridged: Bridged, send: Callable[[Address, threading.Event], None]
) -> None:
    bridged.apply(pod(bridged.node, "app", containers=[shell("main", "echo ready; sleep 3600")]))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")
    wait_for(lambda: bridged.kubectl("logs", "app") == "ready\n", "the log is there")
    assert bridged.bridge.process is not None
    pid = bridged.bridge.process.pid
    before = process_usage.account(pid).peak
    with flood(send, endpoint(bridged.home, bridged.node)) as count:
        wait_for(lambda: count() > 2 * CONNECTIONS, "the bridge disconnects the callers")
        for _ in range(5):
            assert bridged.kubectl("logs", "app") == "ready\n"
            assert bridged.kubectl("exec", "app", "--", "echo", "hello") == "hello\n"
    assert process_usage.account(pid).peak < before + MAX_GROWTH
    assert bridged.bridge.process.poll() is None
