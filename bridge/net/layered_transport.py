"""A connection within another: what such layers have in common.

To the connection below a layer is a protocol, to the one above a transport. Here is what it only
passes on, and its beginning and end from this side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

Buffer = bytes | bytearray | memoryview


class LayeredTransport(asyncio.Transport, asyncio.Protocol):
    """``above`` hears of the data. There are thousands: no layer has a dictionary."""

    __slots__ = ("_above", "_below", "_closing")

    def __init__(self, above: asyncio.Protocol) -> None:
        super().__init__()
        self._above = above
        self._below: asyncio.Transport | None = None
        self._closing = False  # we have closed it

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        self._above.connection_made(self)

    def eof_received(self) -> bool:
        return False  # closes, and `connection_lost` follows

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # -- to below --------------------------------------------------------------------------

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """As one write."""
        self.write(b"".join(list_of_data))

    def abort(self) -> None:
        """Ends the connection now."""
        self._closing = True
        self._lower.abort()

    def is_closing(self) -> bool:
        """Whether the end has begun from this side."""
        return self._closing

    def pause_reading(self) -> None:
        """Nothing more comes but what has been read."""
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Reads on."""
        self._lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the connection below, where all that is not yet sent is held."""
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that are held below."""
        return self._lower.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """From below."""
        return self._lower.get_extra_info(name, default)

    @property
    def _lower(self) -> asyncio.Transport:
        if self._below is None:
            raise RuntimeError(f"{type(self).__name__} are used before their connection is made")
        return self._below
