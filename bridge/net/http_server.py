"""The HTTP server of every listener: aiohttp's, hardened for callers that are not trusted.

- What is not HTTP gets 400 without a detail, and nothing is logged: aiohttp quotes the request,
  which may hold a token, in its response and its log, and anyone who connects could fill the log.
  So do requests of HTTP versions that aiohttp parses and does not speak.
- Bodies are not decompressed.
- A handler that fails because its client has disconnected is no defect, and is not logged.
- A head has limited size. aiohttp parses at most 32 pipelined requests ahead of the handler, and
  then stops reading.

`bridge.net.accepted_connections` limits the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, http_exceptions, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Limits of a head in bytes, and of the number of its headers: aiohttp's and net/http's clients
#: send about ten, browsers with cookies more.
MAX_LINE, MAX_HEADER, MAX_HEADERS = 8190, 8190, 64

#: Key of a request whose HTTP version is not supported.
_OTHER_VERSION = web.RequestKey("other_version", bool)
#: Errors in what a caller sent.
_CALLER_ERRORS = (http_exceptions.HttpProcessingError, web.RequestPayloadError)

log = logging.getLogger(__name__)


class HttpServer(web.Server):
    """A protocol factory: each call makes the protocol of one connection. A handler is cancelled
    when its client disconnects. Options are those of aiohttp's RequestHandler. Call `shutdown` at
    the end."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(self._handle, request_factory=_make_request, handler_cancellation=True)
        self._handler = handler
        self._options = {
            "access_log": None,
            "logger": log,
            "auto_decompress": False,
            "max_line_size": MAX_LINE,
            "max_field_size": MAX_HEADER,
            "max_headers": MAX_HEADERS,
            **options,
        }

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if _OTHER_VERSION in request:
            return _bad_request()
        return await self._handler(request)


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request of HTTP/1.0 or 1.1, since a response has the version of its request."""
    is_supported = message.version in (HttpVersion10, HttpVersion11)
    if not is_supported:
        message = message._replace(version=HttpVersion11)
    loop = asyncio.get_running_loop()
    request = web.BaseRequest(message, payload, protocol, writer, task, loop)
    if not is_supported:
        request[_OTHER_VERSION] = True
    return request


def _bad_request() -> web.Response:
    response = web.Response(status=400, text="the request is not valid HTTP/1.1\n")
    response.force_close()
    return response


class _Connection(web.RequestHandler):
    """The protocol of one connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        is_disconnected = isinstance(exc, ConnectionError) and (
            self.transport is None or self.transport.is_closing()
        )
        if not (is_disconnected or isinstance(exc, _CALLER_ERRORS)):
            return super().handle_error(request, status, exc, message)
        return _bad_request()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        if not isinstance(kw.get("exc_info"), _CALLER_ERRORS):
            super().log_exception(*args, **kw)
