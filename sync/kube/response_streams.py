"""Streamed responses (watches, logs) and WebSockets of one API server.

Streams bypass the request limiter and the fence: they are few and change nothing. After 401 the
credential is read again and the stream is opened once more. Shared streams
(`sync.kube.http2`) cost little each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Self, TypeVar

import aiohttp

from sync.kube.api_errors import Unauthorized, from_status
from sync.kube.api_server import code_label
from sync.kube.http2 import Http2Response, SharedConnections
from sync.kube.transport import REQUEST_TIMEOUT, Query, RequestDefaults, Transport, open_session

R = TypeVar("R", bound=aiohttp.ClientResponse | Http2Response)

#: Bytes of a stream that are read before the caller asks for them: aiohttp's default.
READ_AHEAD = 2**16


class StreamTransport(Transport):
    """A `Transport` with streams."""

    _shared: SharedConnections | None = None

    async def __aenter__(self) -> Self:
        self._shared = SharedConnections(self.dialer)
        return await super().__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        if self._shared is not None:
            self._shared.close()
        await super().__aexit__(*exception)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        answer_timeout: float | None = None,
        idle_timeout: float | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a GET whose body the caller reads as it arrives. ``headers`` replace or complete
        those of all requests.

        ``answer_timeout`` is how many seconds the response may take to begin, ``idle_timeout`` how
        many seconds of silence count as a dead peer. Raises as `request` does if the response is a
        failure; reads belong into `map_read_errors`.
        """

        async def get(defaults: RequestDefaults) -> aiohttp.ClientResponse:
            return await self._get(path, query, defaults, idle_timeout, read_ahead, headers=headers)

        async with self._open(path, get, answer_timeout) as response:
            yield response

    @asynccontextmanager
    async def shared_stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        answer_timeout: float | None = None,
        idle_timeout: float | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> AsyncIterator[aiohttp.ClientResponse | Http2Response]:
        """As `stream`, on a connection that it shares with others if the server speaks HTTP/2.
        ``read_ahead`` then is that of `sync.kube.http2`."""
        shared = self._shared
        if shared is None:
            raise RuntimeError("a Transport is used outside of `async with`")

        async def get(defaults: RequestDefaults) -> aiohttp.ClientResponse | Http2Response:
            headers = defaults.options()["headers"].items()
            response = await shared.get(defaults.url(path, query), headers)
            if response is None:
                return await self._get(path, query, defaults, idle_timeout, read_ahead)
            response.idle_timeout = idle_timeout
            return response

        async with self._open(path, get, answer_timeout) as response:
            yield response

    @asynccontextmanager
    async def _open(
        self,
        path: str,
        get: Callable[[RequestDefaults], Awaitable[R]],
        answer_timeout: float | None,
    ) -> AsyncIterator[R]:
        """Yields the response of ``get``, which is called again after a 401."""
        what = f"GET {path}"
        for is_last in (False, True):
            seen = self.credentials.generation
            await self.confirm_cluster()
            defaults = self._request_defaults()
            with self.connection_errors(what):
                async with asyncio.timeout(answer_timeout):
                    response = await get(defaults)
            self.metrics.streams[code_label(response.status)] += 1
            try:
                if response.status < 300:
                    yield response
                    return
                with self.connection_errors(what):
                    async with asyncio.timeout(REQUEST_TIMEOUT):
                        raw = await self.limits.read_failure(response, what)
                failure = self._failure(response, raw, what)
            finally:
                response.close()
            retry = isinstance(failure, Unauthorized) and not is_last
            if not retry or not await self.credentials.renew(seen):
                raise failure

    async def _get(
        self,
        path: str,
        query: Query | None,
        defaults: RequestDefaults,
        idle_timeout: float | None,
        read_ahead: int,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=idle_timeout)
        return await open_session(self._streams).get(
            defaults.url(path, query),
            timeout=timeout,
            read_bufsize=read_ahead,
            **defaults.options(headers=headers),
        )

    @asynccontextmanager
    async def websocket(
        self, path: str, *, query: Query, protocol: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        """Opens a WebSocket of this subprotocol, closed with the context. ``headers`` and errors as
        for `stream`. The caller answers pings."""
        seen = self.credentials.generation
        try:
            socket = await self._open_websocket(path, query, protocol, headers)
        except Unauthorized:
            if not await self.credentials.renew(seen):
                raise
            socket = await self._open_websocket(path, query, protocol, headers)
        try:
            yield socket
        finally:
            # `socket.close` would read thousands of messages in one step of the event loop.
            socket._response.close()

    async def _open_websocket(
        self, path: str, query: Query, protocol: str, headers: Mapping[str, str] | None
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        what = f"GET {path} (WebSocket)"
        await self.confirm_cluster()
        defaults = self._request_defaults()
        # API servers answer 406 to an upgrade that accepts JSON only.
        options = defaults.options("*/*", headers=headers)
        del options["allow_redirects"]
        with self.connection_errors(what):
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    session = open_session(self._streams)
                    socket: aiohttp.ClientWebSocketResponse[bool] = await session.ws_connect(
                        defaults.url(path, query),
                        protocols=(protocol,),
                        autoping=False,
                        **options,
                    )
            except aiohttp.WSServerHandshakeError as error:
                # Not chained: its repr contains the request's headers with the credential.
                raise from_status(None, code=error.status, side=self.side, what=what) from None
        return socket

    def map_read_errors(self, path: str) -> AbstractContextManager[None]:
        """A context manager that raises `Unreachable` for connection failures while the body of
        ``path`` is read."""
        return self.connection_errors(f"GET {path}")
