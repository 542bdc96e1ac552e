"""Clients of a Service that read nothing: a bridge with the memory limit of an installation serves
others, and neither it nor the kernel's buffers of its connections come near the limit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from e2e.bench.pods import process_usage
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import wait_for
from e2e.limited_memory import limited_memory
from e2e.test_relay import RelayedConnection, all_ready, files, slices

#: Clients, of the 905 that may connect in all, and how many connect in a second.
CLIENTS, RATE = 900, 150
#: Bytes of a download. This machine has the buffers of all programs between pod and client, and
#: the kernel's limit for all sockets is some gigabytes.
DOWNLOAD = 1_500_000
#: MB that the bridge may need, and the kernel's buffers of its connections: a quarter of the limit.
MAX_MB = 256


@pytest.fixture(autouse=True)
def apart(home: Cluster, remote: Cluster) -> Iterator[None]:
    """The clusters without routes between their pods."""
    with without_routes(home, remote):
        yield


@pytest.mark.alone
@pytest.mark.join("--network=relay")
def test_clients_that_read_nothing_leave_memory_to_others(bridged: Bridged) -> None:
    with limited_memory(bridged.bridge, bridged.namespace) as limited, ExitStack() as stack:
        bridged.apply(files(bridged.node, "true"))
        all_ready(bridged, 1)
        wait_for(lambda: slices(bridged), "an endpoint")
        make = f"head -c {DOWNLOAD} /dev/urandom >/www/part; sha256sum /www/part"
        expected = bridged.kubectl("exec", "file", "--", "sh", "-c", make).split()[0]
        idle = process_usage.account(limited.pid).resident
        for _ in range(CLIENTS):
            slow = RelayedConnection(bridged, "http")
            stack.callback(slow.reset)
            slow.send(b"GET /part HTTP/1.0\r\n\r\n")
            assert slow.read(12).endswith(b" 200")
            time.sleep(1 / RATE)
        other = RelayedConnection(bridged, "http")
        stack.callback(other.reset)
        other.send(b"GET /part HTTP/1.0\r\n\r\n")
        body = other.read(2 * DOWNLOAD).partition(b"\r\n\r\n")[2]
        assert hashlib.sha256(body).hexdigest() == expected
        assert bridged.kubectl("exec", "file", "--", "echo", "hello") == "hello\n"
        usage, sockets = process_usage.account(limited.pid), limited.socket_bytes() / 2**20
        print(
            f"{idle:.0f} MB before, {usage.peak:.0f} MB with {CLIENTS} clients, and "
            f"{sockets:.0f} MB of the kernel"
        )
        assert usage.peak < MAX_MB, usage
        assert sockets < MAX_MB
