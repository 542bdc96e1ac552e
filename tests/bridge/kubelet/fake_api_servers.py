"""Two small API servers: a home that answers reviews, and a remote whose upgrades a test scripts.

They speak just enough HTTP, on real sockets, and record all requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from bridge.kubelet.pod_lookup import RemotePod, ScheduledPod
from sync.kube.api_errors import Side
from sync.kube.api_resources import Object
from sync.kube.credentials import Credentials
from tests.fakeapi.credentials import StaticCredentials
from tests.virtual_time_loop import poll

#: The request target of an exec with all streams and without a terminal.
EXEC = "/exec/default/web/app?command=sh&command=-c&command=a%20b%26c&input=1&output=1&error=1"


def access_for(server: str, side: Side, context: ssl.SSLContext | None = None) -> Credentials:
    """A client configuration without a kubeconfig."""
    return StaticCredentials(server, side, token=f"{side}-credential", context=context)


class FakeHome:
    """Answers TokenReviews from ``tokens`` and SubjectAccessReviews from ``denied``."""

    def __init__(self) -> None:
        self.tokens = {"good": "alice", "metrics": "system:serviceaccount:kube-system:metrics"}
        self.denied: set[tuple[str, str, str]] = set()
        """User, verb and subresource of denied accesses."""
        self.failing: set[str] = set()
        """Kinds of review that get 500."""
        self.delay = 0.0
        self.held: dict[str, asyncio.Event] = {}
        """Kinds of review that are answered once their event is set."""
        self.token_reviews: list[Object] = []
        self.access_reviews: list[Object] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._token)
        app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._access)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _token(self, request: web.Request) -> web.Response:
        spec = (await self._record_review(request, "TokenReview", self.token_reviews))["spec"]
        name = self.tokens.get(spec["token"])
        user = {"username": name, "groups": ["people"], "uid": "7", "extra": {"x": ["1", "2"]}}
        status = {"authenticated": True, "user": user} if name else {"authenticated": False}
        return web.json_response({"kind": "TokenReview", "status": status})

    async def _access(self, request: web.Request) -> web.Response:
        spec = (await self._record_review(request, "SubjectAccessReview", self.access_reviews))[
            "spec"
        ]
        attributes = spec["resourceAttributes"]
        allowed = (spec["user"], attributes["verb"], attributes["subresource"]) not in self.denied
        return web.json_response({"kind": "SubjectAccessReview", "status": {"allowed": allowed}})

    async def _record_review(self, request: web.Request, kind: str, seen: list[Object]) -> Object:
        body: Object = await request.json()
        seen.append(body)
        await asyncio.sleep(self.delay)
        if kind in self.held:
            await self.held[kind].wait()
        if kind in self.failing:
            raise web.HTTPInternalServerError
        return body


@dataclass
class UpgradeRequest:
    """One request to the fake remote."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.target).query, keep_blank_values=True)

    def header_values(self, name: str) -> list[str]:
        """The values of the headers of this name."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def switch_protocols(self, more: bytes = b"", headers: str = "") -> None:
        """Answers 101 as an API server does for SPDY."""
        head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        await self.send((head + headers + "\r\n").encode() + more)

    async def wait_closed(self) -> None:
        """Returns when the peer has closed the connection; discards data until then."""
        try:
            while await self.reader.read(65536):
                pass
        except OSError:
            pass


Handler = Callable[[UpgradeRequest], Awaitable[None]]


class FakeRemote:
    """Runs ``handler`` for each request, and closes the connection when it returns."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[UpgradeRequest] = []
        self.ended = 0
        """Number of requests whose ``handler`` has returned."""
        self.handler: Handler = _not_found
        self.url = ""
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, ssl=self._context, limit=1 << 20
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._context else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
            first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            method, target, _ = first.split(" ")
            headers = [
                (name, value.strip()) for name, _, value in (x.partition(":") for x in lines)
            ]
            requests = UpgradeRequest(method, target, headers, reader, writer)
            self.requests.append(requests)
            await self.handler(requests)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has closed the connection
        finally:
            self.ended += 1
            writer.close()


async def _not_found(request: UpgradeRequest) -> None:
    await respond(request, 404, b'{"kind":"Status","message":"no such pod"}')


async def respond(
    request: UpgradeRequest, status: int, body: bytes, content_type: str = "application/json"
) -> None:
    """A complete response without an upgrade."""
    head = (
        f"HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nSet-Cookie: a=b\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    await request.send(head.encode() + body)


async def echo(request: UpgradeRequest) -> None:
    """Answers 101 and echoes all data."""
    await request.switch_protocols()
    while data := await request.reader.read(65536):
        await request.send(data)


def drop_packets(writer: asyncio.StreamWriter) -> None:
    """Simulates an unresponsive TCP peer: drops the socket's packets before TCP sees them, so that
    no data is acknowledged and no keepalive probe is answered."""
    drop_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("@HP", 1, ctypes.addressof(drop_all))
    attach_filter = getattr(socket, "SO_ATTACH_FILTER", 26)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, attach_filter, program)


class FakePodDirectory:
    """A directory with the pod ``default/web`` (UID ``uid-1``), and what a test adds."""

    def __init__(self) -> None:
        self.remote = RemotePod("default-home", "web", frozenset({"app", "init"}), "uid-1")
        self.listed: list[Object] = []

    def find_remote_pod(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        if (namespace, name) != ("default", "web") or uid not in (None, "uid-1"):
            return None
        return self.remote

    def home_pods(self) -> list[Object]:
        return self.listed

    def scheduled_pods(self) -> list[ScheduledPod]:
        return []


async def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true, at most 120 seconds of the loop's time."""
    await poll(condition)
