"""The range of `--relay-cidr` on this machine: all its addresses are the machine's own while a
bridge serves with it.

A route does that (``ip route show table local``: ``local CIDR dev lo proto 203``), for all
addresses at once: no interface is made, none is touched, and a pod that comes or goes changes
nothing here. What nobody listens on there is refused by the kernel, at once.

- One process has a range of a machine, which a name shows that dies with it: a socket of the
  network namespace (unix(7), abstract). Another bridge that comes waits for its turn.
- A bridge that stops, or loses its lease, takes the route away. One that is killed leaves it:
  connections are refused then, and the next bridge of that range takes it up. `clear` removes it.
- Only routes with our mark are taken up or removed (`bridge.relay.forward.netlink`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from typing import NoReturn

from bridge.relay.forward import netlink
from translators.relay.ipam import IpNetwork

log = logging.getLogger(__name__)

#: Seconds until a range that could not be had is tried again.
AGAIN = 1.0


class LocalRouteError(Exception):
    """The range cannot be had here; the message says why, and what to do."""


class LocalRoute:
    """One bridge's."""

    def __init__(self, cidr: str) -> None:
        self._cidr = ipaddress.ip_network(cidr)
        self._name: socket.socket | None = None
        self.unavailable_reason = f"the bridge does not have {cidr} yet"
        """Why its addresses are not this machine's; "" where they are."""

    async def hold(self) -> NoReturn:
        """Has the addresses until cancelled, from its first step on if that can be; what fails is
        told, and tried again."""
        try:
            while True:
                if self._has_taken():
                    break
                await asyncio.sleep(AGAIN)
            await asyncio.get_running_loop().create_future()
            raise AssertionError("it holds until it is cancelled")
        finally:
            self._give_back()

    def _has_taken(self) -> bool:
        before = self.unavailable_reason
        try:
            self._take()
        except LocalRouteError as error:
            self.unavailable_reason = str(error)
            if self.unavailable_reason != before:
                log.warning("relay: %s", error)
            return False
        self.unavailable_reason = ""
        return True

    def _take(self) -> None:
        """Raises RangeError."""
        if self._name is None:
            self._name = _named(self._cidr)
        if self._name is None:
            raise LocalRouteError(f"another bridge of this machine has {self._cidr} (--relay-cidr)")
        try:
            netlink.add_local_route(self._cidr)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise LocalRouteError(_refused(self._cidr, error)) from error
            if not _is_there(self._cidr):
                said = f"{self._cidr} (--relay-cidr) is this machine's own already, by another's"
                raise LocalRouteError(f"{said} route; take another range") from error

    def _give_back(self) -> None:
        if self._name is None:
            return
        if not self.unavailable_reason:
            with contextlib.suppress(OSError):  # Somebody else has removed it.
                netlink.remove_local_route(self._cidr)
        self._name.close()
        self._name, self.unavailable_reason = (
            None,
            f"the bridge does not have {self._cidr} any more",
        )


def is_stale(cidr: str) -> bool:
    """Whether a bridge that was killed has left its route here."""
    network = ipaddress.ip_network(cidr)
    return _is_there(network) and _is_dead(network)


def remove_stale(cidr: str) -> None:
    """Removes such a route; one of a bridge that runs stays. Raises RangeError."""
    network = ipaddress.ip_network(cidr)
    name = _named(network)
    if name is None:
        return
    with name:
        try:
            netlink.remove_local_route(network)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise LocalRouteError(_refused(network, error)) from error


def check_available(cidr: str) -> None:
    """Whether a bridge could have the range here. Raises RangeError."""
    network = ipaddress.ip_network(cidr)
    try:
        allowed, known = netlink.can_change_routes(network), netlink.routes(network.version)
    except OSError as error:
        raise LocalRouteError(_refused(network, error)) from error
    if not allowed:
        raise LocalRouteError(_refused(network, PermissionError(errno.EPERM, "not permitted")))
    for route in known:
        if route.destination.version != network.version or not route.destination.overlaps(network):
            continue
        if route.destination == network and (route.is_bridge_owned or route.has_gateway):
            continue  # Left by a bridge, or what home's machines have to lead to one.
        if route.destination.prefixlen and not (
            route.is_bridge_owned and _is_dead(route.destination)
        ):
            raise LocalRouteError(
                f"--relay-cidr {cidr} is in use on this machine: it has a route to "
                f"{route.destination}; take a range that nobody has"
            )


def _is_there(network: IpNetwork) -> bool:
    try:
        return any(
            it.is_bridge_owned and it.destination == network
            for it in netlink.routes(network.version)
        )
    except OSError:
        return False


def _is_dead(network: IpNetwork) -> bool:
    """Whether no bridge that runs has that range."""
    name = _named(network)
    if name is None:
        return False
    name.close()
    return True


def _named(network: IpNetwork) -> socket.socket | None:
    """What shows in this network namespace that the range is somebody's; None where it is
    another's."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0cluster-bridge-relay-cidr/{network}")
    except OSError:
        name.close()
        return None
    return name


def _refused(network: IpNetwork, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            f"--relay-cidr {network} takes the right to change this machine's routes "
            "(CAP_NET_ADMIN): run the bridge as root, or with that capability "
            "(AmbientCapabilities=CAP_NET_ADMIN of systemd)"
        )
    said = error.strerror or str(error)
    return f"--relay-cidr {network} cannot be added to this machine: {said}"
