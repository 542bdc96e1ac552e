"""The messages between the bridge and the relay agent: lines of JSON on the agent's control port.

The bridge opens every connection, through a port-forward to the agent's loopback. Its first line
states its purpose:

- ``{"control": VERSION}``: the control connection, of which an agent has one. The bridge sends the
  ports to `listen` on, the tokens of connections to `refuse`, and `ping` when it hears nothing. The
  agent sends the ports it is `listening` on, and for each accepted connection `arrived` (an
  unguessable token), `port` and `from`. The agent's first line has the protocol's `version` and the
  `release` of its program, and `datagrams` (an unguessable token) if it forwards UDP. Then the
  bridge may send the UDP ports to `listen_datagrams` on, and the agent those that it is
  `listening_datagrams` on, and how many datagrams it has `dropped`, by reason.
- ``{"take": TOKEN, "idle": SECONDS}``: the accepted connection of that token. Its bytes follow in
  frames (`bridge.relay.reverse.framing`).
- ``{"datagrams": TOKEN}``: the stream of all datagrams, of which an agent has one; the token is
  that of the current control connection. Frames follow (`bridge.relay.reverse.datagram_stream`).

Neither side trusts the other: a line that is too long or not an object ends the connection; unknown
keys are ignored.
"""

from __future__ import annotations

from typing import Any

import orjson

from bridge.relay.relay_counters import DATAGRAM_DROPS

#: The version of this protocol, in the first line of each side.
VERSION = 1
#: The longest first line, and the longest of all others, which may list every port. In bytes.
MAX_FIRST_LINE, MAX_LINE = 1024, 128 * 1024
#: Seconds of silence after which the bridge sends a ping, and how many it sends.
PING_INTERVAL, MAX_PINGS = 10.0, 2
#: Seconds for the agent's first line.
HELLO_TIMEOUT = 10.0
#: Seconds after which the agent considers a silent bridge gone.
BRIDGE_TIMEOUT = 45.0
#: Seconds that the agent holds a connection until a bridge takes it: the time to restart a bridge
#: on a busy node, or to recreate its Pod elsewhere.
HOLD_TIMEOUT = 20.0
#: More than an agent can drop between two messages: the socket of each port counts to 2**32.
_MAX_COUNT = 1 << 48


class ProtocolError(ValueError):
    """The peer violates this protocol."""


def encode(**message: Any) -> bytes:
    """One line."""
    return orjson.dumps(message) + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises ProtocolError."""
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("a line is not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("a line is not a JSON object")
    return message


def decode_dropped(value: Any) -> dict[str, int]:
    """Validates counts of dropped datagrams by reason; leaves out the reasons of later releases.
    Raises ProtocolError."""
    if not isinstance(value, dict):
        raise ProtocolError("counts of dropped datagrams are malformed")
    counts = {reason: value[reason] for reason in DATAGRAM_DROPS if reason in value}
    if not all(isinstance(it, int) and 0 <= it < _MAX_COUNT for it in counts.values()):
        raise ProtocolError("counts of dropped datagrams are malformed")
    return counts


def decode_ports(value: Any) -> frozenset[int]:
    """Validates a list of ports. Raises ProtocolError."""
    if not isinstance(value, list) or not all(
        isinstance(it, int) and 0 < it < 65536 for it in value
    ):
        raise ProtocolError("a list of ports is malformed")
    return frozenset(value)
