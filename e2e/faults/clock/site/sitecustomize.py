"""Steps the clock of a Python process, which imports this at its start: `e2e.faults.clock`."""

from __future__ import annotations

import datetime as dt
import mmap
import os
import struct
import time
from typing import Any

_real = dt.datetime
_time, _time_ns = time.time, time.time_ns


def _install(file: str) -> None:
    with open(file, "rb") as opened:  # noqa: PTH123 - avoids an import
        ahead = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)

    def seconds() -> float:
        found: float = struct.unpack("<d", ahead[:8])[0]
        return found

    class _Kind(type):
        """Instances of the real type are instances, too."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _real)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, _real)

    class Stepped(_real, metaclass=_Kind):
        """`datetime` with the stepped time. Packages in C accept no other type than this for it."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(_time() + seconds(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(_time() + seconds(), dt.UTC).replace(tzinfo=None)

    time.time = lambda: _time() + seconds()
    time.time_ns = lambda: _time_ns() + int(seconds() * 1e9)
    dt.datetime = Stepped  # type: ignore[misc]


if _file := os.environ.get("CLUSTER_BRIDGE_TEST_CLOCK"):
    _install(_file)
