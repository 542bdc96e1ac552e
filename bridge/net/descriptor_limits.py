"""How many connections a process may carry that can have so many open files."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import replace

from bridge.base.settings import RelaySettings
from bridge.net.active_streams import MAX_STREAMS, descriptors
from translators.relay import ipam

log = logging.getLogger(__name__)

#: Descriptors of a connection: the client's and the remote's.
_OF_A_CONNECTION = 2
#: Descriptors that connections leave alone: for the kubelet API's streams, watches and files.
_OF_THE_REST = 512 + 2 * MAX_STREAMS


#: The most addresses of pods that a file each is kept for (`--relay-cidr`): a range may have more
#: than there will ever be pods.
_MOST_ADDRESSES = 4096


#: The most ports that are listened on: a port of a Service takes one for each ready pod, up to 16.
MOST_LISTENERS = 4096
#: The part of the files that listeners may have: of the 16,384 that are asked for at least, 2,048.
_OF_LISTENERS = 8


def wanted(connections: int, addresses: int = 0) -> int:
    """How many files may have to be open with so many connections, and addresses of pods."""
    return _OF_A_CONNECTION * connections + _OF_THE_REST + addresses


def listeners(files: int, addresses: int = 0) -> int:
    """How many ports may be listened on where so many files may be open; beside these, one at each
    of the addresses of pods that there are files for."""
    return max(16, min(MOST_LISTENERS, files // _OF_LISTENERS)) + min(addresses, files // 4)


def room(connections: int, files: int, addresses: int = 0) -> int:
    """How many of these connections are carried at once where so many files may be open. A quarter
    of the files is a connection's in any case, where streams could have them, too."""
    left = max(files - _OF_THE_REST - addresses, files // 4)
    return max(1, min(connections, left // _OF_A_CONNECTION))


def within(asked: RelaySettings) -> RelaySettings:
    """What is asked for, as far as the system lets this process have open files: it is asked for as
    many as that takes. Says so where it grants fewer."""
    addresses = 0
    if asked.cidr is not None:
        addresses = min(ipam.pool_size(ipaddress.ip_network(asked.cidr)), _MOST_ADDRESSES)
    files = descriptors(wanted(asked.connections, addresses))
    asked = replace(asked, listeners=listeners(files, addresses))
    most = room(asked.connections, files, addresses)
    if most == asked.connections:
        return asked
    log.warning(
        "relay: this process may have %d open files, and --relay-connections %d takes %d: at most "
        "%d are carried at once; raise its hard limit (ulimit -Hn, LimitNOFILE= of systemd)",
        files,
        asked.connections,
        wanted(asked.connections, addresses),
        most,
    )
    return replace(asked, connections=most)
