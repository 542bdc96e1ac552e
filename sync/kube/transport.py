"""Sends requests to one API server and maps failures to `sync.kube.api_errors`.

- Concurrency is bounded by `sync.kube.request_limiter`, and by `MAX_CONNECTIONS`; there is no
  client-side rate limit.
- A throttled request (429, or 503 with ``Retry-After``) was rejected before the server did
  anything, so every method is retried, after the time in ``Retry-After`` (`delay`).
- After 401 the credential is read again, and the request is sent once more.
- After a failed connection the kubeconfig is read again if its files have changed. If it then names
  another address or CA, the transport first checks that the server belongs to the same cluster.
- Every request has a timeout, which includes the wait for the limiter. Watches and streams have no
  total timeout; TCP keepalive detects a dead peer (`sync.kube.sockets`).
- A response has at most `sync.kube.response_limits` bytes. Redirects are not followed.
- A transport behind a fence (`fenced`) raises `NotLeaderError` for writes while the fence is closed
  (`sync.kube.leader_write_fence`).
- Apart from these retries, no request that may have changed something is sent twice. If the server
  closes a connection just as a request is sent, aiohttp repeats a GET or DELETE once; a POST or
  PATCH raises `Unreachable`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import orjson
import tenacity
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from sync.base import clock, tracing
from sync.base.safe_callbacks import Callbacks
from sync.kube.api_errors import ApiError, Side, Throttled, Unauthorized, Unreachable, from_status
from sync.kube.api_resources import NAMESPACES, Object
from sync.kube.api_server import JoinedCluster, RequestMetrics, ServerClock, code_label
from sync.kube.connections import Dialer, map_connection_errors, new_session
from sync.kube.credentials import Credentials
from sync.kube.endpoint import Endpoint
from sync.kube.http2 import Http2Response
from sync.kube.leader_write_fence import Fence, FencedBody, not_leading
from sync.kube.request_limiter import RequestLimiter
from sync.kube.response_limits import (
    BODY_LIMIT,
    LargeBodyTurn,
    ResponseLimits,
    text_limit,
)
from translators.object_accessors import uid_of

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
Query = Mapping[str, str] | list[tuple[str, str]]


@dataclass(slots=True, repr=False)
class ApiRequest:
    """One request, which may be sent more than once. It has no repr: the body can be a Secret."""

    method: str
    path: str
    query: Query | None
    subject: str
    """Text for errors beside the path, such as the name of the object to create."""
    data: bytes | None
    content_type: str
    """The Content-Type of the body; "" without a body."""
    accept: str
    seconds: float
    """The timeout of one attempt."""
    limit: int = BODY_LIMIT
    """Bytes of the response, at most."""
    turn: LargeBodyTurn | None = None
    """Held from the time when the response becomes large; None: until it is read."""

    @property
    def what(self) -> str:
        """The request as errors name it: ``POST /api/v1/namespaces web``."""
        line = f"{self.method} {self.path}"
        return f"{line} {self.subject}" if self.subject else line


class RequestDefaults:
    """URL prefix and headers of all requests with one generation of the credentials."""

    __slots__ = ("_headers", "_prefix", "_server", "_tls", "generation")

    def __init__(self, credentials: Credentials, user_agent: str) -> None:
        self.generation = credentials.generation
        self._headers = [*credentials.credential.headers(), ("User-Agent", user_agent)]
        self._tls = credentials.tls
        self._server = URL(credentials.endpoint.server, encoded=True)
        self._prefix = self._server.raw_path.rstrip("/")

    def url(self, path: str, query: Query | None) -> URL:
        """The URL of a path that is already quoted, as `Resource.path` returns it."""
        url = self._server.with_path(self._prefix + path, encoded=True)
        return url.with_query(query) if query else url

    def options(
        self,
        accept: str = JSON,
        content_type: str = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for aiohttp; these ``headers`` replace or complete the others."""
        # gzip is the only encoding that API servers support.
        merged = CIMultiDict([*self._headers, ("Accept", accept), ("Accept-Encoding", "gzip")])
        if content_type:
            merged["Content-Type"] = content_type
        merged.update(headers or {})
        # No API server redirects; a login page does, and would turn a POST into a GET.
        options: dict[str, Any] = {"headers": merged, "allow_redirects": False}
        if self._tls is not None:
            options["ssl"] = self._tls  # a connection belongs to one context
        return options


#: An API server serves 400 reads and 200 writes at once by default (--max-requests-inflight,
#: --max-mutating-requests-inflight); this fair share of them saturates its CPUs.
MAX_CONNECTIONS = 64
#: Seconds for a request that is neither watch nor stream; API servers end a request after 60 s.
REQUEST_TIMEOUT = 30.0

#: Reusable: it has no state.
_NO_FENCE = nullcontext()

#: Exceptions of aiohttp for broken connections and responses; `map_connection_errors` maps each.
_CONNECTION_FAILURES = (aiohttp.ClientError, OSError, HttpProcessingError)


class Transport:
    """A connection pool to the API server of ``credentials``. Use as an async context manager.

    ``beside``: another transport to the same server, with which this one shares limits and metrics,
    and which confirms a changed endpoint: not every credential may read the cluster's UID.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str = "cluster-bridge",
        beside: Transport | None = None,
    ) -> None:
        self.credentials = credentials
        self.dialer = Dialer(credentials)
        """Opens connections to the server."""
        self._user_agent = user_agent
        self._defaults: RequestDefaults | None = None
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._unauthorized_handlers: Callbacks[[]] = Callbacks(f"{credentials.side}: unauthorized")
        self._unanswered_handlers: Callbacks[[]] = Callbacks(f"{credentials.side}: no response")
        self._fence: Fence | None = None
        self._beside = beside
        self.metrics: RequestMetrics = RequestMetrics() if beside is None else beside.metrics
        """Counters of the requests of this transport."""
        self.limiter: RequestLimiter = (
            RequestLimiter(most=MAX_CONNECTIONS) if beside is None else beside.limiter
        )
        """Limits the requests in flight, streams aside."""
        self.limits: ResponseLimits = (
            ResponseLimits(credentials.side) if beside is None else beside.limits
        )
        """Limits the size of responses."""
        self.server_clock: ServerClock = ServerClock() if beside is None else beside.server_clock
        self.joined_cluster: JoinedCluster = (
            JoinedCluster() if beside is None else beside.joined_cluster
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.side} {self.endpoint.server}>"

    @property
    def side(self) -> Side:
        return self.credentials.side

    @property
    def endpoint(self) -> Endpoint:
        """Where the server is now."""
        return self.credentials.endpoint

    async def __aenter__(self) -> Self:
        self._requests = new_session(self.dialer)
        # Watches and streams are long-lived: a request must not queue behind one.
        self._streams = new_session(self.dialer, rejects_redirects=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        requests, streams = self._requests, self._streams
        try:
            if requests is not None:
                await requests.close()
        finally:  # A second cancellation may interrupt the first close.
            if streams is not None:
                await streams.close()

    def fenced(self, fence: Fence) -> Self:
        """A copy of this transport whose writes pass ``fence``; it shares connections, limiter and
        metrics. Usable while this transport is entered."""
        other = copy.copy(self)
        other._fence = fence
        return other

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
        retry_on_throttle: bool = True,
        turn: LargeBodyTurn | None = None,
        accept: str = JSON,
    ) -> Object:
        """Sends a request with the retries of the module docstring; returns the decoded response.

        ``timeout`` is per attempt, in seconds. ``subject`` appears in errors beside the path.
        Without ``decode`` the result is {}. Without ``retry_on_throttle`` the first `Throttled` is
        raised. A large response takes ``turn``, which the caller releases when it no longer needs
        the result.
        """
        data = None if body is None else orjson.dumps(body)
        kind = "" if body is None else content_type
        held = turn or self.limits.turn()
        request = ApiRequest(
            method, path, query, subject, data, kind, accept, timeout, limit=BODY_LIMIT, turn=held
        )
        try:
            raw = await self._send_retried(request, retry=retry_on_throttle)
            if decode:
                decoded = self.limits.decode(raw, request.what, reason=held.reason)
                if isinstance(decoded, dict):
                    return decoded
            elif raw.startswith(b"{"):
                return {}
        finally:
            if turn is None:
                held.release()
        raise Unreachable(
            "the response is not a JSON object; check that the address is an API server's and not "
            "a proxy's",
            side=self.side,
            what=request.what,
        )

    async def _send_retried(self, request: ApiRequest, *, retry: bool) -> bytes:
        # The first attempt does without tenacity, which takes 60 microseconds for a call: a tenth
        # of the CPU time of a pod.
        try:
            return await self._send_authorized(request)
        except Throttled as first:
            if not retry:
                raise
            await asyncio.sleep(delay(first, 1))
        return await _throttle_retries()(self._send_authorized, request)

    async def read(
        self,
        path: str,
        *,
        query: Query | None = None,
        timeout: float,
        limit: int | None = None,
        turn: LargeBodyTurn | None = None,
    ) -> bytes:
        """Returns the body of a GET of any content type, of at most ``limit`` bytes (default
        `text_limit`). Raises as `request` does, but does not retry throttled requests. A large
        response takes ``turn``."""
        request = ApiRequest(
            "GET",
            path,
            query,
            "",
            None,
            "",
            "*/*",
            timeout,
            # The response may come from behind the API server, such as from a kubelet.
            limit=text_limit() if limit is None else limit,
            turn=turn,
        )
        return await self._send_authorized(request)

    def on_unauthorized(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Calls ``handler`` whenever the server answers 401 although the credential was read again,
        until the returned function is called."""
        return self._unauthorized_handlers.add(handler)

    def on_unanswered(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Calls ``handler`` whenever the server has not begun to respond to a request in time,
        streams aside, until the returned function is called."""
        return self._unanswered_handlers.add(handler)

    async def _send_authorized(self, request: ApiRequest) -> bytes:
        """Sends the request, and once more after a 401 that led to another credential."""
        seen = self.credentials.generation
        try:
            return await self._send_confirmed(request)
        except Unauthorized:
            if not await self.credentials.renew(seen):
                self._unauthorized_handlers()
                raise
        try:
            return await self._send_confirmed(request)
        except Unauthorized:
            self._unauthorized_handlers()
            raise

    def expect_cluster(self, uid: str, *, namespace: str) -> None:
        """From now on, requires the cluster in which this namespace has this UID: a kubeconfig that
        changes while the bridge runs must not lead it to another one."""
        self.joined_cluster.expect(uid, namespace=namespace, endpoint=self.endpoint)

    async def confirm_cluster(self) -> None:
        """Checks, if address or CA changed, that the cluster is still the one that was joined.
        Raises ClientConfigError if it is not, and the errors of `request`."""
        joined, endpoint = self.joined_cluster, self.endpoint
        if joined.is_confirmed(endpoint):
            return
        if self._beside is not None:
            await self._beside.confirm_cluster()
            return
        async with joined.confirming:
            endpoint = self.endpoint
            if joined.is_confirmed(endpoint):
                return
            path = NAMESPACES.path(joined.namespace)
            request = ApiRequest("GET", path, None, "", None, "", JSON, REQUEST_TIMEOUT)
            found = self.limits.decode(await self._attempt(request), request.what)
            uid = uid_of(found) if isinstance(found, dict) else ""
            if not joined.confirm(uid, endpoint):
                self.credentials.recheck_files()
                raise self.credentials.error(
                    f"it leads to another cluster now: {joined.namespace} has the UID {uid}, and "
                    f"had {joined.uid}; name the previous cluster in it again, or restart the "
                    "bridge to join the other one"
                )

    async def _send_confirmed(self, request: ApiRequest) -> bytes:
        """Sends the request once, in a span if tracing is on, after the cluster was checked."""
        await self.confirm_cluster()
        if (tracer := tracing.get_tracer()) is None:
            return await self._attempt(request)
        with tracer.request(self.side, self.endpoint.host, request.method, request.path):
            return await self._attempt(request)

    async def _attempt(self, request: ApiRequest) -> bytes:
        """Sends the request once. Every attempt of every request except streams passes here."""
        defaults = self._request_defaults()
        method = request.method
        fence = self._fence if method != "GET" else None
        code, is_waiting = "none", False
        started = clock.now()
        try:
            async with asyncio.timeout(request.seconds) as timeout:
                flow = await self.limiter.enter()
                response, sent = None, clock.now()
                turn = request.turn or self.limits.turn()
                try:
                    body: bytes | FencedBody | None = request.data
                    if fence is not None:
                        fence.check(self.side, request.what)
                        body = FencedBody(request.data or b"", fence)
                    with _NO_FENCE if fence is None else fence.guard(timeout):
                        is_waiting = True
                        response = await open_session(self._requests).request(
                            method,
                            defaults.url(request.path, request.query),
                            data=body,
                            **defaults.options(request.accept, request.content_type),
                        )
                        is_waiting = False
                        raw = await self._read(response, request, turn)
                finally:
                    throttled = response is not None and is_throttled(
                        response.status, response.headers
                    )
                    self.limiter.leave(flow, sent=sent, throttled=throttled)
                    if request.turn is None:
                        turn.release()
            code = code_label(response.status)
            self.server_clock.update(response.headers.get("Date"))
        except _CONNECTION_FAILURES as error:
            if fence is not None and not fence.is_open:
                raise not_leading(self.side, request.what) from error
            if is_waiting and isinstance(error, TimeoutError):
                self._unanswered_handlers()
            with self.connection_errors(request.what):
                raise
        finally:
            self.metrics.durations[method, code].observe(clock.now() - started)
        if response.status >= 300:
            raise self._failure(response, raw, request.what)
        return raw

    async def _read(
        self, response: aiohttp.ClientResponse, request: ApiRequest, turn: LargeBodyTurn
    ) -> bytes:
        if response.status >= 300:
            return await self.limits.read_failure(response, request.what)
        return await self.limits.read(response, what=request.what, limit=request.limit, turn=turn)

    def _request_defaults(self) -> RequestDefaults:
        self.credentials.reload_token()
        defaults = self._defaults
        if defaults is None or defaults.generation != self.credentials.generation:
            defaults = self._defaults = RequestDefaults(self.credentials, self._user_agent)
        return defaults

    def _failure(
        self, response: aiohttp.ClientResponse | Http2Response, raw: bytes, what: str
    ) -> ApiError:
        return from_status(
            self.limits.decode(raw, what),
            code=response.status,
            side=self.side,
            what=what,
            retry_after=retry_after(response.headers),
        )

    def connection_errors(self, what: str) -> AbstractContextManager[None]:
        """Maps failures of the block's connection (`map_connection_errors`)."""
        server, on_failure = self.endpoint.server, self.credentials.recheck_files
        return map_connection_errors(self.side, what, server, on_failure)


def open_session(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    """The session of a transport that is entered. Raises RuntimeError otherwise."""
    if session is None:
        raise RuntimeError("a Transport is used outside of `async with`")
    return session


# -- throttling ----------------------------------------------------------------------------------


#: Attempts in all, the first one included (client-go: 10 retries); then `Throttled` is raised.
MAX_ATTEMPTS = 10
#: Bounds of a wait, in seconds.
MIN_DELAY, MAX_DELAY = 0.5, 30.0
#: Seconds of a ``Retry-After`` that is passed on to a caller; a number of 400 digits is infinite.
MAX_RETRY_AFTER = 86_400.0


def _throttle_retries() -> tenacity.AsyncRetrying:
    """Repeats a request after its first attempt, which was throttled. Raises Throttled after
    `MAX_ATTEMPTS`, and any other exception immediately."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Throttled),
        wait=_delay_after_retry,
        stop=tenacity.stop_after_attempt(MAX_ATTEMPTS - 1),
        sleep=asyncio.sleep,
        reraise=True,
    )


def _delay_after_retry(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, Throttled)  # noqa: S101  # nothing else is retried
    return delay(error, state.attempt_number + 1)  # the first attempt was the caller's


def delay(error: Throttled, number: int) -> float:
    """Seconds to wait after attempt ``number``, counted from 1. Without ``Retry-After`` each wait
    is twice as long as the one before, from one second."""
    wanted = 0.5 * 2**number if error.retry_after is None else error.retry_after
    return min(max(wanted, MIN_DELAY), MAX_DELAY)


def is_throttled(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a response with this status code asks to retry later."""
    return status == 429 or (status == 503 and "Retry-After" in headers)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds in ``Retry-After``, a day at most; None without the header, and for a date."""
    value = headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isdecimal() else None
