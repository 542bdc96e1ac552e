"""A wall clock for the bridge's process only, which a test can step.

A time namespace has only clocks that never step (monotonic, boot time). So PYTHONPATH gives the
process a `sitecustomize` that adds the number in a file to the times of Python's `time` and
`datetime`. Code that reads the kernel's clock directly, such as OpenSSL, is unaffected.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

#: Environment variable with the path of the file.
VARIABLE = "CLUSTER_BRIDGE_TEST_CLOCK"
_FOLDER = Path(__file__).parent / "site"


class Clock:
    """The clock that ``file`` controls."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.put(0.0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the process."""
        return {"PYTHONPATH": str(_FOLDER), VARIABLE: str(self._file)}

    def put(self, ahead: float) -> None:
        """Sets the difference to the machine's clock, in seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<d", ahead))
