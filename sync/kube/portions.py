"""Handles what a peer sends in portions, so that no peer keeps the event loop busy.

One read can hold 100,000 frames of a few bytes, and uvloop makes dozens of reads in one turn: a
hostile peer could stop the whole process for seconds. So at most a portion of a connection's frames
is handled in one turn of the loop, and nothing more is read from it until the rest is handled.
Large frames are as fast as ever, since bytes do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

#: Frames that are handled before other connections have their turn.
PORTION = 64
#: Unsent bytes of a connection above which no reply to a control frame is sent: its peer reads
#: nothing, so it would not miss the reply.
UNSENT_LIMIT = 64 * 1024


class Portions:
    """The received bytes of one connection. ``handle`` returns an iterator over such bytes: each
    step handles a frame and yields whether it had data, or the end of a stream; incomplete frames
    are kept. ``portion`` is how many frames are handled in one turn, ``on_flood`` is called for a
    portion of nothing but other frames, ``on_lost`` after all frames; then nothing refers to the
    owner any more, which is freed without the garbage collector."""

    __slots__ = (
        "_end",
        "_frames",
        "_handle",
        "_is_paused",
        "_on_flood",
        "_on_lost",
        "_portion",
        "_received",
        "_transport",
        "_turn",
    )

    def __init__(
        self,
        handle: Callable[[bytes], Iterator[bool]],
        *,
        on_flood: Callable[[], None],
        on_lost: Callable[[Exception | None], None],
        portion: int = PORTION,
    ) -> None:
        self._handle = handle
        self._portion = portion
        self._on_flood = on_flood
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._frames: Iterator[bool] = iter(())
        self._turn: asyncio.Handle | None = None  # the next portion
        self._is_paused = False  # by the owner
        self._end: tuple[Exception | None] | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Sets the connection, whose reading this object pauses and resumes from now on."""
        self._transport = transport

    def receive(self, data: bytes) -> None:
        """Handles a portion now, and others in the loop's next turns."""
        self._received.append(data)
        if self._turn is None:
            self._frames = self._received_frames()
            self._handle_portion()

    def lose(self, exc: Exception | None) -> None:
        """Calls ``on_lost`` after the frames so far: the connection is lost."""
        if self._turn is None:
            self._finish(exc)
        else:
            self._end = (exc,)

    def pause(self, *, on: bool) -> None:
        """Pauses reading, or resumes it. Frames that were read before are still handled."""
        if on is not self._is_paused:
            self._is_paused = on
            if self._turn is None:
                self._set_reading(not on)

    def _received_frames(self) -> Iterator[bool]:
        while self._received:
            yield from self._handle(self._received.pop(0))

    def _handle_portion(self) -> None:
        was_waiting, self._turn = self._turn is not None, None
        try:
            have_data = [*islice(self._frames, self._portion)]
        except BaseException:  # as an event loop does for `data_received`
            if self._transport is not None:
                self._transport.abort()
            raise
        if len(have_data) == self._portion:
            if not any(have_data):
                self._on_flood()
            if not was_waiting:
                self._set_reading(False)
            self._turn = asyncio.get_running_loop().call_soon(self._handle_portion)
        elif self._end is not None:
            self._finish(*self._end)
        elif was_waiting:
            self._set_reading(not self._is_paused)

    def _finish(self, exc: Exception | None) -> None:
        on_lost = self._on_lost
        self._transport, self._frames = None, iter(())
        del self._handle, self._on_flood, self._on_lost  # they refer to the owner
        on_lost(exc)

    def _set_reading(self, on: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
