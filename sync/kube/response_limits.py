"""Limits of the responses of one API server, so that it cannot take the memory of the process.

- A body is read, decompressed, up to a limit; beyond it the connection is closed and
  `ResponseTooLarge` raised. A compressed body is never in memory beyond what is read of it.
- At most `large_bodies` bodies and watch events over `SMALL_BODY` are in memory at once, until they
  are decoded: further ones wait, and are not read meanwhile. Timeouts of the requests bound the
  wait.
- A body whose decoded form would need more than `DECODED_LIMIT` is not decoded: two bytes of JSON
  can become a hundred in memory.

Honest servers stay within these limits: see the constants. A page of a list that exceeds them is
requested again with fewer objects (`sync.kube.client`).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import aiohttp
import orjson

from sync.base.memory_limit import memory_limit, memory_share
from sync.kube.api_errors import ResponseTooLarge, Side
from sync.kube.http2 import Http2Response

#: Bytes of a body and of a watch event. etcd stores at most 1.5 MiB of an object
#: (--max-request-bytes), and JSON escapes make at most six bytes of one (``\u003c``): 9 MiB.
BODY_LIMIT = 10 * 2**20
#: Bytes of a text that is not JSON, at most (`text_limit`).
TEXT_LIMIT = 2**25
#: Bytes of a body that is read without a turn: a pod has about 2**13.
SMALL_BODY = 2**16
#: Bytes of a body that are read before other tasks get a turn: some milliseconds if compressed.
STEP_SIZE = 2**20
#: Bytes of a v1.Status, which has some hundred, or of a version.
SHORT_LIMIT = SMALL_BODY
#: Larger bodies that are in memory at once; decoding is serial anyway. A process with less than
#: `_AMPLE_MEMORY` has one (`large_bodies`).
LARGE_BODIES = 2
_AMPLE_MEMORY = 2**31
#: Bytes in memory of a body's decoded form, as `decoded_size` estimates it: a ConfigMap, which has
#: at most 1 MiB, needs 27 MiB if its values are empty and its keys as short as possible.
DECODED_LIMIT = 32 * 2**20

#: Bytes of JSON of all objects of one remote that informers keep: 34,000 pods of 10 kB. A
#: process with less than 2.1 GiB of memory keeps less (`sync.cache.cache_share`). Decoded, objects
#: need several times as much, and those of one template less (`sync.cache.interning`).
CACHE_LIMIT = 2**29

#: Bytes that a value of a list, or a map with its first value, needs in memory at most (CPython:
#: 184 for a small dict, which is two of `_STRUCTURE`; 58 for a short string and its reference).
_VALUE_SIZE = 100
#: Each value follows one of these.
_STRUCTURE = b"{[,"
_NO_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
#: A string of JSON without escaped quotes.
_STRING = re.compile(rb'"[^"]*"')


def large_bodies() -> int:
    """How many bodies over `SMALL_BODY` of one API server are in memory at once."""
    return LARGE_BODIES if memory_limit() >= _AMPLE_MEMORY else 1


def text_limit() -> int:
    """Bytes of a text, such as a kubelet's metrics: 11 MiB of a process with 1 GiB. A kubelet with
    250 pods has less than 1 MiB in /metrics/resource, and 2 MiB in /stats/summary."""
    return min(TEXT_LIMIT, memory_share(1))


def decoded_size(raw: bytes) -> int:
    """An upper estimate of the memory that the decoded form of this JSON needs."""
    return len(raw) + _VALUE_SIZE * len(raw.translate(None, _NO_STRUCTURE))


def _is_too_large(raw: bytes) -> bool:
    """Whether the decoded form of this JSON exceeds `DECODED_LIMIT`."""
    # The first comparison suffices for nearly all bodies.
    if len(raw) * (_VALUE_SIZE + 1) <= DECODED_LIMIT or decoded_size(raw) <= DECODED_LIMIT:
        return False
    # A string, such as a table in a ConfigMap, may contain the characters of structure.
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    if _VALUE_SIZE * (unescaped.count(b'"') // 2) > DECODED_LIMIT:
        return True
    return len(raw) + decoded_size(_STRING.sub(b"", unescaped)) > DECODED_LIMIT


async def next_part(content: aiohttp.StreamReader | Http2Response) -> bytes:
    """The next bytes of a body; b"" at its end. Raises the errors of aiohttp, and OSError."""
    try:
        return await content.readany()
    except RuntimeError:  # of aiohttp: a malformed body broke the connection while nothing read it
        raise aiohttp.ClientPayloadError from None


class LargeBodyTurn:
    """The permission for one body at a time to grow beyond `SMALL_BODY`."""

    __slots__ = ("_held", "_turns", "reason", "size")

    def __init__(self, turns: asyncio.Semaphore, reason: str) -> None:
        self._turns = turns
        self.reason = reason
        """The reason for which a body that is too large is counted: one of `REJECTIONS`."""
        self._held = False
        self.size = 0
        """Bytes of the bodies that were read with it."""

    @property
    def is_held(self) -> bool:
        return self._held

    async def take(self) -> None:
        """Waits for the permission; does nothing if it is held."""
        if not self._held:
            await self._turns.acquire()
            self._held = True

    def release(self) -> None:
        """Gives the permission back, once the body is no longer in memory."""
        if self._held:
            self._held = False
            self._turns.release()


class ResponseLimits:
    """The limits of one API server, and the counts of what exceeded them."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._turns = asyncio.Semaphore(large_bodies())
        self.rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        """Rejected data by reason: one of `REJECTIONS`."""
        self.cached = 0
        """Bytes of the objects that informers keep within a limit (`sync.cache.cache_share`)."""

    def turn(self, reason: str = "body") -> LargeBodyTurn:
        """A turn that is not taken yet."""
        return LargeBodyTurn(self._turns, reason)

    async def read(
        self,
        response: aiohttp.ClientResponse | Http2Response,
        *,
        what: str,
        limit: int = SHORT_LIMIT,
        turn: LargeBodyTurn | None = None,
    ) -> bytes:
        """Reads the body to its end, so that the connection can be used again. Raises
        ResponseTooLarge, and what reading raises; the connection is then closed. ``limit`` may
        exceed `SMALL_BODY` with a ``turn`` only."""
        content = response.content
        parts: list[bytes] = []
        size = yielded = 0
        try:
            while part := await next_part(content):
                parts.append(part)
                size += len(part)
                if size > SMALL_BODY:
                    await self._grow(size, limit, turn, what)
                if size - yielded >= STEP_SIZE:
                    # aiohttp decompresses what it has received without waiting.
                    yielded = size
                    await asyncio.sleep(0)
        except BaseException:
            response.close()
            raise
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        if turn is not None:
            turn.size += size
        return raw

    async def _grow(self, size: int, limit: int, turn: LargeBodyTurn | None, what: str) -> None:
        if size > limit:
            reason = "body" if turn is None else turn.reason
            raise self.too_large(reason, "the response", limit, what)
        if turn is not None:
            await turn.take()

    async def read_failure(
        self, response: aiohttp.ClientResponse | Http2Response, what: str
    ) -> bytes:
        """As `read`, for a response whose status counts whatever its body is: b"" for a long one,
        such as a proxy's page."""
        try:
            return await self.read(response, what=what)
        except ResponseTooLarge:
            return b""

    def decode(self, raw: bytes, what: str, *, reason: str = "body") -> Any:
        """Parses JSON; None for anything else. The parser's error quotes the text and is dropped.
        Raises ResponseTooLarge."""
        if _is_too_large(raw):
            raise self.too_large(reason, "the decoded response", DECODED_LIMIT, what)
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            return None

    def too_large(self, reason: str, part: str, limit: int, what: str) -> ResponseTooLarge:
        """The error for a ``part`` of a response that exceeds ``limit`` bytes; counts it."""
        self.rejected[reason] += 1
        return ResponseTooLarge(f"{part} exceeds {limit} bytes", side=self._side, what=what)


#: Reasons for which a part of a response is not used; a ``page`` is requested in parts.
REJECTIONS = (
    "body",
    "page",
    "watch-event",
    "list",
    "memory",
    "malformed",
    "status",
    "address",
    "event-rate",
)
