"""What a bridge and a relay pod say to each other: lines of JSON, on connections to one port.

The bridge begins each connection with a line that says what it is for:

- *control*: it stays open, and there is one. The bridge says on which ports to `listen`, whom to
  `refuse`, and now and then that it is there (`ping`). The pod says what it is `listening` on, and
  that a connection has `arrived`: under a word that cannot be guessed, and at which port. The
  first line of each says which `version` of this protocol it speaks; the pod's says, too, which
  `release` of the program it is.
- *take*: the word of one that has arrived. What follows is that connection, in chunks
  (`bridge.relay.reverse.framing`).

Both sides believe no more than they must: a line that is too long, or no object, ends the
connection; what is not known in an object is passed over.
"""

from __future__ import annotations

from typing import Any

import orjson

#: Of the protocol: in the first line of each side.
VERSION = 1
#: The longest first line, and the longest of the others: each has at most all ports.
FIRST_LINE, LINE = 1024, 128 * 1024
#: Seconds of silence after which the bridge asks whether the pod is there, and how often it asks.
PING, PINGS = 10.0, 2
#: Seconds for the pod's first line.
HELLO = 10.0
#: Seconds after which the pod takes a silent bridge for gone.
SILENCE = 45.0
#: Seconds that a connection waits in the pod for a bridge to take it: as long as a bridge takes to
#: be started again, on a machine that is busy or as a pod that is made elsewhere.
PICKUP = 20.0


class ProtocolError(ValueError):
    """Not a line of this protocol."""


def encode(**said: Any) -> bytes:
    """One line."""
    return orjson.dumps(said) + b"\n"


def decode(raw: bytes) -> dict[str, Any]:
    """What a line says. Raises BadLine."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("it is no JSON") from error
    if not isinstance(found, dict):
        raise ProtocolError("it is no object")
    return found


def decode_ports(said: Any) -> frozenset[int]:
    """A list of ports. Raises BadLine."""
    if not isinstance(said, list) or not all(isinstance(it, int) and 0 < it < 65536 for it in said):
        raise ProtocolError("it takes a list of ports")
    return frozenset(said)
