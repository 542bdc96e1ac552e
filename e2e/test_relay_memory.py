"""Clients of a Service that read nothing: a bridge with the memory limit of an installation serves
others, and stays below its limit."""

from __future__ import annotations

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

#: Clients, of the 1000 that one namespace may have, and how many connect in a second.
CLIENTS, RATE = 900, 150
#: MB that the bridge may need: a quarter of its limit.
MAX_MB = 256


@pytest.fixture(autouse=True)
def apart(home: Cluster, remote: Cluster) -> Iterator[None]:
    """The clusters without routes between their pods."""
    with without_routes(home, remote):
        yield


@pytest.mark.alone
@pytest.mark.join("--network=relay")
def test_clients_that_read_nothing_leave_memory_to_others(bridged: Bridged) -> None:
    with limited_memory(bridged.bridge, bridged.namespace) as pid, ExitStack() as stack:
        bridged.apply(files(bridged.node, "true"))
        all_ready(bridged, 1)
        wait_for(lambda: slices(bridged), "an endpoint")
        idle = process_usage.account(pid).resident
        for _ in range(CLIENTS):
            slow = RelayedConnection(bridged, "http")
            stack.callback(slow.reset)
            slow.send(b"GET /big HTTP/1.0\r\n\r\n")
            assert slow.read(12).endswith(b" 200")
            time.sleep(1 / RATE)
        other = RelayedConnection(bridged, "http")
        stack.callback(other.reset)
        other.send(b"GET /sum HTTP/1.0\r\n\r\n")
        assert other.read(12).endswith(b" 200")
        assert bridged.kubectl("exec", "file", "--", "echo", "hello") == "hello\n"
        usage = process_usage.account(pid)
        print(f"{idle:.0f} MB before, {usage.peak:.0f} MB with {CLIENTS} clients")
        assert usage.peak < MAX_MB, usage
