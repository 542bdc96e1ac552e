"""The sum of all limits of memory fits into the memory limit of an installation.

The rows are those of the table in docs/explanation/security.md, section Limits.
"""

from __future__ import annotations

import pytest

from bridge.app import probe_server
from bridge.base.join_settings import RELAY_CONNECTIONS, RelaySettings
from bridge.kubelet import exec_attach_portforward
from bridge.net import (
    accepted_connections,
    http_server,
    open_file_budget,
    port_forward_sessions,
    single_flight_cache,
    unsent_budget,
)
from bridge.pod_metrics import kubelet_scraper
from bridge.relay.forward import balancer
from bridge.relay.reverse import datagram_stream
from sync.base import memory_limit, namespace_fair_cache
from sync.cache import cache_share, interning, watcher
from sync.kube import client, credential_plugins, oidc, response_limits
from sync.kube.connections import READ_AHEAD as RESPONSE_READ_AHEAD
from sync.kube.sockets import READ_SIZE
from sync.kube.transport import MAX_CONNECTIONS

MIB = 2**20
#: The idle process: "memory" in docs/explanation/performance.md.
PROCESS = 94 * 10**6
#: Resources of the remote that a bridge watches.
WATCHES = 16
#: Bytes of an entry in each cache by name or UID, all together (`FairCache`, and recent tokens).
ENTRIES_SIZE = 6500
#: Bytes of an idle session, of a remembered client of a Service, and of the result of a review.
SESSION_SIZE, CLIENT_SIZE, REVIEW_SIZE = 34 * 1024, 200, 512
#: Relay agents, and bytes of each: control messages and datagrams that are read or written.
AGENTS, AGENT_SIZE = 4, MIB
#: Bytes of a connection before a request is admitted: half of a stream, and its head twice.
WAITING_SIZE = open_file_budget.STREAM_SIZE // 2 + 2 * http_server.MAX_HEAD
#: Times its size that a large head takes, once it is parsed.
PARSED_HEAD = 6


@pytest.fixture(params=[512 * MIB, 1024 * MIB, 2048 * MIB])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The memory limit of the process: that of an installation, a lower and a higher one."""
    limit: int = request.param
    for module in (memory_limit, response_limits):
        monkeypatch.setattr(module, "memory_limit", lambda: limit)
    return limit


def bounds() -> dict[str, int]:
    """Bytes by row."""
    one_body = 2 * response_limits.BODY_LIMIT + response_limits.DECODED_LIMIT
    relay = RelaySettings(connections=RELAY_CONNECTIONS, image="bridge")
    connections = 2 * open_file_budget.fit_to_memory(relay).connections
    watch = 2 * watcher.READ_AHEAD + response_limits.SMALL_BODY
    response = 2 * RESPONSE_READ_AHEAD + READ_SIZE + response_limits.SMALL_BODY
    return {
        "process": PROCESS,
        "objects of the remote": cache_share.RemoteShare(
            response_limits.ResponseLimits("remote")
        ).limit,
        "objects of tenants": cache_share.home_limit(),
        "large bodies of both API servers": 2 * response_limits.large_bodies() * one_body,
        "other bodies of both API servers": 2 * MAX_CONNECTIONS * response,
        "watches of the remote": WATCHES * watch,
        "equal parts of pods": 2 * interning.POOL_SIZE,
        "lists of the remote": client.RUNNING_LIST_LIMIT,
        "kubelets' metrics": response_limits.text_limit() + 3 * kubelet_scraper.kept_limit(),
        "caches by name": namespace_fair_cache.entries_limit() * ENTRIES_SIZE,
        "streams": open_file_budget.max_streams(10**6) * open_file_budget.STREAM_SIZE,
        "output of run": exec_attach_portforward.MAX_OUTPUTS,
        "relayed connections": connections * open_file_budget.CONNECTION_SIZE,
        "idle sessions with pods": port_forward_sessions.MAX_IDLE * SESSION_SIZE,
        "clients of Services": balancer.MAX_CLIENTS * CLIENT_SIZE,
        "unsent bytes": 3 * unsent_budget.UnsentBudget().limit,
        "datagrams that wait": datagram_stream.QUEUES,
        "relay agents": AGENTS * AGENT_SIZE,
        "waiting connections": accepted_connections.MAX_WAITING * WAITING_SIZE,
        "connections of the health port": probe_server.MAX_CONNECTIONS * 2 * http_server.MAX_HEAD,
        "results of reviews": 2 * single_flight_cache.SIZE * REVIEW_SIZE,
        "issuers and plugins": oidc.RESPONSE_LIMIT + credential_plugins.OUTPUT_LIMIT,
        "large heads": PARSED_HEAD * http_server.large_heads_limit(),
    }


def test_sum_of_all_bounds_is_within_the_memory(memory: int) -> None:
    rows = {row: round(size / MIB, 1) for row, size in bounds().items()}
    assert sum(rows.values()) <= memory / MIB, rows
