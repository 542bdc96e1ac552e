"""The parts of a request that `sync.kube.transport` sends: `ApiRequest`, `RequestDefaults` and the
aiohttp session, whose connections are those of `sync.kube.raw_connection`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from multidict import CIMultiDict
from yarl import URL

from sync.kube.credentials import Credentials
from sync.kube.raw_connection import CONNECT_TIMEOUT, Dialer
from sync.kube.response_limits import BODY_LIMIT, LargeBodyTurn
from sync.kube.sockets import request_socket

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
Query = Mapping[str, str] | list[tuple[str, str]]

#: Seconds that an idle connection is kept. API servers close it after 90 s (IdleTimeout in
#: k8s.io/apiserver's secure_serving.go); a request that is sent at that moment fails.
KEEP_IDLE = 30.0
#: Bytes of a body after which a connection is read no further, until they are used; a read has at
#: most `sync.kube.socket_reader.READ_SIZE`. aiohttp doubles the number.
READ_AHEAD = 2**14
#: Responses with a status of 1xx before a response: API servers send none.
MAX_INTERIM = 100


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
    times_server: bool = True
    """Whether the response time is the API server's own, so that the limiter learns from it."""
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
    """URL prefix, headers and options of all requests with one generation of the credentials."""

    __slots__ = ("_headers", "_options", "_prefix", "_server", "_tls", "generation")

    def __init__(self, credentials: Credentials, user_agent: str) -> None:
        self.generation = credentials.generation
        self._headers = [*credentials.credential.headers(), ("User-Agent", user_agent)]
        self._tls = credentials.tls
        self._server = URL(credentials.endpoint.server, encoded=True)
        self._prefix = self._server.raw_path.rstrip("/")
        self._options: dict[tuple[str, str], dict[str, Any]] = {}

    def url(self, path: str, query: Query | None) -> URL:
        """The URL of a path that is already quoted, as `Resource.path` returns it."""
        url = self._server.with_path(self._prefix + path, encoded=True)
        return url.with_query(query) if query else url

    def options(self, accept: str = JSON, content_type: str = "") -> dict[str, Any]:
        """Keyword arguments for aiohttp, shared by requests: callers must not change them."""
        key = accept, content_type
        options = self._options.get(key)
        if options is None:
            options = self._options[key] = self._build_options(accept, content_type)
        return options

    def _build_options(self, accept: str, content_type: str) -> dict[str, Any]:
        headers = CIMultiDict([*self._headers, ("Accept", accept)])
        # The only encoding that API servers support.
        headers["Accept-Encoding"] = "gzip"
        if content_type:
            headers["Content-Type"] = content_type
        # No API server redirects; a login page does, and would turn a POST into a GET.
        options: dict[str, Any] = {"headers": headers, "allow_redirects": False}
        if self._tls is not None:
            options["ssl"] = self._tls  # a connection belongs to one context
        return options


def new_session(dialer: Dialer, *, rejects_redirects: bool = False) -> aiohttp.ClientSession:
    """A connection pool without a limit of its own, without cookies. ``rejects_redirects``: those
    of WebSockets too, for which aiohttp has no option."""
    return aiohttp.ClientSession(
        connector=ApiConnector(dialer),
        read_bufsize=READ_AHEAD,
        # `Transport` bounds the rest of a request; aiohttp's own total timeout costs more.
        timeout=aiohttp.ClientTimeout(total=None),
        # Cookies of a load balancer would pin all requests to one API server.
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[_without_redirects()] if rejects_redirects else None,
    )


def _without_redirects() -> aiohttp.TraceConfig:
    """Fails a WebSocket handshake that is redirected: it would send the command to whatever address
    the server names."""

    async def reject(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        response = redirect.response
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, (), status=response.status, message="redirected"
        )

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(reject)
    return config


class ApiConnector(aiohttp.BaseConnector):
    """The connection pool of ``dialer``, without a limit of its own.

    aiohttp's own connector would leave TLS to the event loop, which replies to a hostile server's
    requests for new keys without a limit, and would parse any number of interim responses in one
    turn.
    """

    def __init__(self, dialer: Dialer) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_IDLE)
        self._dialer = dialer

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: Any,  # noqa: ARG002  # aiohttp's signature
        timeout: aiohttp.ClientTimeout,  # noqa: ARG002
    ) -> ResponseHandler:
        key = req.connection_key
        context = key.ssl if isinstance(key.ssl, ssl.SSLContext) else None
        try:
            self._dialer.check_address(key.host, key.port)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._dialer.connect(context, make_socket=request_socket)
        except ssl.SSLCertVerificationError as error:
            raise aiohttp.ClientConnectorCertificateError(key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(key, error) from error
        except TimeoutError:
            raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(key, error) from error
        protocol = _ResponseHandler(self._loop)
        connection.hand_over(protocol)
        return protocol


class _ResponseHandler(ResponseHandler):
    """aiohttp's client protocol, for servers that are not trusted."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self._buffer) > MAX_INTERIM and self.transport is not None:
            self.transport.abort()
