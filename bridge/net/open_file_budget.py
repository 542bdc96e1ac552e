"""Computes how many streams, connections and listeners may be open: per namespace, and within the
process's limit of open files and its memory.

A namespace may open one more while it has fewer than are free (the dynamic threshold of shared
buffers in switches: A. K. Choudhury and E. L. Hahne, 1998, with a factor of 1). So a namespace that
is alone gets up to half of the limit, the next one beside it half of the rest, and so on: one
namespace leaves half to all others, two busy ones a quarter. Nothing is reserved and no number has
to be configured per namespace.

Every stream and connection takes two file descriptors, every listener and every flow of UDP one.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
from collections import Counter
from dataclasses import replace
from typing import Literal

from bridge.base.join_settings import RelaySettings
from sync.base.memory_limit import memory_share
from translators.relay import ipam

log = logging.getLogger(__name__)

#: Streams of the kubelet API at once.
MAX_STREAMS = 1000
#: Bytes of a stream and of a relayed connection: idle, 75 and 31 KiB (see `make bench`), the least
#: that each direction may hold if its peer does not read (`bridge.net.unsent_budget`), and a frame.
STREAM_SIZE, CONNECTION_SIZE = 96 * 1024, 52 * 1024
#: The most ports that the relay listens on: a port of a Service takes one per ready pod, up to 16.
MAX_LISTENERS = 4096
#: Descriptors of a stream or connection: the client's and the remote's.
_FILES_PER_CONNECTION = 2
#: Descriptors for each of `RelaySettings.connections` if there are relay agents: as many
#: connections in either direction, and as many flows.
_FILES_WITH_AGENTS = 2 * _FILES_PER_CONNECTION + 1
#: Descriptors left to watches, requests and files; and, where the relay runs, to streams as well.
_RESERVED = 512
_RESERVED_BESIDE_RELAY = _RESERVED + _FILES_PER_CONNECTION * MAX_STREAMS
#: The soft limit that the bridge requests: enough for the watches of each namespace, too.
_REQUESTED_FILES = 16 * 1024
#: The most pod addresses (`--relay-cidr`) for which a descriptor each is reserved: a range may have
#: more than there will ever be pods.
_MAX_ADDRESSES = 4096
#: One in so many descriptors may be a listener: 2,048 of 16,384.
_FILES_PER_LISTENER = 8

#: The limit that a request exceeds: the one over all namespaces, or its namespace's share.
ExceededLimit = Literal["limit", "namespace-limit"]


class NamespaceLimit:
    """Counts what is open per namespace. Callers check `exceeded`, then `acquire`, and `release` at
    the end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The maximum over all namespaces."""
        self.used = 0
        """How many are open, over all namespaces."""
        self._used_by: Counter[str] = Counter()

    def exceeded(self, namespace: str) -> ExceededLimit | None:
        """The limit that one more of the namespace would exceed; None if it may be opened."""
        free = self.limit - self.used
        if free <= 0:
            return "limit"
        return "namespace-limit" if self._used_by[namespace] >= free else None

    def used_by(self, namespace: str) -> int:
        return self._used_by.get(namespace, 0)

    @property
    def largest(self) -> int:
        """How many the namespace with the most has open."""
        return max(self._used_by.values(), default=0)

    def acquire(self, namespace: str) -> None:
        self.used += 1
        self._used_by[namespace] += 1

    def release(self, namespace: str) -> None:
        self.used -= 1
        self._used_by[namespace] -= 1
        if not self._used_by[namespace]:
            del self._used_by[namespace]


# -- open files ------------------------------------------------------------------------------


def raise_open_file_limit(minimum: int = 0) -> int:
    """Raises the soft limit of open files to `_REQUESTED_FILES`, or ``minimum`` if that is more, as
    far as the hard limit allows; returns the limit that holds then.

    The soft limit is 1,024 on most systems for the sake of programs that use select(2); the hard
    limit is what the process is granted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = max(_REQUESTED_FILES, minimum)
    if hard != resource.RLIM_INFINITY:
        requested = min(requested, hard)
    if soft == resource.RLIM_INFINITY or soft >= requested:
        return requested
    resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
    return requested


def max_streams(files: int) -> int:
    """How many streams fit into so many open files, and into the memory."""
    fitting = memory_share(6) // STREAM_SIZE
    return max(1, min(MAX_STREAMS, fitting, (files - _RESERVED) // _FILES_PER_CONNECTION))


def max_listeners(files: int, addresses: int = 0) -> int:
    """How many ports the relay may listen on with so many open files, plus one per pod address as
    far as the files go."""
    return max(16, min(MAX_LISTENERS, files // _FILES_PER_LISTENER)) + min(addresses, files // 4)


def max_connections(
    requested: int, files: int, addresses: int = 0, *, has_agents: bool = False
) -> int:
    """How many of the requested relay connections fit into so many open files; with agents, as many
    in either direction. The relay gets a quarter of the files in any case, even where streams could
    use them."""
    left = max(files - _RESERVED_BESIDE_RELAY - addresses, files // 4)
    return max(1, min(requested, left // _files_per_connection(has_agents)))


def required_files(connections: int, addresses: int = 0, *, has_agents: bool = False) -> int:
    """How many files are open with so many relay connections and pod addresses."""
    return _files_per_connection(has_agents) * connections + _RESERVED_BESIDE_RELAY + addresses


def _files_per_connection(has_agents: bool) -> int:
    return _FILES_WITH_AGENTS if has_agents else _FILES_PER_CONNECTION


def fit_to_memory(settings: RelaySettings) -> RelaySettings:
    """These settings, with no more connections than fit into the memory; with agents, as many in
    either direction."""
    directions = 2 if settings.image else 1
    fitting = memory_share(8) // CONNECTION_SIZE // directions
    return replace(settings, connections=max(1, min(settings.connections, fitting)))


def fit_to_open_files(settings: RelaySettings) -> RelaySettings:
    """Raises the limit of open files for these settings and returns them with the numbers of
    connections and listeners that fit; logs a warning if fewer connections fit than requested."""
    addresses = 0
    if settings.cidr is not None:
        addresses = min(ipam.pool_size(ipaddress.ip_network(settings.cidr)), _MAX_ADDRESSES)
    has_agents = bool(settings.image)
    required = required_files(settings.connections, addresses, has_agents=has_agents)
    files = raise_open_file_limit(required)
    connections = max_connections(settings.connections, files, addresses, has_agents=has_agents)
    if connections != settings.connections:
        log.warning(
            "relay: %d connections require %d open files, and this process may have %d: the bridge "
            "forwards at most %d; raise its hard limit (ulimit -Hn, LimitNOFILE= of systemd)",
            settings.connections,
            required,
            files,
            connections,
        )
    return replace(settings, connections=connections, listeners=max_listeners(files, addresses))
