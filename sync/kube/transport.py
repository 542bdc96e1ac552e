"""Requests to one API server: bytes and plain dicts, errors of one hierarchy.

Guarantees:

- An answer comes out as it came over the wire, gzip undone.
- Bounded concurrency: as many requests at once as the server gains from
  (`sync.kube.request_limiter`), at most `MAX_CONNECTIONS`; no client-side rate limit. The server's
  own flow control is honoured: after 429, or 503 with ``Retry-After``, the request is tried again,
  up to `THROTTLE_ATTEMPTS` times; then `Throttled` is raised and the caller's queue backs off.
- After 401 the credential is read again and the request is tried once more, at the address that
  was read with it.
- After a failed connection the credential is read again where its files have changed
  (`ClientConfig.recheck_files`); where it then leads to another address or CA, nothing is sent
  before the server has shown that it is the same cluster.
- Every request has a limit of time, the wait for its turn included. Watches and streams have
  none in total; a peer that is gone without a word is noticed by TCP (`sync.kube.sockets`), not
  by asking.
- Through `fenced` a write is sent only while a fence is open (`sync.kube.write_fence`), and
  `NotLeaderError` while it is not.
- Nothing else that can have changed something is sent twice: only the caller knows whether it
  still wants the same thing. A connection that the server closed while it was idle is not used.
  Where the server closes it just as a request is sent, a GET or DELETE is sent once more
  (aiohttp does that), a POST or PATCH is `Unreachable`.

Thousands of requests are made in a burst, so one that is answered at once takes the shortest way:
what does not change from one request to the next is made once a credential (`Route`), retries are
set up after an answer that asks for them, and words for errors when there is an error.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Self

import aiohttp
import orjson
import tenacity
from aiohttp.http_exceptions import HttpProcessingError

from sync.base import tracing
from sync.base.callbacks import Callbacks
from sync.base.histograms import RequestMetrics
from sync.kube.credentials import ClientConfig
from sync.kube.errors import (
    ApiError,
    Side,
    Throttled,
    Unauthorized,
    Unreachable,
    from_status,
)
from sync.kube.request import JSON, ApiRequest, Query, RequestDefaults
from sync.kube.request_limiter import RequestLimiter
from sync.kube.resources import NAMESPACES, Object
from sync.kube.sockets import ConnectionErrors, request_socket
from sync.kube.write_fence import Fence, FencedBody, not_leading
from translators.objects import uid_of

#: An API server lets 400 reads and 200 writes run at once by default (--max-requests-inflight,
#: --max-mutating-requests-inflight); a fair part of that saturates its CPUs.
MAX_CONNECTIONS = 64
#: As client-go: ten tries where the server says to wait, then the caller is told.
THROTTLE_ATTEMPTS = 10
#: Never sleep longer on a server's word than this, in seconds.
THROTTLE_CAP = 30.0
#: Bytes that are read of a stream before somebody takes them: aiohttp's default.
READ_AHEAD = 2**16
#: Seconds for a request that is neither watch nor stream; API servers end one after 60 s.
REQUEST_TIMEOUT = 30.0
#: Seconds to open a connection, TLS included.
CONNECT_TIMEOUT = 10.0
#: Seconds that an idle connection is kept. API servers close theirs after 90 s (IdleTimeout in
#: k8s.io/apiserver's secure_serving.go): we are first, so that no request meets that moment. A load
#: balancer that closes earlier is noticed, but for what is on its way just then.
KEEP_IDLE = 30.0
#: Seconds for a server to say goodbye on a WebSocket that is closed from here.
GOODBYE = aiohttp.ClientWSTimeout(ws_close=1.0)

#: May be entered any number of times.
_NO_FENCE = nullcontext()

#: What aiohttp raises where a connection or an answer is broken; `ConnectionErrors` knows each.
_BROKEN = (aiohttp.ClientError, OSError, HttpProcessingError)


class Transport:
    """What reaches the API server behind ``access``. Use as an async context manager."""

    def __init__(self, config: ClientConfig, *, user_agent: str = "cluster-bridge") -> None:
        self.config = config
        self._user_agent = user_agent
        self._made_route: RequestDefaults | None = None
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._refused_handlers: Callbacks[[]] = Callbacks(f"{config.side}: refused credential")
        self._fence: Fence | None = None
        self.metrics = RequestMetrics()
        """What was asked through this client, in numbers."""
        self.limiter = RequestLimiter(most=MAX_CONNECTIONS)
        """How many requests are in flight at once, streams aside."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.side} {self.config.server}>"

    @property
    def side(self) -> Side:
        """Which cluster this is a client of, for messages."""
        return self.config.side

    async def __aenter__(self) -> Self:
        self._requests = _session()
        # Watches and streams last: a request must not come to stand behind one.
        self._streams = _session()
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()

    def fenced(self, fence: Fence) -> Self:
        """This client with its writes behind the fence; connections and all else are shared. Of
        one that has been entered, and no longer than that."""
        other = copy.copy(self)
        other._fence = fence
        return other

    # -- requests --------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Object | None = None,
        content_type: str = JSON,
        subject: str = "",
        timeout: float = REQUEST_TIMEOUT,
        decode: bool = True,
        retry_throttled: bool = True,
    ) -> Object:
        """One request with the retries that the module names; the decoded answer.

        Without ``decode`` the answer is not looked into, and {} is given. ``timeout`` is of each
        attempt, in seconds; ``subject`` is what an error names beside the path. Not ``patient``:
        `Throttled` is raised at once, for a caller that knows better when to ask again.
        """
        data = None if body is None else orjson.dumps(body)
        kind = "" if body is None else content_type
        call = ApiRequest(method, path, query, subject, data, kind, JSON, timeout)
        try:
            raw = await self._authorized(call)
        except Throttled as first:
            if not retry_throttled:
                raise
            raw = await self._again(call, first)
        if decode:
            decoded = _decoded(raw)
            if isinstance(decoded, dict):
                return decoded
        elif raw.startswith(b"{"):
            return {}
        raise Unreachable(
            "the answer is not a JSON object; is this an API server, or a proxy before it?",
            side=self.side,
            what=call.what,
        )

    async def read(self, path: str, *, query: Query | None = None, timeout: float) -> bytes:
        """The body of a GET as it is, whatever its type. Raises as `request` does; is not tried
        again when the server asks to wait."""
        # What answers may be somebody behind the API server, such as a kubelet.
        call = ApiRequest("GET", path, query, "", None, "", "*/*", timeout, times_server=False)
        return await self._authorized(call)

    def on_unauthorized(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Calls ``handler`` each time that the server does not accept the credential (401) for a
        request, though it was read again; until what is returned is called."""
        return self._refused_handlers.add(handler)

    async def _again(self, call: ApiRequest, first: Throttled) -> bytes:
        """Tries again when the server said so. ``first``, its answer, is the first attempt."""
        said: list[Throttled] = [first]

        async def attempt() -> bytes:
            if said:
                raise said.pop()
            return await self._authorized(call)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Throttled),
            wait=_retry_after,
            stop=tenacity.stop_after_attempt(THROTTLE_ATTEMPTS),
            reraise=True,
        )
        return await retrying(attempt)

    async def _authorized(self, call: ApiRequest) -> bytes:
        seen = self.config.generation
        attempt = self._attempt if tracing.get_tracer() is None else self._traced
        try:
            if self.config.unconfirmed:
                await self._prove()
            return await attempt(call)
        except Unauthorized:
            if not await self.config.renew(seen):
                self._refused_handlers()
                raise
        try:
            if self.config.unconfirmed:
                await self._prove()
            return await attempt(call)
        except Unauthorized:
            self._refused_handlers()
            raise

    async def _prove(self) -> None:
        """Asks which cluster answers, after its address or CA changed. Raises AccessError where it
        is another one, and as `request` does."""
        async with self.config.confirming:
            if self.config.unconfirmed:
                path = NAMESPACES.path("kube-system")
                call = ApiRequest("GET", path, None, "", None, "", JSON, REQUEST_TIMEOUT)
                self.config.confirm_cluster(uid_of(_decoded(await self._attempt(call)) or {}))

    async def _traced(self, call: ApiRequest) -> bytes:
        """The same with a span."""
        spans = tracing.get_tracer()
        if spans is None:
            return await self._attempt(call)
        with spans.request(self.side, self.config.host, call.method, call.path):
            return await self._attempt(call)

    async def _attempt(self, call: ApiRequest) -> bytes:
        """Sends the request once. Each attempt of each request goes through here, and nothing else
        does: what bounds or slows requests stands around this."""
        route = self._route()
        metrics = self.metrics
        method = call.method
        fence = self._fence if method != "GET" else None
        code = "none"
        started = time.monotonic()
        try:
            async with asyncio.timeout(call.seconds) as limit:
                flow = await self.limiter.enter()
                response, sent, took = None, time.monotonic(), None
                try:
                    with _passing(fence, limit):
                        response = await _entered(self._requests).request(
                            method,
                            route.url(call.path, call.query),
                            data=self._body(fence, call),
                            **route.options(call.accept, call.content_type),
                        )
                        raw = await response.read()  # to its end: else it closes the connection
                    took = time.monotonic() - sent if call.times_server else None
                finally:
                    self.limiter.leave(flow, method, took, refused=_asks_to_wait(response))
            code = str(response.status)
            self.config.server_clock.update(response.headers.get("Date"))
        except _BROKEN as error:
            if fence is not None and not fence.is_open:
                raise not_leading(self.side, call.what) from error
            with self._transport_errors(call.what):
                raise
        finally:
            metrics.durations[method, code].observe(time.monotonic() - started)
        if response.status >= 300:
            raise self._failure(response, raw, call.what)
        return raw

    def _body(self, fence: Fence | None, call: ApiRequest) -> bytes | FencedBody | None:
        """What is sent. Raises NotLeading where it must not be."""
        if fence is None:
            return call.data
        fence.check(self.side, call.what)
        return FencedBody(call.data or b"", fence)

    # -- streams ---------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        answer_timeout: float | None = None,
        idle_timeout: float | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is read as it comes (a watch, a log).

        ``answer`` is how many seconds the answer may take to begin, ``idle`` how many of silence
        mean that the peer is gone; ``ahead`` how many bytes are read before the caller asks for
        them (aiohttp takes up to twice as many). Raises as `request` does where the answer is a
        failure; an error while reading is the caller's to map with `reading`.
        """
        what = f"GET {path}"
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT, sock_read=idle_timeout
        )
        for last in (False, True):
            seen = self.config.generation
            if self.config.unconfirmed:
                await self._prove()
            route = self._route()
            with self._transport_errors(what):
                async with asyncio.timeout(answer_timeout):
                    response = await _entered(self._streams).get(
                        route.url(path, query),
                        timeout=limits,
                        read_bufsize=read_ahead,
                        **route.options(),
                    )
            self.metrics.streams[str(response.status)] += 1
            try:
                if response.status < 300:
                    yield response
                    return
                with self._transport_errors(what):
                    failure = self._failure(response, await response.read(), what)
            finally:
                response.close()
            retry = isinstance(failure, Unauthorized) and not last
            if not retry or not await self.config.renew(seen):
                raise failure

    @asynccontextmanager
    async def websocket(
        self, path: str, *, query: Query, protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        """A WebSocket of this subprotocol, closed with the context. Raises as `stream` does; of an
        answer that is no WebSocket only the code is known."""
        seen = self.config.generation
        try:
            socket = await self._websocket(path, query, protocol)
        except Unauthorized:
            if not await self.config.renew(seen):
                raise
            socket = await self._websocket(path, query, protocol)
        try:
            yield socket
        finally:
            await socket.close()

    async def _websocket(
        self, path: str, query: Query, protocol: str
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        what = f"GET {path} (WebSocket)"
        if self.config.unconfirmed:
            await self._prove()
        route = self._route()
        options = dict(route.options("*/*"))  # there is no JSON of it: 406
        del options["allow_redirects"]
        with self._transport_errors(what):
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    socket: aiohttp.ClientWebSocketResponse[bool] = await _entered(
                        self._streams
                    ).ws_connect(
                        route.url(path, query), protocols=(protocol,), timeout=GOODBYE, **options
                    )
            except aiohttp.WSServerHandshakeError as error:
                # Not as its cause: its repr holds the request's headers, with the credential.
                raise from_status(None, code=error.status, side=self.side, what=what) from None
        return socket

    def map_read_errors(self, path: str) -> ConnectionErrors:
        """A context in which errors of a connection become `Unreachable`."""
        return self._transport_errors(f"GET {path}")

    # -- how -------------------------------------------------------------------------------

    def _route(self) -> RequestDefaults:
        self.config.reload_token()
        route = self._made_route
        if route is None or route.generation != self.config.generation:
            route = self._made_route = RequestDefaults(self.config, self._user_agent)
        return route

    def _failure(self, response: aiohttp.ClientResponse, raw: bytes, what: str) -> ApiError:
        after = response.headers.get("Retry-After", "")
        return from_status(
            _decoded(raw),
            code=response.status,
            side=self.side,
            what=what,
            retry_after=float(after) if after.isdecimal() else None,
        )

    def _transport_errors(self, what: str) -> ConnectionErrors:
        return ConnectionErrors(self.side, what, self.config.server, self.config.recheck_files)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,  # `Limiter` has one.
            keepalive_timeout=KEEP_IDLE,
            socket_factory=request_socket,
        ),
        # The rest of a request's time is `_attempt`'s: aiohttp's own limit costs more.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        json_serialize=_no_json,
        # Cookies of a load balancer would pin all requests to one API server.
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[_no_redirects()],
    )


def _no_redirects() -> aiohttp.TraceConfig:
    """Ends a WebSocket's request that is redirected. `aiohttp` has no argument for that, and would
    send the command to the address that the server names."""

    async def refuse(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        answer = redirect.response
        answer.close()
        raise aiohttp.WSServerHandshakeError(
            answer.request_info, (), status=answer.status, message="redirected"
        )

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


def _passing(fence: Fence | None, limit: asyncio.Timeout) -> AbstractContextManager[None]:
    return _NO_FENCE if fence is None else fence.guard(limit)


def _asks_to_wait(response: aiohttp.ClientResponse | None) -> bool:
    """Whether `_failure` is to be `Throttled`."""
    if response is None or response.status not in (429, 503):
        return False
    return response.status == 429 or "Retry-After" in response.headers


def _decoded(raw: bytes) -> Any:
    """None for what is not JSON. The parser's error holds the whole text: it goes no further."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _retry_after(state: tenacity.RetryCallState) -> float:
    """The server's wish, at least half a second, at most `THROTTLE_CAP`; without one doubling."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None)
    if asked is None:
        asked = 0.5 * 2**state.attempt_number
    return min(max(float(asked), 0.5), THROTTLE_CAP)


def _no_json(_: Any) -> str:
    raise AssertionError("bodies are encoded with orjson before they reach the session")


def _entered(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    if session is None:
        raise RuntimeError("KubeClient is used outside of `async with`")
    return session
