"""Serves a fake API server over TLS and HTTP/2, with what a test needs to break it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Literal, cast

import aiohttp
import h2.events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from tests.fakeapi.server import FakeApi

#: As Go's server ends a connection; h2 would send nothing after it.
_GOAWAY = GoAwayFrame(last_stream_id=2**31 - 1).serialize()


class Http2Gateway:
    """Forwards each stream to ``api`` over HTTP/1.1, and the bytes of connections that use
    HTTP/1.1. Use as an async context manager."""

    def __init__(self, api: FakeApi, tls: ssl.SSLContext, *, max_streams: int = 100) -> None:
        self.api = api
        self.max_streams = max_streams
        self.connections: list[GatewayConnection] = []
        """The connections that are open."""
        self.goaway: Literal["before head", "after head"] | None = None
        """Where a GOAWAY is sent in each response with status 401, as by API servers."""
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self.session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Http2Gateway:
        self._tls.set_alpn_protocols(["h2", "http/1.1"])
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._server = await asyncio.get_running_loop().create_server(
            lambda: GatewayConnection(self), "127.0.0.1", 0, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
            for task in connection.tasks.values():
                task.cancel()
            await asyncio.gather(*connection.tasks.values(), return_exceptions=True)
        if self.session is not None:
            await self.session.close()


class GatewayConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, gateway: Http2Gateway) -> None:
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """The streams that are open, by id."""
        self.cancelled: list[int] = []
        """Streams that the client reset."""
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.transport: asyncio.Transport
        self._gateway = gateway
        self._window = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self.transport.set_protocol(_Tunnel(self.transport, self._gateway.api.port))
            return
        self._gateway.connections.append(self)
        values = {SettingCodes.MAX_CONCURRENT_STREAMS: self._gateway.max_streams}
        self.h2.local_settings = Settings(client=False, initial_values=values)
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.connections.remove(self)
        for task in self.tasks.values():
            task.cancel()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2_events.RequestReceived():
                    work = self._forward(event.stream_id, _headers(event))
                    self.tasks[event.stream_id] = asyncio.create_task(work)
                case h2_events.StreamReset():
                    self.cancelled.append(event.stream_id)
                    if (task := self.tasks.pop(event.stream_id, None)) is not None:
                        task.cancel()
                case h2_events.WindowUpdated():
                    self._window.set()
        self.flush()

    def flush(self) -> None:
        """Sends what the connection has queued."""
        if not self.transport.is_closing():
            self.transport.write(self.h2.data_to_send())

    async def _forward(self, stream_id: int, headers: dict[str, str]) -> None:
        url = self._gateway.api.url + headers[":path"]
        passed = {name: value for name, value in headers.items() if not name.startswith(":")}
        if self._gateway.session is None:
            raise RuntimeError("the gateway has been left")
        try:
            async with self._gateway.session.get(url, headers=passed) as response:
                head = [(":status", str(response.status))]
                kept = ("content-type", "retry-after")
                head += [
                    (name.lower(), value)
                    for name, value in response.headers.items()
                    if name.lower() in kept
                ]
                goaway = self._gateway.goaway if response.status == 401 else None
                if goaway == "before head":
                    self.transport.write(_GOAWAY)
                self.h2.send_headers(stream_id, head)
                self.flush()
                if goaway == "after head":
                    self.transport.write(_GOAWAY)
                while chunk := await response.content.readany():
                    await self.send(stream_id, chunk)
            self.h2.end_stream(stream_id)
        except aiohttp.ClientError:
            self.h2.reset_stream(stream_id)
        except H2Error:
            return  # the client has closed the stream
        finally:
            self.tasks.pop(stream_id, None)
        self.flush()

    async def send(self, stream_id: int, data: bytes) -> None:
        """Sends data as the client's window permits."""
        while data:
            room = min(
                self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size
            )
            if not room:
                self._window.clear()
                await self._window.wait()
                continue
            self.h2.send_data(stream_id, data[:room])
            data = data[room:]
            self.flush()


def _headers(event: h2_events.RequestReceived) -> dict[str, str]:
    return {str(name): str(value) for name, value in event.headers}


class _Tunnel(asyncio.Protocol):
    """Passes the bytes of a client on to a port, and back."""

    def __init__(self, client: asyncio.Transport, port: int) -> None:
        self._client = client
        self._pending: list[bytes] = []
        self._server: asyncio.Transport | None = None
        self._opening = asyncio.create_task(self._open(port))

    async def _open(self, port: int) -> None:
        back = _Back(self._client)
        loop = asyncio.get_running_loop()
        self._server, _ = await loop.create_connection(lambda: back, "127.0.0.1", port)
        self._server.writelines(self._pending)

    def data_received(self, data: bytes) -> None:
        if self._server is None:
            self._pending.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server is not None:
            self._server.close()


class _Back(asyncio.Protocol):
    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()
