"""The stream of datagrams between the bridge and a relay agent: one TCP connection inside a
port-forward, beside the control connection.

Both sides send frames: a header, then the datagram. The header has the datagram's length, the
agent's port, and the client's port and address (IPv4 as IPv4-mapped IPv6); it is the same in both
directions, so neither side has to know which flows the other one remembers. An empty datagram is a
header alone. UDP's own length field has 16 bits, so every datagram fits.

All flows of an agent share one stream. A stream for each flow would cost a port-forward, with a
request at the API server, for each DNS query. The price is head-of-line blocking: while TCP repeats
a lost segment, all flows of this agent wait. Bulk in one flow delays others only by what the
connection has taken already (`WRITE_BUFFER`, and the kernel's buffers): what it does not take at
once waits in a queue in which flows take turns. The queue is bounded for each flow and in total,
and all queues of a process together, of which a stream may hold as much as is free. Datagrams above
the bound are dropped, as by a router. A flood of small datagrams is handled in
portions (`sync.kube.portions`), between which the program does its other work.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from bridge.net.datagram_socket import SendResult
from sync.kube.portions import Portions

#: Bytes that the transport takes before the queue fills.
WRITE_BUFFER = 256 * 1024
#: Bytes that wait: of one flow (four of the longest datagrams), of one stream, and of all streams.
FLOW_QUEUE, QUEUE, QUEUES = 256 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024
#: Length, the agent's port, the client's port, the client's address.
_HEADER = struct.Struct("!HHH16s")
#: Bytes of memory that each waiting frame takes beside its own.
_OVERHEAD = 64
_MAPPED = bytes(10) + b"\xff\xff"


class Flow(NamedTuple):
    """Datagrams between one client and one port of the agent."""

    port: int
    client_port: int
    client: bytes
    """The client's address, as 16 bytes."""

    @property
    def client_address(self) -> str:
        """The client's address as text."""
        if self.client.startswith(_MAPPED):
            return socket.inet_ntop(socket.AF_INET, self.client[len(_MAPPED) :])
        return socket.inet_ntop(socket.AF_INET6, self.client)


def packed_address(address: str) -> bytes:
    """The 16 bytes of an IP address, as in `Flow`. Raises OSError."""
    address = address.partition("%")[0]  # a link-local address can have a scope
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address)
    return _MAPPED + socket.inet_pton(socket.AF_INET, address)


class DatagramStream(asyncio.Protocol):
    """One end of a stream. ``on_datagram`` is called with this stream and each datagram that
    arrives, ``on_close`` when the stream has ended. ``preface`` is sent before the first frame.
    ``queued`` counts what waits for all streams of the process."""

    def __init__(
        self,
        on_datagram: Callable[[DatagramStream, Flow, bytes], None],
        on_close: Callable[[DatagramStream], None] = lambda _: None,
        *,
        preface: bytes = b"",
        queued: QueuedBytes | None = None,
    ) -> None:
        self._on_datagram = on_datagram
        self._on_close = on_close
        self._preface = preface
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._queue = DatagramQueue(queued)
        self._rest = b""  # of a frame, as far as it has arrived
        self._portions = Portions(self._frames, on_flood=self.abort, on_lost=self._lost)
        self.closed = asyncio.Event()

    def send(self, flow: Flow, datagram: bytes) -> SendResult:
        """Sends a datagram, or queues it. Returns "queue" if the queue is full, and "no-way" if the
        stream has ended."""
        if self._transport is None or self._transport.is_closing():
            return "no-way"
        frame = _HEADER.pack(len(datagram), flow.port, flow.client_port, flow.client) + datagram
        if self._paused:
            return "" if self._queue.put(flow, frame) else "queue"
        self._transport.write(frame)
        return ""

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._portions.begin(self._transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER)
        if self._preface:
            self._transport.write(self._preface)

    def data_received(self, data: bytes) -> None:
        self._portions.receive(data)

    def _frames(self, data: bytes) -> Iterator[bool]:
        data, at = self._rest + data, 0
        # Not after `abort`: its owner may have closed the sockets.
        while not self._is_closing and (end := _frame_end(data, at)):
            length, port, client_port, client = _HEADER.unpack_from(data, at)
            at = end
            self._on_datagram(self, Flow(port, client_port, client), data[end - length : end])
            yield True
        self._rest = data[at:]

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        while self._transport is not None and not self._paused:
            frame = self._queue.take()
            if frame is None:
                return
            self._transport.write(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.lose(exc)

    def _lost(self, _: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        self.closed.set()
        self._on_close(self)


def _frame_end(data: bytes, at: int) -> int:
    """The end of the frame that begins at ``at``; 0 if it has not arrived completely."""
    begin = at + _HEADER.size
    if len(data) < begin:
        return 0
    end = begin + int(_HEADER.unpack_from(data, at)[0])
    return end if end <= len(data) else 0


class QueuedBytes:
    """Counts the bytes of all queues."""

    def __init__(self) -> None:
        self.held = 0


class DatagramQueue:
    """Frames that wait for a stream. Flows take turns, and the frames of one stay in order."""

    def __init__(self, queued: QueuedBytes | None = None) -> None:
        self._queued = queued or QueuedBytes()
        self._flows: OrderedDict[Flow, _FlowQueue] = OrderedDict()
        self._size = 0

    def put(self, flow: Flow, frame: bytes) -> bool:
        """Queues a frame; returns False if the flow, the stream, or all streams have too much."""
        size = len(frame) + _OVERHEAD
        of_flow = self._flows.get(flow)
        used = of_flow.size if of_flow is not None else 0
        if used + size > FLOW_QUEUE or self._size + size > min(QUEUE, QUEUES - self._queued.held):
            return False
        if of_flow is None:
            of_flow = self._flows[flow] = _FlowQueue()
        of_flow.frames.append(frame)
        of_flow.size += size
        self._add(size)
        return True

    def take(self) -> bytes | None:
        """Removes the next frame, of the flow whose turn it is; None if there is none."""
        if not self._flows:
            return None
        flow, of_flow = next(iter(self._flows.items()))
        frame = of_flow.frames.popleft()
        size = len(frame) + _OVERHEAD
        of_flow.size -= size
        self._add(-size)
        if of_flow.frames:
            self._flows.move_to_end(flow)
        else:
            del self._flows[flow]
        return frame

    def clear(self) -> None:
        """Drops all frames."""
        self._flows.clear()
        self._add(-self._size)

    def _add(self, size: int) -> None:
        self._size += size
        self._queued.held += size


class _FlowQueue:
    __slots__ = ("frames", "size")

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.size = 0
