"""Lists the node's routes, and adds and removes the bridge's own, through rtnetlink(7).

The bridge needs three messages of rtnetlink; pyroute2 takes 24 MB of memory for them, more than
half of what a bridge has. The kernel answers at once, so no call blocks.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from translators.relay.ipam import IpNetwork

#: Marks the bridge's routes (rtm_protocol). Values from 4 on are free to use; iproute2's rt_protos
#: has no name for this one.
PROTOCOL = 203

_NEW, _DELETE, _GET = 24, 25, 26
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP, _EXCLUSIVE, _CREATE = 1, 4, 0x300, 0x200, 0x400
_LOCAL, _HOST = 2, 254  # rtm_type, rtm_scope
_DESTINATION, _INTERFACE, _GATEWAY, _PRIORITY, _MULTIPATH, _VIA = 1, 4, 5, 6, 9, 18
_TABLE_LOCAL = 255
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, sender
_ROUTE = struct.Struct("=8BI")  # family, dst_len, src_len, tos, table, protocol, scope, type; flags
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_CODE = struct.Struct("=i")
#: Fits every answer of the kernel (NLMSG_GOODSIZE, and 32 KiB for dumps).
_BUFFER = 1 << 16
#: A priority that no route has.
_UNUSED_PRIORITY = 0xFFFFFFF0


@dataclass(frozen=True, slots=True)
class Route:
    """One route of this node."""

    destination: IpNetwork
    is_local: bool
    """Whether its destination is the node itself."""
    is_bridge_owned: bool
    has_gateway: bool


def routes(version: int) -> list[Route]:
    """All routes of IPv4 or IPv6, of every table. Raises OSError."""
    route = _ROUTE.pack(_family(version), *(0,) * 7, 0)
    return [parse_route(body) for body in _request(_GET, _DUMP, route)]


def add_local_route(to: IpNetwork) -> None:
    """Makes all addresses of a network local to this node. Raises OSError: EEXIST if they are
    already, PermissionError."""
    _request(_NEW, _ACK | _CREATE | _EXCLUSIVE, bridge_route_message(to))


def remove_local_route(to: IpNetwork) -> None:
    """Removes a route of `add_local_route`, and no other. Raises OSError: ESRCH if there is none,
    PermissionError."""
    _request(_DELETE, _ACK, bridge_route_message(to))


def can_change_routes(to: IpNetwork) -> bool:
    """Whether this process may change routes. Tries to remove a route that cannot exist: the kernel
    checks the capability first."""
    number = _attribute(_PRIORITY, struct.pack("=I", _UNUSED_PRIORITY))
    try:
        _request(_DELETE, _ACK, bridge_route_message(to) + number)
    except PermissionError:
        return False
    except OSError:
        return True
    raise AssertionError("a route has the unused priority")


# -- messages --------------------------------------------------------------------------------


def bridge_route_message(to: IpNetwork) -> bytes:
    """The route of `add_local_route`: ``local NETWORK dev lo proto 203``."""
    family = _family(to.version)
    route = _ROUTE.pack(family, to.prefixlen, 0, 0, _TABLE_LOCAL, PROTOCOL, _HOST, _LOCAL, 0)
    loopback = struct.pack("=I", socket.if_nametoindex("lo"))
    to_address = _attribute(_DESTINATION, to.network_address.packed)
    return route + to_address + _attribute(_INTERFACE, loopback)


def parse_route(body: bytes) -> Route:
    """Decodes a message of the kernel, without its header."""
    family, bits, _, _, _, protocol, _, kind, _ = _ROUTE.unpack_from(body)
    found = dict(_attributes(body[_ROUTE.size :]))
    nowhere = bytes(4 if family == socket.AF_INET else 16)
    address = ipaddress.ip_address(found.get(_DESTINATION, nowhere))
    return Route(
        ipaddress.ip_network((address, bits), strict=False),
        is_local=kind == _LOCAL,
        is_bridge_owned=kind == _LOCAL and protocol == PROTOCOL,
        has_gateway=bool(found.keys() & {_GATEWAY, _MULTIPATH, _VIA}),
    )


def _attribute(kind: int, value: bytes) -> bytes:
    """Encodes a value of four or sixteen bytes; others would require padding."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def _request(kind: int, flags: int, body: bytes) -> list[bytes]:
    """Sends a request and returns the messages of the answer. Raises OSError with the kernel's
    error."""
    message = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body
    answers: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        sock.send(message)
        while True:
            data = sock.recv(_BUFFER)
            while data:
                length, answered, *_ = _HEADER.unpack_from(data)
                answer, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if answered in (_ERROR, _DONE):
                    if code := _CODE.unpack_from(answer)[0]:
                        raise OSError(-code, os.strerror(-code))
                    return answers
                answers.append(answer)


def _family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6
