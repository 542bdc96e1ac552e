"""Malformed and malicious requests on a real socket: the kubelet API rejects them.

Every response is 4xx or that of an existing path; no exception is logged; and the remote receives
only requests that a route of the node's one pod forwards.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.kubelet.server import MAX_HEADERS
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.pki import Pki

pytestmark = pytest.mark.timeout(180)

#: Seconds for a response, and for the end of the connection.
SOON = 10.0
#: Seconds for a response to a possibly incomplete request.
PERHAPS = 0.1

_T = TypeVar("_T")

often = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Requests without a pod that every authenticated user may send.
ALLOWED = re.compile(
    rb"GET /(pods|runningpods|healthz(/ping|/syncloop)?|configz)/?(\?\S*)? HTTP/1.1"
)
#: The only paths that the remote may receive.
REMOTE_PATHS = re.compile(r"/api/v1/namespaces/default-home/pods/web/(log|exec|attach|portforward)")
#: The only headers that the remote may receive: those of an upgrade, and the bridge's own.
FORWARDED_HEADERS = re.compile(
    r"host|user-agent|audit-id|accept|accept-encoding|authorization|connection|upgrade"
    r"|x-stream-protocol-version|sec-websocket-[a-z-]+"
)


@dataclass
class ServerThread:
    """A kubelet API in its own thread, because hypothesis runs synchronous tests."""

    pki: Pki
    harness: KubeletHarness | None = None
    errors: list[str] = field(default_factory=list)
    """Log records at level ERROR or with a traceback."""
    _ready: threading.Event = field(default_factory=threading.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Serves until `end`."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with running_server(self.pki) as self.harness:
            self._ready.set()
            await self._stop.wait()

    def ready(self) -> KubeletHarness:
        """Waits until the server listens."""
        assert self._ready.wait(SOON)
        assert self.harness is not None
        return self.harness

    def end(self) -> None:
        """Makes `run` return."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    def status_codes(self, data: bytes, *, party: str | None, whole: bool) -> list[int]:
        """Sends the bytes and returns the status codes of the responses, of which there may be none
        without ``whole``."""
        harness = self.ready()
        plain = socket.create_connection(("127.0.0.1", harness.server.port), SOON)
        with self.pki.client_context(party).wrap_socket(
            plain, server_hostname="127.0.0.1", suppress_ragged_eofs=True
        ) as tls:
            received = b""
            try:
                tls.sendall(data)
                tls.settimeout(SOON if whole else PERHAPS)
                while b"\r\n\r\n" not in received and (part := tls.recv(65536)):
                    received += part
            except TimeoutError:
                assert not whole, "no answer"
            except OSError:
                pass  # rejected before all data was sent
            return [int(code) for code in re.findall(rb"HTTP/\d\.\d (\d{3}) ", received)]

    def probe(self, data: bytes, *, party: str | None, whole: bool = True) -> None:
        """Sends the bytes, and asserts the guarantees of the module docstring."""
        codes = self.status_codes(data, party=party, whole=whole)
        allowed = party is not None or b"Bearer good" in data or _TOKEN in data
        for code in codes:
            assert 400 <= code < 500 or (allowed and ALLOWED.search(data) and code == 200), code
        self.check()

    def check(self) -> None:
        """Asserts that the remote received only allowed requests and that no error was logged."""
        harness = self.ready()
        for request in harness.remote.requests:
            assert REMOTE_PATHS.fullmatch(request.path), request.target
            containers = [value for name, value in request.query if name == "container"]
            assert request.path.endswith("portforward") or containers in (["app"], ["init"])
            assert request.header_values("Authorization") == ["Bearer remote-credential"]
            assert all(FORWARDED_HEADERS.fullmatch(name.lower()) for name, _ in request.headers)
        harness.remote.requests.clear()
        assert self.errors == []


class _ErrorRecorder(logging.Handler):
    """Records errors and tracebacks."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self._errors.append(self.format(record))


@pytest.fixture(scope="module")
def served(pki: Pki) -> Iterator[ServerThread]:
    """One server for all tests of this module."""
    server = ServerThread(pki)
    handler = _ErrorRecorder(server.errors)
    logging.getLogger().addHandler(handler)
    thread = threading.Thread(target=server.run, name="served")
    thread.start()
    try:
        server.ready()
        yield server
    finally:
        server.end()
        thread.join(SOON)
        logging.getLogger().removeHandler(handler)
    assert not thread.is_alive()


# -- generated requests --------------------------------------------------------------------------

_GOOD = [b"containerLogs", b"exec", b"attach", b"portForward", b"default", b"web", b"app"]
_WORDS = [b"uid-1", b"pods", b"logs", b"metrics", b"debug", b"healthz", b"kube-system", b"secrets"]
_TRICKS = [
    *(b"..", b".", b"", b"%2e%2e", b"%2E.", b"%2f", b"..%2f", b"%5c..", b"%252e%252e", b"%00"),
    *(b"%", b"%zz", b"%ff", b"\xff", b"\xc3\xa4", b"a" * 300, b";x", b"*", b"~", b"%20", b"&"),
    *(b"web%2f..%2f..%2fsecrets", b"default%2fweb", b"web%3fcontainer=init", b"app%23", b"%77eb"),
]
segments = st.sampled_from([*_GOOD, *_GOOD, *_WORDS, *_TRICKS])
paths = st.lists(segments, max_size=7).map(lambda parts: b"/" + b"/".join(parts))
#: Requests that reach a handler.
known = st.sampled_from(
    [
        *(b"/containerLogs/default/web/app", b"/exec/default/web/init", b"/attach/default/web/app"),
        *(b"/portForward/default/web", b"/portForward/default/web/uid-1", b"/pods", b"/configz"),
        *(b"/exec/default/web/uid-1/app", b"/containerLogs/kube-system/web/app", b"/healthz/ping"),
    ]
)
targets = st.one_of(
    known,
    paths,
    paths.map(lambda path: b"https://elsewhere" + path),
    paths.map(lambda path: b"//elsewhere" + path),
    st.sampled_from([b"*", b"elsewhere:443", b"?", b"pods", b"/" * 5000, b"/%2e" * 2000]),
)
_values = st.sampled_from(
    [
        *(
            b"1",
            b"0",
            b"-1",
            b"true",
            b"",
            b"x" * 5000,
            b"%00",
            b"%zz",
            b"%",
            b"\xff",
            b"%ff",
            b"+",
        ),
        *(
            b"%26container=other",
            b"9" * 40,
            b"2026-01-01T00:00:00Z",
            b"All",
            b"..%2f",
            b"%0d%0aX:1",
        ),
    ]
)
_keys = st.sampled_from(
    [
        *(b"command", b"output", b"input", b"tty", b"error", b"container", b"follow", b"port"),
        *(b"tailLines", b"sinceTime", b"sinceSeconds", b"limitBytes", b"%63ontainer", b"", b";"),
    ]
)
queries = st.one_of(
    st.just(b""),
    st.just(b"?output=1&command=true&port=80"),
    st.lists(st.builds(lambda key, value: key + b"=" + value, _keys, _values), max_size=8).map(
        lambda pairs: b"?" + b"&".join(pairs)
    ),
)
#: Valid and invalid framing of HTTP/1.1.
_methods = [b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"]
_no_methods = [b"CONNECT", b"PRI", b"get", b"G\x00T", b"", b"M" * 50, b"\xff"]
methods = st.one_of(st.sampled_from(_methods), st.sampled_from([*_methods, *_no_methods]))
_TOKEN = b"base64url.bearer.authorization.k8s.io.Z29vZA"
_credentials = [
    *(b"Authorization: Bearer good", b"Authorization: Bearer bad", b"Authorization: Bearer \xff"),
    *(b"Authorization: Bearer", b"Authorization: Basic x", b"Authorization: Bearer \xc3\xa4"),
    *(b"Sec-WebSocket-Protocol: v4, " + _TOKEN, b"Impersonate-User: admin", b"X-Remote-User: a"),
    *(b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.\xff, v4", b"Cookie: a=b"),
]
_lines = [
    *(b"Connection: Upgrade", b"Connection: close, upgrade", b"Connection: keep-alive, TE"),
    *(b"Upgrade: SPDY/3.1", b"Upgrade: websocket", b"Upgrade: h2c", b"Upgrade: \xff"),
    *(b"Content-Length: 5", b"Content-Length: 0", b"Content-Encoding: gzip", b"Te: trailers"),
    *(b"Expect: 100-continue", b"X-Http-Method-Override: DELETE", b"Transfer-Encoding: chunked"),
    *(b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Protocol: v4", b"X-Stream-Protocol-Version: \xff"),
]
_no_lines = [
    *(b"Content-Length: -1", b"Content-Length: x", b"Transfer-Encoding: gzip", b"X: a\x00b"),
    *(b"X : a", b": a", b"X", b" folded", b"X-Long: " + b"a" * 20_000, b"X: \x01"),
]
headers = st.one_of(
    st.lists(st.sampled_from([*_credentials, *_lines]), max_size=4),
    st.lists(st.sampled_from([*_credentials, *_lines, *_no_lines]), max_size=6),
)
upgrades = st.sampled_from(
    [
        [],
        [b"Connection: Upgrade", b"Upgrade: SPDY/3.1"],
        [b"Connection: Upgrade", b"Upgrade: websocket"],
    ]
)
parties = st.sampled_from(["apiserver", None])


def head(method: bytes, target: bytes, lines: list[bytes]) -> bytes:
    first = method + b" " + target + b" HTTP/1.1"
    return b"\r\n".join([first, b"Host: node:10250", *lines, b"", b""])


def concatenated(
    left: st.SearchStrategy[_T], right: st.SearchStrategy[_T]
) -> st.SearchStrategy[_T]:
    """Concatenates two byte strings."""
    return st.builds(operator.add, left, right)


requests = st.builds(head, methods, concatenated(targets, queries), concatenated(upgrades, headers))
#: Requests with unusual headers and queries only.
nearly = st.builds(
    head, st.just(b"GET"), concatenated(known, queries), concatenated(upgrades, headers)
)


# -- tests ------------------------------------------------------------------


@often
@given(st.one_of(requests, nearly), parties)
def test_unusual_requests_are_rejected(
    served: ServerThread, data: bytes, party: str | None
) -> None:
    served.probe(data, party=party)


@often
@given(st.lists(requests, min_size=2, max_size=5).map(b"".join), parties)
def test_pipelined_requests_are_answered_or_rejected(
    served: ServerThread, data: bytes, party: str | None
) -> None:
    served.probe(data, party=party)


@often
@given(st.one_of(st.binary(min_size=1, max_size=3000), st.text().map(str.encode)), parties)
def test_random_bytes_are_rejected(served: ServerThread, data: bytes, party: str | None) -> None:
    served.probe(data, party=party, whole=False)


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"GET /pods HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /pods\r\n\r\n",
        b"GET http://[::1/pods HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"GET /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /pods HTTP/2.0\r\nHost: x\r\n\r\n",
    ],
)
def test_other_http_versions_get_400(served: ServerThread, data: bytes) -> None:
    assert served.status_codes(data, party="apiserver", whole=True) == [400]
    served.check()


def test_invalid_handshake_is_closed(served: ServerThread) -> None:
    harness = served.ready()
    for data in (b"GET /pods HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"\x16\x03\x01\xff\xff"):
        with socket.create_connection(("127.0.0.1", harness.server.port), SOON) as plain:
            plain.sendall(data)
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(65536):
                pass
    served.check()
