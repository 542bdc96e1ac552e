"""The route that makes all addresses of `--relay-cidr` local to this node while a bridge serves.

One route covers all addresses (``ip route show table local``: ``local CIDR dev lo proto 203``): the
bridge creates no interface and changes nothing when pods come and go. The kernel refuses
connections to addresses without a listener at once.

- One process per network namespace holds a range. It binds an abstract Unix socket (unix(7)) with
  the range's name, which the kernel releases when the process ends. Another bridge waits.
- A bridge that stops or loses its lease removes the route. A killed bridge leaves it: connections
  are refused then, until the next bridge with that range takes the route over. `remove_stale`
  removes it.
- Only routes with the bridge's mark are taken over or removed (`bridge.relay.forward.rtnetlink`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from typing import NoReturn

from bridge.relay.forward import rtnetlink
from translators.relay.ipam import IpNetwork

log = logging.getLogger(__name__)

#: Seconds until a failed attempt to acquire the range is retried.
RETRY_SECONDS = 1.0


class LocalRouteError(Exception):
    """This node cannot have the range; the message has the cause and the remedy."""


class LocalRoute:
    def __init__(self, cidr: str) -> None:
        self._cidr = ipaddress.ip_network(cidr)
        self._lock: socket.socket | None = None
        self.unavailable_reason = f"the bridge has not acquired {cidr} yet"
        """Why the addresses are not local; "" while they are."""

    async def hold(self) -> NoReturn:
        """Holds the route until cancelled. The first attempt is made before the first await;
        failures are logged and retried."""
        try:
            while self.unavailable_reason:
                try:
                    self._acquire()
                    self.unavailable_reason = ""
                except LocalRouteError as error:
                    if str(error) != self.unavailable_reason:
                        log.warning("relay: %s", error)
                    self.unavailable_reason = str(error)
                    await asyncio.sleep(RETRY_SECONDS)
            await asyncio.get_running_loop().create_future()
            raise AssertionError("it holds until it is cancelled")
        finally:
            self._release()

    def _acquire(self) -> None:
        if self._lock is None:
            self._lock = _try_lock(self._cidr)
        if self._lock is None:
            raise LocalRouteError(f"another bridge on this node holds {self._cidr} (--relay-cidr)")
        try:
            rtnetlink.add_local_route(self._cidr)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise LocalRouteError(_change_error(self._cidr, error)) from error
            if not _has_bridge_route(self._cidr):
                raise LocalRouteError(
                    f"{self._cidr} (--relay-cidr) is already local to this node through a route "
                    "that no bridge created; choose another range"
                ) from error

    def _release(self) -> None:
        if self._lock is None:
            return
        if not self.unavailable_reason:
            with contextlib.suppress(OSError):  # another program has removed it
                rtnetlink.remove_local_route(self._cidr)
        self._lock.close()
        self._lock = None
        self.unavailable_reason = f"the bridge has released {self._cidr}"


def is_stale(cidr: str) -> bool:
    """Whether a killed bridge has left its route on this node."""
    network = ipaddress.ip_network(cidr)
    return _has_bridge_route(network) and not _is_held(network)


def remove_stale(cidr: str) -> None:
    """Removes the route of a killed bridge; keeps that of a running one. Raises LocalRouteError."""
    network = ipaddress.ip_network(cidr)
    lock = _try_lock(network)
    if lock is None:
        return
    with lock:
        try:
            rtnetlink.remove_local_route(network)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise LocalRouteError(_change_error(network, error)) from error


def check_available(cidr: str) -> None:
    """Checks whether a bridge could have the range on this node. Raises LocalRouteError."""
    network = ipaddress.ip_network(cidr)
    try:
        allowed, routes = rtnetlink.can_change_routes(network), rtnetlink.routes(network.version)
    except OSError as error:
        raise LocalRouteError(_change_error(network, error)) from error
    if not allowed:
        raise LocalRouteError(_change_error(network, PermissionError(errno.EPERM, "not permitted")))
    for route in routes:
        to = route.destination
        if to.version != network.version or not to.overlaps(network):
            continue
        if to == network and (route.is_bridge_owned or route.has_gateway):
            continue  # left by a bridge, or the route of home's nodes to the bridge
        if to.prefixlen and (not route.is_bridge_owned or _is_held(to)):
            raise LocalRouteError(
                f"--relay-cidr {cidr} is in use: this node has a route to {to}; choose a range "
                "that nothing uses"
            )


def _has_bridge_route(network: IpNetwork) -> bool:
    try:
        routes = rtnetlink.routes(network.version)
    except OSError:
        return False
    return any(it.is_bridge_owned and it.destination == network for it in routes)


def _is_held(network: IpNetwork) -> bool:
    """Whether a running bridge holds the range."""
    lock = _try_lock(network)
    if lock is not None:
        lock.close()
    return lock is None


def _try_lock(network: IpNetwork) -> socket.socket | None:
    """Locks the range in this network namespace; None if another process holds it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0cluster-bridge-relay-cidr/{network}")
    except OSError:
        lock.close()
        return None
    return lock


def _change_error(network: IpNetwork, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            f"--relay-cidr {network} requires permission to change the node's routes "
            "(CAP_NET_ADMIN): run the bridge as root, or with that capability "
            "(AmbientCapabilities=CAP_NET_ADMIN of systemd)"
        )
    return f"cannot add --relay-cidr {network} to this node: {error.strerror or error}"
