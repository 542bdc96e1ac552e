"""Routes of this machine, by the kernel's own protocol (rtnetlink(7)): lists them, and adds and
removes one kind of them.

Of rtnetlink the bridge needs three messages. The library at hand (pyroute2) takes 24 MB of memory
for them, more than half of what the bridge has.

The kernel answers at once, so nothing here waits for anybody.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from translators.relay.ipam import IpNetwork

#: Marks our routes (rtm_protocol). Free for everybody from 4 on; of those that have names in
#: iproute2's rt_protos it is none.
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
#: Room for one answer; the kernel sends no larger ones (NLMSG_GOODSIZE, and for dumps 32 KiB).
_BUFFER = 1 << 16
#: A priority that no route has.
_NOBODYS = 0xFFFFFFF0


@dataclass(frozen=True, slots=True)
class Route:
    """One of this machine's."""

    destination: IpNetwork
    is_local: bool
    """It leads to this machine itself."""
    is_bridge_owned: bool
    """A bridge has made it."""
    has_gateway: bool
    """It leads to another machine that passes it on."""


def routes(version: int) -> list[Route]:
    """All of IPv4 or IPv6, in whichever table. Raises OSError."""
    route = _ROUTE.pack(_family(version), *(0,) * 7, 0)
    return [_read(body) for body in _ask(_GET, _DUMP, route)]


def add_local_route(to: IpNetwork) -> None:
    """Has all addresses of a network be this machine's own. Raises OSError: EEXIST where they are
    already, PermissionError."""
    _ask(_NEW, _ACK | _CREATE | _EXCLUSIVE, _ours(to))


def remove_local_route(to: IpNetwork) -> None:
    """Takes back what `add` did, and nothing that others did. Raises OSError: ESRCH where there is
    nothing, PermissionError."""
    _ask(_DELETE, _ACK, _ours(to))


def can_change_routes(to: IpNetwork) -> bool:
    """Whether this process may change routes: it tries to remove one that cannot be there. The
    kernel asks for the capability first."""
    number = _attribute(_PRIORITY, struct.pack("=I", _NOBODYS))
    try:
        _ask(_DELETE, _ACK, _ours(to) + number)
    except PermissionError:
        return False
    except OSError:
        return True
    raise AssertionError("nobody has such a route")


# -- messages --------------------------------------------------------------------------------


def _ours(to: IpNetwork) -> bytes:
    """The route as `add` makes it: ``local NETWORK dev lo proto 203``."""
    kind = (_family(to.version), to.prefixlen, 0, 0, _TABLE_LOCAL, PROTOCOL, _HOST, _LOCAL)
    loopback = struct.pack("=I", socket.if_nametoindex("lo"))
    return (
        _ROUTE.pack(*kind, 0)
        + _attribute(_DESTINATION, to.network_address.packed)
        + _attribute(_INTERFACE, loopback)
    )


def _read(body: bytes) -> Route:
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
    """Values of four or sixteen bytes alone: others would have to be filled up."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def _ask(kind: int, flags: int, body: bytes) -> list[bytes]:
    """The messages of the answer. Raises OSError with what the kernel says."""
    message = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body
    answers: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        sock.send(message)
        while True:
            data = sock.recv(_BUFFER)
            while data:
                length, told, *_ = _HEADER.unpack_from(data)
                answer, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if told in (_ERROR, _DONE):
                    if code := _CODE.unpack_from(answer)[0]:
                        raise OSError(-code, os.strerror(-code))
                    return answers
                answers.append(answer)


def _family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6
