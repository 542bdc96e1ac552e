"""A remote whose pods are reached by port-forwards, as a kubelet speaks them: over SPDY, or over
WebSockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import parse_qsl, urlsplit

from bridge.relay.forward.service_listeners import ServiceListeners
from bridge.relay.relay_counters import RelayMetrics
from sync.relay.forward_controller import OnLimited
from tests.bridge.kubelet.fake_api_servers import FakeRemote, UpgradeRequest, respond
from tests.bridge.relay.fake_spdy import SpdyForward, SpdyServer

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
DATA, ERROR = 0, 1


class Forward:
    """One port-forward, from the pod's side."""

    def __init__(self, request: UpgradeRequest, pod: str, port: int) -> None:
        self.request = request
        self.pod = pod
        self.port = port

    async def begin(self) -> None:
        """Switches, and names the port on both channels, as kubelets do."""
        await self.request.send(self.opening())

    def opening(self) -> bytes:
        """What `begin` sends."""
        headers = {name.lower(): value for name, value in self.request.headers}
        proof = hashlib.sha1(headers["sec-websocket-key"].encode() + _GUID).digest()
        head = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(proof) + b"\r\n"
            b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        )
        port = self.port.to_bytes(2, "little")
        return head + b"".join(
            server_frame(2, bytes([channel]) + port) for channel in (DATA, ERROR)
        )

    async def send(self, data: bytes, *, channel: int = DATA, opcode: int = 2) -> None:
        """One message."""
        await self.request.send(server_frame(opcode, bytes([channel]) + data))

    async def ping(self) -> None:
        """Sends a ping, as servers may."""
        await self.request.send(server_frame(9, b"there?"))

    async def fail(self, message: str) -> None:
        """Reports an error on the error channel, as a kubelet does for a closed port."""
        await self.send(message.encode(), channel=ERROR)

    async def receive(self) -> bytes:
        """The data of the next message; b"" where the client has closed."""
        while True:
            opcode, payload = await self.read()
            if opcode == 8:
                return b""
            if opcode == 2:
                assert payload[0] == DATA
                return payload[1:]

    async def read(self) -> tuple[int, bytes]:
        """The next frame: its kind, and what is in it, unmasked."""
        reader = self.request.reader
        first, second = await reader.readexactly(2)
        assert first & 0x80, "whole in one frame"
        assert second & 0x80, "a client masks"
        length = second & 0x7F
        if length > 125:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
        key = await reader.readexactly(4)
        masked = await reader.readexactly(length)
        return first & 15, bytes(byte ^ key[at % 4] for at, byte in enumerate(masked))

    async def cut(self) -> None:
        """Drops the connection."""
        self.request.writer.transport.abort()

    async def close(self) -> None:
        """Closes the WebSocket, as if the pod had closed."""
        await self.request.send(server_frame(8, b"\x03\xe8"))

    async def gone(self) -> None:
        """Waits until the client has closed."""
        await self.request.wait_closed()


def server_frame(opcode: int, payload: bytes) -> bytes:
    """A frame that is not masked."""
    length = len(payload)
    if length < 126:
        size = bytes([length])
    elif length < 1 << 16:
        size = b"\x7e" + length.to_bytes(2, "big")
    else:
        size = b"\x7f" + length.to_bytes(8, "big")
    return bytes([0x80 | opcode]) + size + payload


#: Either of the two, from the pod's side.
AnyForward = Forward | SpdyForward
Pod = Callable[[AnyForward], Awaitable[None]]
WebSocketPod = Callable[[Forward], Awaitable[None]]


#: Whether remotes accept SPDY; a proxy before an API server may not.
speaks_spdy = True


def serve_pods(remote: FakeRemote, pods: Mapping[str, WebSocketPod]) -> None:
    """Makes the remote serve port-forwards to these pods; other pods get 404. A pod that needs
    WebSockets is only played where the client asks for them, or SPDY is not spoken."""

    async def handler(request: UpgradeRequest) -> None:
        parts = urlsplit(request.target)
        name = parts.path.split("/")[-2]
        is_spdy = request.header_values("Upgrade") == ["SPDY/3.1"]
        if is_spdy and not speaks_spdy:
            await respond(request, 400, b"Bad Request", "text/plain")
        elif name not in pods:
            await respond(request, 404, b'{"kind":"Status","message":"no such pod","code":404}')
        elif is_spdy:
            await SpdyServer(request, name, cast("Pod", pods[name])).run()
        else:
            forward = Forward(request, name, int(dict(parse_qsl(parts.query))["ports"]))
            await forward.begin()
            await pods[name](forward)

    remote.handler = handler


async def respond_with_name(forward: AnyForward) -> None:
    """Responds with the pod's name and closes."""
    await forward.receive()
    await forward.send(forward.pod.encode())
    await forward.close()


async def echo_data(forward: AnyForward) -> None:
    """Echoes all data until the client disconnects."""
    while data := await forward.receive():
        await forward.send(data)


async def stay_silent(forward: AnyForward) -> None:
    """Sends nothing until the client disconnects."""
    await forward.gone()


async def refuse(forward: AnyForward) -> None:
    """Fails as if no process listened on the port."""
    await forward.fail("failed to connect to localhost:8080 inside namespace")
    await asyncio.sleep(0)
    await forward.close()


@asynccontextmanager
async def at_work(
    listeners: ServiceListeners, limited: OnLimited, measures: RelayMetrics
) -> AsyncIterator[None]:
    """Listeners that carry connections while the block runs, and leave nothing behind."""
    running = asyncio.create_task(listeners.run(limited))
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert measures.open == 0
        assert measures.listening == 0
        assert measures.addresses == 0


async def answer_at(host: str, port: int, data: bytes) -> bytes:
    """Sends one request and returns the response. Raises ConnectionResetError."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()
