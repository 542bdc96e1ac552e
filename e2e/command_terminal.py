"""Runs a command on a pseudo-terminal, as a user sees it."""

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
#: Seconds for output to appear, and for the end.
PATIENCE = 60.0
#: ECMA-48 sequences that move, clear and colour.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class CommandTerminal:
    """A command's terminal; ``raw`` is its output so far. Created by `opened`."""

    def __init__(self, process: subprocess.Popen[bytes], file: int) -> None:
        self._process = process
        self._file = file
        self.raw = ""

    @property
    def text(self) -> str:
        """The output without control sequences."""
        return _CONTROL.sub("", self.raw)

    def wait_for_text(self, words: str, *, after: int = 0) -> int:
        """Waits for this text in `text` from ``after`` on; returns the offset of its end."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.text.find(words, after)) < 0:
            assert time.monotonic() < deadline, f"not written: {words!r} in {self.text[after:]!r}"
            assert self._read(), f"it ended without {words!r}: {self.text!r}"
        return found + len(words)

    def interrupt(self) -> int:
        """Sends Ctrl-C; returns the exit status."""
        os.write(self._file, b"\x03")
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, "the command did not end"
        return self._process.wait(PATIENCE)

    def _read(self) -> bool:
        """Reads available output for a moment; whether there may be more."""
        if not select.select([self._file], [], [], 0.2)[0]:
            return True
        with contextlib.suppress(OSError):  # the terminal of a process that has ended
            data = os.read(self._file, 65536)
            self.raw += data.decode(errors="replace")
            return bool(data)
        return False


@contextmanager
def opened(command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[CommandTerminal]:
    """Runs the command on a terminal; terminates it with the block."""
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
        yield CommandTerminal(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        process.kill()
        process.wait()
        os.close(ours)
