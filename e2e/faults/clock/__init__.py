"""A wall clock for the bridge's process alone, which a test may put forward and back.

A time namespace has only clocks that never step (monotonic, boot time). So the process gets, by
PYTHONPATH, a `sitecustomize` that adds a file's number to what Python's `time` and `datetime` say.
What asks the kernel without Python, as OpenSSL when it checks a certificate, is not led astray.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

#: Where the process learns of the file.
VARIABLE = "CLUSTER_BRIDGE_TEST_CLOCK"
_FOLDER = Path(__file__).parent / "site"


class Clock:
    """The clock that ``file`` is for."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.put(0.0)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process is started with."""
        return {"PYTHONPATH": str(_FOLDER), VARIABLE: str(self._file)}

    def put(self, ahead: float) -> None:
        """From now on the clock is so many seconds ahead of the machine's, or behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<d", ahead))
