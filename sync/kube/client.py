"""Requests to one API server: plain dicts in and out, errors of one hierarchy.

Guarantees:

- An object comes out as it came over the wire; no field is dropped, no timestamp rewritten.
- Bounded concurrency (`MAX_CONNECTIONS`), no client-side rate limit. The server's own flow
  control is honoured: after 429, or 503 with ``Retry-After``, the request is tried again, up to
  `THROTTLE_ATTEMPTS` times; then `Throttled` is raised and the caller's queue backs off.
- After 401 the credential is read again and the request is tried once more.
- Every request has a limit of time. Watches and streams have none in total; a peer that is gone
  without a word is noticed by TCP (`sync.kube.sockets`), not by asking.
- Nothing else is retried here: only the caller knows whether it still wants the same thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
import tenacity
from yarl import URL

from sync.kube.access import Access
from sync.kube.errors import (
    ApiError,
    Side,
    Throttled,
    Unauthorized,
    Unreachable,
    from_status,
)
from sync.kube.resources import Object, Resource
from sync.kube.sockets import TransportErrors, watched_socket
from sync.measures import Requests

#: An API server lets 400 reads and 200 writes run at once by default (--max-requests-inflight,
#: --max-mutating-requests-inflight); a fair part of that saturates its CPUs.
MAX_CONNECTIONS = 64
#: As client-go: ten tries where the server says to wait, then the caller is told.
THROTTLE_ATTEMPTS = 10
#: Never sleep longer on a server's word than this, in seconds.
THROTTLE_CAP = 30.0
#: Seconds for a request that is neither watch nor stream; API servers end one after 60 s.
REQUEST_TIMEOUT = 30.0
#: Seconds to open a connection, TLS included.
CONNECT_TIMEOUT = 10.0
#: Seconds for a server to say goodbye on a WebSocket that is closed from here.
GOODBYE = aiohttp.ClientWSTimeout(ws_close=1.0)

PatchKind = Literal["merge", "strategic"]
_PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
Query = Mapping[str, str] | list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """A list of objects and the resource version that it is the state of."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, ready to be sent more than once. The body is not in its repr."""

    method: str
    url: URL
    data: bytes | None = field(repr=False)
    headers: dict[str, str]
    what: str
    limits: aiohttp.ClientTimeout


class KubeClient:
    """A client of the API server behind ``access``. Use as an async context manager."""

    def __init__(self, access: Access, *, user_agent: str = "cluster-bridge") -> None:
        self.access = access
        self._user_agent = user_agent
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._refused_handlers: list[Callable[[], None]] = []
        self.measures = Requests()
        """What was asked through this client, in numbers."""

    def __repr__(self) -> str:
        return f"<KubeClient {self.side} {self.access.server}>"

    @property
    def side(self) -> Side:
        """Which cluster this is a client of, for messages."""
        return self.access.side

    async def __aenter__(self) -> KubeClient:
        self._requests = self._session(limit=MAX_CONNECTIONS, total=REQUEST_TIMEOUT)
        # Watches and streams last: they must not take a request's place in the pool.
        self._streams = self._session(limit=0, total=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()

    # -- objects ---------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """The object. Raises NotFound and the other errors of `sync.kube.errors`."""
        return await self.request("GET", resource.path(name, namespace=namespace))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> tuple[Page, str]:
        """One page and the ``continue`` token of the next ("" at the end).

        Items of a list carry no kind; ours get theirs, as every other object has one.
        """
        body = await self.request("GET", resource.path(namespace=namespace), query=query or {})
        meta = body.get("metadata") or {}
        items: list[Object] = body.get("items") or []
        for item in items:
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        page = Page(items=items, resource_version=str(meta.get("resourceVersion") or ""))
        return page, str(meta.get("continue") or "")

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        page_size: int = 500,
        slim: Callable[[Object], Object] | None = None,
    ) -> Page:
        """All objects that match, read in pages. The state is that of the first page.

        ``slim`` is what is kept of each, so that a long list is never whole in memory.
        """
        query = {"limit": str(page_size), "labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in query.items() if value}
        items: list[Object] = []
        while True:
            page, token = await self.list_page(resource, namespace=namespace, query=query)
            items += page.items if slim is None else map(slim, page.items)
            if not token:
                return Page(items=items, resource_version=page.resource_version)
            query["continue"] = token

    async def create(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Creates the object. Raises AlreadyExists where one of that name is there. ``dry_run``:
        the server checks and admits it as ever, and does not keep it."""
        name = (body.get("metadata") or {}).get("name", "")
        return await self.request(
            "POST",
            resource.path(namespace=namespace),
            query={"dryRun": "All"} if dry_run else None,
            body=body,
            subject=name,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        kind: PatchKind = "merge",
    ) -> Object:
        """Changes what the patch names. With ``metadata.uid`` in it, the server refuses
        (Conflict) to change an object that has since taken the name."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self.request("PATCH", path, body=patch, content_type=_PATCH_TYPES[kind])

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Deletes the object with this UID, and no other that has since taken its name; with
        ``resource_version`` only while nobody has changed it since then.

        Already gone, or another by now: nothing to do, no error. A watch tells which.
        """
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if resource_version is not None:
            options["preconditions"]["resourceVersion"] = resource_version
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path = resource.path(name, namespace=namespace)
        try:
            await self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    # -- requests --------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        subject: str = "",
        timeout: float = REQUEST_TIMEOUT,
    ) -> Object:
        """One request with the retries that the module names; the decoded answer."""
        call = _Call(
            method=method,
            url=self._url(path, query),
            data=orjson.dumps(body) if body is not None else None,
            headers={"Content-Type": content_type} if body is not None else {},
            what=f"{method} {path}" + (f" {subject}" if subject else ""),
            limits=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT),
        )
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Throttled),
            wait=_retry_after,
            stop=tenacity.stop_after_attempt(THROTTLE_ATTEMPTS),
            reraise=True,
        )
        decoded = _decoded(await retrying(self._authorized, call))
        if not isinstance(decoded, dict):
            raise Unreachable(
                "the answer is not a JSON object; is this an API server, or a proxy before it?",
                side=self.side,
                what=call.what,
            )
        return decoded

    async def read(self, path: str, *, query: Query | None = None, timeout: float) -> bytes:
        """The body of a GET as it is, whatever its type. Raises as `request` does; is not tried
        again when the server asks to wait."""
        call = _Call(
            method="GET",
            url=self._url(path, query),
            data=None,
            headers={"Accept": "*/*"},
            what=f"GET {path}",
            limits=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT),
        )
        return await self._authorized(call)

    def on_refused(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` each time that the server does not accept the credential (401) for a
        request, though it was read again."""
        self._refused_handlers.append(handler)

    async def _authorized(self, call: _Call) -> bytes:
        try:
            return await self._renewed(call)
        except Unauthorized:
            for handler in self._refused_handlers:
                handler()
            raise

    async def _renewed(self, call: _Call) -> bytes:
        seen = self.access.generation
        try:
            return await self._once(call)
        except Unauthorized:
            if not await self.access.renew(seen):
                raise
        return await self._once(call)

    async def _once(self, call: _Call) -> bytes:
        code = "none"
        try:
            with self.measures.seconds[call.method].timed(), self._transport_errors(call.what):
                async with _entered(self._requests).request(
                    call.method,
                    call.url,
                    data=call.data,
                    timeout=call.limits,
                    **self._how(call.headers),
                ) as response:
                    raw = await response.read()
                    code = str(response.status)
                    if response.status >= 300:
                        raise self._failure(response, raw, call.what)
        finally:
            self.measures.answered[call.method, code] += 1
        return raw

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, idle: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is read as it comes (a watch, a log).

        ``idle`` is how many seconds of silence mean that the peer is gone. Raises as `request`
        does where the answer is a failure; an error while reading is the caller's to map with
        `reading`.
        """
        what = f"GET {path}"
        for last in (False, True):
            seen = self.access.generation
            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=idle)
            with self._transport_errors(what):
                response = await _entered(self._streams).get(
                    self._url(path, query), timeout=limits, **self._how({})
                )
            self.measures.answered["STREAM", str(response.status)] += 1
            try:
                if response.status < 300:
                    yield response
                    return
                with self._transport_errors(what):
                    failure = self._failure(response, await response.read(), what)
            finally:
                response.close()
            retry = isinstance(failure, Unauthorized) and not last
            if not retry or not await self.access.renew(seen):
                raise failure

    @asynccontextmanager
    async def websocket(
        self, path: str, *, query: Query, protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        """A WebSocket of this subprotocol, closed with the context. Raises as `stream` does; of an
        answer that is no WebSocket only the code is known."""
        seen = self.access.generation
        try:
            socket = await self._websocket(path, query, protocol)
        except Unauthorized:
            if not await self.access.renew(seen):
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
        how = self._how({"Accept": "*/*"})  # there is no JSON of it: 406
        del how["allow_redirects"]
        with self._transport_errors(what):
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    socket: aiohttp.ClientWebSocketResponse[bool] = await _entered(
                        self._streams
                    ).ws_connect(
                        self._url(path, query), protocols=(protocol,), timeout=GOODBYE, **how
                    )
            except aiohttp.WSServerHandshakeError as error:
                # Not as its cause: its repr holds the request's headers, with the credential.
                raise from_status(None, code=error.status, side=self.side, what=what) from None
        return socket

    def reading(self, path: str) -> TransportErrors:
        """A context in which errors of a connection become `Unreachable`."""
        return self._transport_errors(f"GET {path}")

    # -- how -------------------------------------------------------------------------------

    def _url(self, path: str, query: Query | None) -> URL:
        # Paths come quoted from `Resource.path`; quoting twice would name other objects.
        url = URL(self.access.server + path, encoded=True)
        return url.with_query(query) if query else url

    def _how(self, headers: dict[str, str]) -> dict[str, Any]:
        access = self.access
        # No API server redirects; what does is a login page, and it would turn a POST into a GET.
        how: dict[str, Any] = {
            "headers": {**headers, **access.authorization()},
            "allow_redirects": False,
        }
        if access.ssl is not None:
            how["ssl"] = access.ssl
        if access.server_hostname:
            how["server_hostname"] = access.server_hostname
        if access.proxy:
            how["proxy"] = access.proxy
        return how

    def _session(self, *, limit: int, total: float | None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, socket_factory=watched_socket),
            timeout=aiohttp.ClientTimeout(total=total),
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            json_serialize=_no_json,
            # Cookies of a load balancer would pin all requests to one API server.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _failure(self, response: aiohttp.ClientResponse, raw: bytes, what: str) -> ApiError:
        after = response.headers.get("Retry-After", "")
        return from_status(
            _decoded(raw),
            code=response.status,
            side=self.side,
            what=what,
            retry_after=float(after) if after.isdecimal() else None,
        )

    def _transport_errors(self, what: str) -> TransportErrors:
        return TransportErrors(self.side, what, self.access.server)


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
