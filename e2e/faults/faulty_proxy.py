"""A TLS proxy between a bridge and an API server, which injects wrong responses by rules.

It runs in its own thread and listens at an address of this machine; `kubeconfig` leads to it. It
authenticates at the API server with the cluster's own kubeconfig, whatever the client sent, so it
is for tests only. Of the upgrades it supports WebSockets (`kubectl exec`), and not SPDY; no rule
applies to them.

The first of the `rules` that matches and whose chance occurs applies to a request, or to a line of
a watch. Rules may be replaced at any time, and also apply to open watches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from e2e.clusters.certificates import Authority

#: Hop-by-hop headers, and those that each sender computes.
_OWN_HEADERS = {
    *("authorization", "connection", "content-length", "host", "keep-alive"),
    *("transfer-encoding", "upgrade"),
}
#: Seconds for written data to leave before its connection is cut.
_FLUSH = 0.05


class Harm(StrEnum):
    """Kinds of faults. The first six apply to requests, the others to lines of watches."""

    ANSWER = "answer"
    """The proxy answers with `Rule.code`, without a request to the API server."""
    DELAY = "delay"
    """The request reaches the API server late, and not at all if the client has disconnected."""
    HOLD = "hold"
    """The API server processes the request; the response is late."""
    REFUSE = "refuse"
    """The connection is cut before the request reaches the API server."""
    LOSE = "lose"
    """The API server processes the request; the connection is cut before the response."""
    TRUNCATE = "truncate"
    """The connection is cut in the middle of the response."""
    CUT = "cut"
    """The connection is cut in the middle of a line."""
    END = "end"
    """The watch ends in order, in the middle of a line."""
    GARBLE = "garble"
    """The line is replaced by garbage."""
    GONE = "gone"
    """The watch ends with 410: its resource version is too old."""
    STALL = "stall"
    """The line and all that follow are late."""


_OF_WATCHES = {Harm.CUT, Harm.END, Harm.GARBLE, Harm.GONE, Harm.STALL}
_REASONS = {
    401: "Unauthorized",
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
#: Lines that are not events.
_GARBAGE = (
    b"\x00\xff\xfe\n",
    b"[]\n",
    b"null\n",
    b'{"type":"ADDED"}\n',
    b'{"type":"MODIFIED","object":[]}\n',
    b'{"type":"NEWS","object":{"kind":"Pod","metadata":{}}}\n',
    b"<html>502 Bad Gateway</html>\n",
)


_WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault."""

    harm: Harm
    chance: float = 0.2
    methods: frozenset[str] = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
    code: int = 500
    retry_after: int | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum delay."""
    path: str = ""
    """A regular expression that the path of the request must contain."""


class Proxy:
    """A proxy for the API server of ``kubeconfig``. Use as a context manager."""

    def __init__(self, kubeconfig: Path, folder: Path, *, address: str, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._address = address
        self._random = random.Random(seed)
        self._config = yaml.safe_load(kubeconfig.read_text())
        self._cluster = self._config["clusters"][0]["cluster"]
        self._upstream = URL(self._cluster["server"])
        self._ready: Future[int] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"proxy-{folder.name}")
        self._session: aiohttp.ClientSession | None = None
        self._server: web.Server | None = None
        self._rotations = 0
        self.rules: tuple[Rule, ...] = ()
        self.hits = 0
        """Number of faults so far."""
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Proxy:
        self._serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority = self._new_authority()
        self._thread.start()
        self._port = self._ready.result(timeout=10)
        self.publish()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Cuts all connections and stops the proxy. A second call has no effect."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=10)

    def rotate(self) -> None:
        """Replaces the serving certificate by one of a new CA, and cuts all connections. The
        kubeconfig has the previous CA until `publish`."""
        self._authority = self._new_authority()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut_all)

    def publish(self) -> None:
        """Writes the kubeconfig with the current CA, unless it has it."""
        authority = self._authority.files.certificate.read_bytes()
        text = self._kubeconfig(authority, self._port)
        if not self.kubeconfig.exists() or self.kubeconfig.read_text() != text:
            self.kubeconfig.write_text(text)

    def _new_authority(self) -> Authority:
        """Creates a CA, and a certificate that new connections are shown."""
        self._rotations += 1
        name = f"proxy-ca-{self._rotations}"
        authority = Authority.create(self._folder, name, name)
        own = authority.issue(f"proxy-{self._rotations}", "proxy", hosts=[self._address])
        self._serving.load_cert_chain(own.certificate, own.key)
        return authority

    def _cut_all(self) -> None:
        for connection in self._server.connections if self._server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    def _kubeconfig(self, authority: bytes, port: int) -> str:
        """The cluster's kubeconfig with the proxy's address; it also trusts the cluster's CA."""
        cluster_ca = base64.b64decode(self._cluster["certificate-authority-data"])
        cluster = {
            "server": f"https://{self._address}:{port}",
            "certificate-authority-data": base64.b64encode(cluster_ca + authority).decode(),
        }
        [first, *_] = self._config["clusters"]
        config = {**self._config, "clusters": [{**first, "cluster": cluster}]}
        return yaml.safe_dump(config, sort_keys=False)

    # -- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust())
        # Compressed responses are passed on unchanged.
        async with aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        ) as self._session:
            server = web.Server(self._handle, handler_cancellation=True, access_log=None)
            self._server = server
            listener = await self._loop.create_server(
                server, self._address, 0, ssl=self._serving, reuse_address=True
            )
            self._ready.set_result(listener.sockets[0].getsockname()[1])
            await self._stop.wait()
            listener.close()
            self._cut_all()
            await server.shutdown(0)
        # aiohttp needs a moment to finish closed TLS connections.
        await asyncio.sleep(_FLUSH)

    def _trust(self) -> ssl.SSLContext:
        """The CA and the client certificate of the cluster's kubeconfig."""
        user = self._config["users"][0]["user"]
        cluster_ca = base64.b64decode(self._cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=cluster_ca)
        pair = self._folder / "upstream.pem"
        pair.touch(mode=0o600)
        parts = (user["client-certificate-data"], user["client-key-data"])
        pair.write_bytes(b"".join(map(base64.b64decode, parts)))
        context.load_cert_chain(pair)
        return context

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._pass_websocket(request)
        body = await request.read() if request.can_read_body else None
        watch = request.query.get("watch") in ("1", "true")
        rule = None if watch else self._draw_rule(request.method, request.path, of_watches=False)
        if rule is not None and rule.harm is Harm.DELAY:
            await asyncio.sleep(self._random.uniform(*rule.seconds))
        if rule is not None and rule.harm is Harm.ANSWER:
            return _status(rule)
        if rule is not None and rule.harm is Harm.REFUSE:
            return _cut(request)
        try:
            async with self._forwarded(request, body) as answer:
                if watch and answer.status == 200:
                    return await self._relay(request, answer)
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return _cut(request)  # like an unreachable API server
        if rule is not None and rule.harm is Harm.HOLD:
            await asyncio.sleep(self._random.uniform(*rule.seconds))
        if rule is not None and rule.harm is Harm.LOSE:
            return _cut(request)
        if rule is not None and rule.harm is Harm.TRUNCATE and len(content) > 1:
            response = _like(answer)
            response.content_length = len(content)
            await response.prepare(request)
            await response.write(content[: self._random.randrange(1, len(content))])
            await asyncio.sleep(_FLUSH)
            return _cut(request)
        return web.Response(status=answer.status, headers=_headers(answer.headers), body=content)

    async def _pass_websocket(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._session is not None
        protocols = [it.strip() for it in request.headers["Sec-WebSocket-Protocol"].split(",")]
        try:
            async with self._session.ws_connect(
                self._url(request), protocols=protocols, max_msg_size=0
            ) as there:
                here = web.WebSocketResponse(protocols=protocols, max_msg_size=0)
                await here.prepare(request)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(here, there))
                    group.create_task(_pump(there, here))
                return here
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status)
        except (aiohttp.ClientError, TimeoutError):
            return _cut(request)

    def _url(self, request: web.BaseRequest) -> URL:
        return URL(f"{self._upstream}".rstrip("/") + request.raw_path, encoded=True)

    @asynccontextmanager
    async def _forwarded(
        self, request: web.BaseRequest, body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        async with self._session.request(
            request.method,
            self._url(request),
            data=body,
            headers=_headers(request.headers),
            allow_redirects=False,
        ) as answer:
            yield answer

    async def _relay(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Forwards a watch line by line."""
        response = _like(answer)
        await response.prepare(request)
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                rule = self._draw_rule("GET", request.path, of_watches=True)
                if rule is None:
                    await response.write(line + b"\n")
                elif not await self._spoil(request, response, line + b"\n", rule):
                    return response
        await response.write_eof()
        return response

    async def _spoil(
        self, request: web.BaseRequest, response: web.StreamResponse, line: bytes, rule: Rule
    ) -> bool:
        """Applies the rule to a line; whether the watch continues."""
        part = line[: self._random.randrange(len(line))]
        match rule.harm:
            case Harm.CUT:
                await response.write(part)
                await asyncio.sleep(_FLUSH)
                _cut(request)
            case Harm.END:
                await response.write(part)
                await response.write_eof()
            case Harm.GARBLE:
                await response.write(self._random.choice((*_GARBAGE, part + b"\n")))
                return True
            case Harm.GONE:
                event = {"type": "ERROR", "object": _status_of(410, "Expired")}
                await response.write(json.dumps(event).encode() + b"\n")
                await response.write_eof()
            case _:
                await asyncio.sleep(self._random.uniform(*rule.seconds))
                await response.write(line)
                return True
        return False

    def _draw_rule(self, method: str, path: str, *, of_watches: bool) -> Rule | None:
        for rule in self.rules:
            meant = (rule.harm in _OF_WATCHES) is of_watches and method in rule.methods
            if meant and re.search(rule.path, path) and self._random.random() < rule.chance:
                self.hits += 1
                return rule
        return None


async def _pump(source: _WebSocket, sink: _WebSocket) -> None:
    """Passes messages on until the source closes, and then closes the sink."""
    with contextlib.suppress(ConnectionError):
        async for message in source:
            if message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)
    await sink.close()


def _headers(headers: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in headers.items() if key.lower() not in _OWN_HEADERS]


def _like(answer: aiohttp.ClientResponse) -> web.StreamResponse:
    return web.StreamResponse(status=answer.status, headers=dict(_headers(answer.headers)))


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)  # the connection is cut; no client reads it


def _status(rule: Rule) -> web.Response:
    body = _status_of(rule.code, _REASONS[rule.code])
    headers = {} if rule.retry_after is None else {"Retry-After": str(rule.retry_after)}
    return web.json_response(body, status=rule.code, headers=headers)


def _status_of(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"the proxy is configured to answer {code}",
        "reason": reason,
        "code": code,
    }
