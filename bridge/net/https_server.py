"""An HTTPS server whose connections are limited (`bridge.net.accepted_connections`), and whose
certificate can be replaced while it runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from bridge.net.accepted_connections import ServerConnections, TlsConnection
from bridge.net.http_server import HttpServer

#: Seconds for responses in progress at the end.
SHUTDOWN_SECONDS = 1.0

Respond = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpsServer:
    """The server. `start` it, and `stop` it at the end. ``max_header`` is in bytes."""

    def __init__(self, respond: Respond, context: ssl.SSLContext, *, max_header: int) -> None:
        self.context = context
        """Of new connections."""
        self.connections = ServerConnections()
        self._http = HttpServer(respond, max_field_size=max_header, lingering_time=SHUTDOWN_SECONDS)
        self._listener: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> int:
        """Serves on the listening socket, and returns its port."""
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: TlsConnection(self.context, self._http, self.connections), sock=sock
        )
        listening: int = sock.getsockname()[1]
        return listening

    async def stop(self) -> None:
        """Ends the server, and cancels the requests that do not end by themselves."""
        if self._listener is not None:
            self._listener.close()
        await self._http.shutdown(SHUTDOWN_SECONDS)
