"""A kubelet's side of a port-forward over SPDY/3.1: one connection, many pairs of streams."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping

from tests.bridge.kubelet.fake_api_servers import UpgradeRequest

SYN_STREAM, RST_STREAM, PING, GOAWAY = 1, 3, 6, 7
_FIN = 1
_HEAD = "X-Stream-Protocol-Version: portforward.k8s.io\r\n"


class SpdyForward:
    """One forwarded connection, from the pod's side."""

    def __init__(self, server: SpdyServer, pod: str, port: int, error: int, data: int) -> None:
        self._server = server
        self._received: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._gone = asyncio.Event()
        self._error, self.stream = error, data
        self.request = server.request
        self.pod = pod
        self.port = port

    async def begin(self) -> None:
        """Nothing: the session was accepted before."""

    async def send(self, data: bytes) -> None:
        """Sends data to the client."""
        await self._server.send(data_frame(self.stream, data))

    async def ping(self) -> None:
        """Sends a ping, as servers do."""
        await self._server.send(control(PING, struct.pack("!I", 2)))

    async def fail(self, message: str) -> None:
        """Reports an error, as a kubelet does for a closed port."""
        await self._server.send(data_frame(self._error, message.encode()))

    async def receive(self) -> bytes:
        """The next data; b"" where the client has closed."""
        if self._gone.is_set() and self._received.empty():
            return b""
        return await self._received.get()

    async def close(self) -> None:
        """Ends both streams, as if the pod had closed."""
        await self._server.send(
            data_frame(self.stream, b"", is_last=True) + data_frame(self._error, b"", is_last=True)
        )

    async def reset(self) -> None:
        """Resets both streams."""
        for stream in (self.stream, self._error):
            await self._server.send(control(RST_STREAM, struct.pack("!II", stream, 6)))

    async def cut(self) -> None:
        """Drops the whole session."""
        self._server.drop()

    async def gone(self) -> None:
        """Waits until the client has closed, and discards its data."""
        while await self.receive():
            pass

    async def arrive(self, data: bytes) -> None:
        """Takes data of the client: as long as the pod does not read, the session stands still."""
        if not data:
            if self._gone.is_set():
                return
            self._gone.set()
        await self._received.put(data)


Serve = Callable[[SpdyForward], Awaitable[None]]


class SpdyServer:
    """One session: runs ``serve`` for each pair of streams."""

    def __init__(self, request: UpgradeRequest, pod: str, serve: Serve) -> None:
        self.request = request
        self._pod = pod
        self._serve = serve
        self._headers = zlib.decompressobj()
        self._forwards: dict[int, SpdyForward] = {}
        self._errors: dict[str, int] = {}

    async def run(self, more: bytes = b"") -> None:
        """Accepts the session, sends ``more`` with the response, and serves until it ends."""
        await self.request.switch_protocols(more, _HEAD)
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    while True:
                        await self._receive(group)
                except (asyncio.IncompleteReadError, OSError):
                    for forward in self._forwards.values():
                        group.create_task(forward.arrive(b""))
        except* OSError:
            pass  # the client has closed the connection

    async def send(self, data: bytes) -> None:
        await self.request.send(data)

    def drop(self) -> None:
        self.request.writer.transport.abort()

    async def _receive(self, group: asyncio.TaskGroup) -> None:
        reader = self.request.reader
        first, second = struct.unpack("!II", await reader.readexactly(8))
        payload = await reader.readexactly(second & 0xFFFFFF)
        if not first >> 31:
            if (forward := self._forwards.get(first)) is not None:
                if payload:
                    await forward.arrive(payload)
                if second >> 24 & _FIN:
                    await forward.arrive(b"")
        elif first & 0xFFFF == SYN_STREAM:
            self._open(group, struct.unpack("!I", payload[:4])[0], self._parsed(payload[10:]))
        elif first & 0xFFFF == RST_STREAM:
            (stream,) = struct.unpack("!I", payload[:4])
            if (forward := self._forwards.pop(stream, None)) is not None:
                await forward.arrive(b"")

    def _open(self, group: asyncio.TaskGroup, stream: int, headers: Mapping[str, str]) -> None:
        if headers["streamtype"] == "error":
            self._errors[headers["requestid"]] = stream
            return
        error = self._errors[headers["requestid"]]
        forward = SpdyForward(self, self._pod, int(headers["port"]), error, stream)
        self._forwards[stream] = forward

        async def serve() -> None:
            await self._serve(forward)
            await forward.close()

        group.create_task(serve())

    def _parsed(self, block: bytes) -> dict[str, str]:
        plain, at, texts = self._headers.decompress(block), 4, []
        while at < len(plain):
            (size,) = struct.unpack_from("!I", plain, at)
            texts.append(plain[at + 4 : at + 4 + size].decode())
            at += 4 + size
        found = dict(zip(texts[::2], texts[1::2], strict=True))
        assert len(found) == struct.unpack_from("!I", plain)[0]
        return found


def control(kind: int, payload: bytes, *, flags: int = 0) -> bytes:
    """A control frame of SPDY/3."""
    return struct.pack("!HHI", 0x8003, kind, flags << 24 | len(payload)) + payload


def data_frame(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
    """A data frame."""
    flags = _FIN if is_last else 0
    return struct.pack("!II", stream, flags << 24 | len(data)) + data
