"""How many connections a process may carry that can have so many open files."""

from __future__ import annotations

import logging
from dataclasses import replace

from bridge.kubelet.active import MAX_STREAMS, descriptors
from bridge.settings import RelaySettings

log = logging.getLogger(__name__)

#: Descriptors of a connection: the client's and the remote's.
_OF_A_CONNECTION = 2
#: Descriptors that connections leave alone: for the kubelet API's streams, watches and files.
_OF_THE_REST = 512 + 2 * MAX_STREAMS


def wanted(connections: int) -> int:
    """How many files may have to be open with so many connections."""
    return _OF_A_CONNECTION * connections + _OF_THE_REST


def room(connections: int, files: int) -> int:
    """How many of these connections are carried at once where so many files may be open. A quarter
    of the files is a connection's in any case, where streams could have them, too."""
    left = max(files - _OF_THE_REST, files // 4)
    return max(1, min(connections, left // _OF_A_CONNECTION))


def within(asked: RelaySettings) -> RelaySettings:
    """What is asked for, as far as the system lets this process have open files: it is asked for as
    many as that takes. Says so where it grants fewer."""
    files = descriptors(wanted(asked.connections))
    most = room(asked.connections, files)
    if most == asked.connections:
        return asked
    log.warning(
        "relay: this process may have %d open files, and --relay-connections %d takes %d: at most "
        "%d are carried at once; raise its hard limit (ulimit -Hn, LimitNOFILE= of systemd)",
        files,
        asked.connections,
        wanted(asked.connections),
        most,
    )
    return replace(asked, connections=most)
