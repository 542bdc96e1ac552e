"""A command on a terminal of its own, as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT

ROWS, COLUMNS = 50, 160
#: Seconds for what is to be seen, and for the end.
PATIENCE = 60.0
#: Sequences of ECMA-48 that move, clear and colour.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What was written on it so far is ``raw``; use `opened`."""

    def __init__(self, process: subprocess.Popen[bytes], file: int) -> None:
        self._process = process
        self._file = file
        self.raw = ""

    @property
    def text(self) -> str:
        """All that was written, without colours and movements."""
        return _CONTROL.sub("", self.raw)

    def until(self, words: str, *, after: int = 0) -> int:
        """Waits until these words are written in `text` from ``after`` on; where they end."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.text.find(words, after)) < 0:
            assert time.monotonic() < deadline, f"not written: {words!r} in {self.text[after:]!r}"
            assert self._read(), f"it ended without {words!r}: {self.text!r}"
        return found + len(words)

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        os.write(self._file, b"\x03")
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, "it goes on"
        return self._process.wait(PATIENCE)

    def _read(self) -> bool:
        """Takes what is there, after a moment at most; whether there may be more."""
        if not select.select([self._file], [], [], 0.2)[0]:
            return True
        with contextlib.suppress(OSError):  # the terminal of a process that has ended
            data = os.read(self._file, 65536)
            self.raw += data.decode(errors="replace")
            return bool(data)
        return False


@contextmanager
def opened(command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Runs the command on a terminal; it is ended with the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        # Of util-linux: the terminal becomes that of the session, so that Ctrl-C is a signal there.
        ("setsid", "--ctty", *command),
        env={**os.environ, "TERM": "xterm-256color", **env},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        process.kill()
        process.wait()
        os.close(ours)
