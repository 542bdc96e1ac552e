"""Standard output and error in every locale, and where they cannot be written.

In a locale that is not UTF-8 a character that it lacks becomes ASCII: the bridge's symbols their
usual stand-ins, any other an escape as JSON has them, so that JSON stays JSON. Output that cannot
be written (a full disk) ends the command with one line and exit code 1; output that nobody reads
any more (a closed pipe) ends it with that code alone.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The name of the error handler.
_HANDLER = "cluster-bridge"
#: What the bridge's own words have beyond ASCII.
_STAND_INS = {"✓": "+", "…": "...", "→": "->", "–": "-", "—": "-", "’": "'", "×": "x"}  # noqa: RUF001  # as written


def prepare() -> None:
    """Has both streams take every text."""
    codecs.register_error(_HANDLER, _ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


@contextmanager
def checked(fail: Callable[[str], SystemExit]) -> Iterator[None]:
    """Everything that the block prints has been written at its end, or SystemExit is raised:
    ``fail`` says why in one line and gives it."""
    plain = sys.stdout
    if not isinstance(plain, io.TextIOWrapper):
        yield
        return
    plain.flush()
    # Over the same file, which stays open: libraries ask `sys.__stdout__` for the terminal's size.
    binary = io.BufferedWriter(io.FileIO(plain.fileno(), "wb", closefd=False))
    checking = _Checked(
        binary, encoding=plain.encoding, errors=plain.errors, line_buffering=plain.line_buffering
    )
    checking.fail = fail
    sys.stdout = checking
    try:
        yield
    finally:
        sys.stdout.flush()


class _Checked(io.TextIOWrapper):
    """Standard output whose errors end the command."""

    fail: Callable[[str], SystemExit]

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise self._ended(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._ended(error) from None

    def _ended(self, error: OSError) -> SystemExit:
        # What is still buffered would be tried again at the end of the process.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        if error.errno == errno.EPIPE:
            return SystemExit(1)
        return self.fail(f"standard output: {error.strerror}")


def _ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_STAND_INS.get(it) or _escaped(it) for it in found), error.end


def _escaped(character: str) -> str:
    """As JSON escapes it: two parts where it is beyond the first 65,536."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
