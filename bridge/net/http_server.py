"""The HTTP server of every listener: aiohttp's, hardened for callers that are not trusted.

- What is not HTTP gets 400 without a detail, and nothing is logged: aiohttp quotes the request,
  which may hold a token, in its response and its log, and anyone who connects could fill the log.
  So do requests of HTTP versions that aiohttp parses and does not speak.
- Bodies are not decompressed.
- A defect of a handler is logged without the message of its exception.
- A handler that fails because its client has disconnected is no defect, and is not logged.
- A head has limited size. One request is parsed ahead of the handler, and then nothing is read.
- The larger heads of all connections, and of the requests that they began, have a memory budget.

`bridge.net.accepted_connections` limits the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, http_exceptions, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from bridge.net.memory_budget import MemoryBudget, MemoryShare
from sync.base.exception_summary import traced_summary
from sync.base.memory_limit import memory_share

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Limits of a head in bytes, and of the number of its headers: aiohttp's and net/http's clients
#: send about ten, browsers with cookies more.
MAX_LINE, MAX_HEADER, MAX_HEADERS = 8190, 8190, 64
#: Bytes of a head in all: a bearer token has at most 16 KiB.
MAX_HEAD = 32 * 1024

#: Bytes of a body that are read before the handler asks for them: aiohttp's default.
_BODY_BUFFER = 2**16
#: The end of a head.
_END = b"\r\n\r\n"
#: Key of a request whose HTTP version is not supported.
_OTHER_VERSION = web.RequestKey("other_version", bool)
#: Errors in what a caller sent.
_CALLER_ERRORS = (http_exceptions.HttpProcessingError, web.RequestPayloadError)

log = logging.getLogger(__name__)


def large_heads_limit() -> int:
    """Bytes that all heads above `MAX_HEAD` may hold. Parsed, a head takes up to six times its
    size."""
    return memory_share(0.25)


class HttpServer(web.Server):
    """A protocol factory: each call makes the protocol of one connection. A handler is cancelled
    when its client disconnects. A head has at most ``max_head`` bytes if the client has a
    certificate that TLS has verified, otherwise at most `MAX_HEAD`. Options are those of aiohttp's
    RequestHandler. Call `shutdown` at the end."""

    def __init__(self, handler: Handler, *, max_head: int = MAX_HEAD, **options: Any) -> None:
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
        self.max_head = max_head
        self.large_heads = MemoryBudget(max(large_heads_limit(), max_head))

    def __call__(self) -> web.RequestHandler:
        return HttpConnection(self, loop=asyncio.get_running_loop(), **self._options)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if _OTHER_VERSION in request:
            return _bad_request()
        connection = cast("HttpConnection", request.protocol)
        connection.hold_head_of_request(_head_size(request.raw_path, request.raw_headers))
        try:
            return await self._handler(request)
        finally:
            connection.hold_head_of_request(0)


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


class _RequestParser(HttpRequestParser):
    """Parses one request ahead of the handler, and nothing that follows a request for an upgrade.
    The connection's `hold_head` gets the size of the head, as far as it has arrived."""

    def __init__(self, connection: HttpConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            connection,
            loop,
            _BODY_BUFFER,
            max_line_size=connection.max_line_size,
            max_headers=connection.max_headers,
            max_field_size=connection.max_field_size,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=1,
        )
        self._hold = connection.hold_head
        self._size = 0
        self._body: StreamReader | None = None
        # The next requests, and the last bytes of what was parsed, in which a head may end.
        self._unparsed = self._last = b""

    def feed_data(self, data: bytes) -> Any:  # type: ignore[override]  # so aiohttp calls it
        if self._body is not None and not self._body.is_eof():
            return super().feed_data(data)
        data, self._unparsed = self._unparsed + data, b""
        while True:
            part, data = self._split_after_head(data)
            messages, upgraded, rest = super().feed_data(part)
            if messages:
                break
            self._size += len(part)
            self._hold(self._size)
            if not data:
                return messages, upgraded, rest
        self._size = 0
        head, self._body = messages[0]
        self._hold(_head_size(head.path, head.raw_headers))
        if not self._body.is_eof():
            _, upgraded, rest = super().feed_data(data)
        elif head.upgrade:
            super().feed_data(b"")  # aiohttp drops what it gets with the head
            upgraded, rest = True, data
            self._hold(0)  # there is no next head; the request holds this one
        else:
            self._unparsed = data
        return messages, upgraded, rest

    def _split_after_head(self, data: bytes) -> tuple[bytes, bytes]:
        at = (self._last + data).find(_END)
        if at < 0:
            self._last = (self._last + data)[1 - len(_END) :]
            return data, b""
        at += len(_END) - len(self._last)
        self._last = b""
        return data[:at], data[at:]


def _head_size(path: str, headers: Iterable[tuple[bytes, bytes]]) -> int:
    return len(path) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


class HttpConnection(web.RequestHandler):
    """The protocol of one connection."""

    __slots__ = ("_max_head", "_next_head", "_share", "_this_head")

    def __init__(self, server: HttpServer, **options: Any) -> None:
        super().__init__(server, **options)
        # Private attributes of aiohttp, which has no option for them; it defines them as slots.
        self._parser = _RequestParser(self, options["loop"])
        self._max_msg_queue_size, self._msg_queue_resume_size = 1, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = cast("HttpServer", self._manager)
        self._max_head = server.max_head if transport.get_extra_info("peercert") else MAX_HEAD
        self._share = MemoryShare(server.large_heads, cast("asyncio.Transport", transport))
        self._this_head = self._next_head = 0
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._share.hold(0)

    def take_rest(self) -> bytes:
        """The bytes that have arrived after a request for an upgrade, for the protocol that takes
        the connection over."""
        rest, self._message_tail = self._message_tail, b""
        return rest

    def hold_head(self, size: int) -> None:
        """The head that the parser has, completely or not, has this size."""
        self._next_head = size
        if size > self._max_head:
            raise http_exceptions.LineTooLong(b"", self._max_head)
        self._hold()

    def hold_head_of_request(self, size: int) -> None:
        """The request in progress has a head of this size; 0 at its end."""
        self._this_head = size
        self._hold()

    def _hold(self) -> None:
        size = self._this_head + self._next_head
        try:
            self._share.hold(size if size > MAX_HEAD else 0)
        except ConnectionAbortedError as error:
            raise http_exceptions.LineTooLong(b"", self._max_head) from error

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

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ARG002
        error = kw.get("exc_info")
        if isinstance(error, _CALLER_ERRORS):
            return
        # A message, of the exception too, can quote an object or a credential.
        where = traced_summary(error) if isinstance(error, BaseException) else "no response"
        log.error("a request failed by a defect in the bridge; please report it: %s", where)
