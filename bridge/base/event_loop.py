"""The event loop of every command: uvloop's, with TLS connections that can be cancelled safely.

uvloop 0.23 closes the TCP transport, but not the TLS protocol, of a connection that is cancelled in
its first iterations of the loop. If the server's part of the handshake has arrived by then, TLS
writes to the closed transport, and the loop logs "Fatal error on SSL protocol" with a traceback:
once for each watch that a rejected join, or a stop, was about to open.

So a connection is established in its own task. When the caller is cancelled, that task gets
`SETTLE_SECONDS` to leave these iterations, and is then closed or cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

#: Seconds after which a cancelled connection is past its first iterations of the loop.
SETTLE_SECONDS = 0.5

_Connection = tuple[asyncio.Transport, asyncio.Protocol]


class CancelSafeLoop(uvloop.Loop):
    """uvloop's loop with a safe `create_connection`."""

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """As asyncio's. Can be cancelled safely at any time."""
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
    """Closes the connection of a cancelled caller."""
    if not establishing.cancelled() and establishing.exception() is None:
        transport, _ = establishing.result()
        transport.abort()
