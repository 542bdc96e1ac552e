"""The event loop of a command: uvloop's, with TLS connections whose establishment can be cancelled.

uvloop 0.23 closes the TCP transport of a connection that is cancelled in its first turns of the
loop, and not its TLS protocol. Where the server's part of the handshake has arrived by then, TLS
goes on and writes to the closed transport: the loop logs "Fatal error on SSL protocol" with a
traceback, once for each watch that a refused join, or a stop, was about to open.

So a connection is established in a task of its own. When its caller is cancelled, it is given
`SETTLE_SECONDS` to leave those turns, and is closed or cancelled then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

#: Seconds after which a connection that nobody waits for is past its first turns of the loop.
SETTLE_SECONDS = 0.5

_Connection = tuple[asyncio.Transport, asyncio.Protocol]


class CancelSafeLoop(uvloop.Loop):
    """uvloop's loop; see the module."""

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """As asyncio's. Cancelling it is safe at any moment."""
        if not options.get("ssl"):
            return await super().create_connection(*args, **options)
        connecting: Any = super().create_connection(*args, **options)
        establishing: asyncio.Task[_Connection] = self.create_task(connecting, name="connection")
        try:
            return await asyncio.shield(establishing)
        except asyncio.CancelledError:
            timer = self.call_later(SETTLE_SECONDS, establishing.cancel)
            establishing.add_done_callback(lambda _: timer.cancel())
            establishing.add_done_callback(_close)
            raise


def _close(establishing: asyncio.Task[_Connection]) -> None:
    """Closes the connection that nobody waits for."""
    if not establishing.cancelled() and establishing.exception() is None:
        transport, _ = establishing.result()
        transport.abort()
