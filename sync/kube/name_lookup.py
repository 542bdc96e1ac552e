"""Looks up the addresses of one API server, so that its name server delays no other one.

- One lookup runs at a time, in a thread of its own: the C library offers no timeout, and the few
  threads of the event loop are for all servers.
- Addresses are kept for `FRESH_SECONDS`. While a lookup hangs or fails for the moment, the last
  ones are used: TLS verifies the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from sync.base import clock

#: An entry of `socket.getaddrinfo`.
AddressInfo = tuple[Any, ...]

#: Seconds without a further lookup, as in aiohttp.
FRESH_SECONDS = 10.0
#: Seconds that a lookup may take if there are addresses of an earlier one.
PATIENCE = 1.0


class NameLookup:
    """The addresses of one API server and of the proxy before it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, list[AddressInfo]]] = {}
        self._running: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}

    async def find(self, host: str, port: int) -> list[AddressInfo]:
        """The addresses. Raises socket.gaierror; the caller limits the time."""
        with contextlib.suppress(socket.gaierror):
            return _look_up(host, port, socket.AI_NUMERICHOST)
        found_at, addresses = self._known.get((host, port), (0.0, []))
        if addresses and clock.now() - found_at < FRESH_SECONDS:
            return addresses
        lookup = asyncio.shield(self._running.get((host, port)) or self._start(host, port))
        try:
            async with asyncio.timeout(PATIENCE if addresses else None):
                return await lookup
        except (TimeoutError, socket.gaierror) as error:
            is_temporary = isinstance(error, TimeoutError) or error.errno == socket.EAI_AGAIN
            if not (addresses and is_temporary):
                raise
            return addresses

    def _start(self, host: str, port: int) -> asyncio.Future[list[AddressInfo]]:
        key = host, port
        loop = asyncio.get_running_loop()
        result = self._running[key] = loop.create_future()

        def finish(found: list[AddressInfo] | Exception) -> None:
            del self._running[key]
            if isinstance(found, Exception):
                result.set_exception(found)
                result.exception()  # asyncio logs exceptions that are not retrieved
            else:
                self._known = {key: (clock.now(), found)}
                result.set_result(found)

        def run() -> None:
            found: list[AddressInfo] | Exception
            try:
                found = _look_up(host, port)
            except (OSError, UnicodeError) as error:  # the latter for a name that is none
                found = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish, found)

        # As a daemon: it must not delay the end of the process.
        threading.Thread(target=run, name="name-lookup", daemon=True).start()
        return result


def _look_up(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
