"""Standard output and standard error in every locale, and failures to write them.

In a locale other than UTF-8, a character that the encoding lacks becomes ASCII: the bridge's own
symbols their usual substitutes, any other a JSON escape, so that JSON stays JSON. If standard
output cannot be written (a full disk), the command ends with one line and exit code 1; if its
reader has closed it (a pipe), with that code only. A standard stream that is closed when the
process starts is the null device. A size of the terminal in ``COLUMNS`` or ``LINES`` that is
no number is ignored.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The name of the codec error handler.
_HANDLER = "cluster-bridge"
#: The ASCII substitutes of the bridge's own symbols.
_SUBSTITUTES = {"✓": "+", "…": "...", "→": "->", "–": "-", "—": "-", "’": "'", "×": "x"}  # noqa: RUF001  # as written


def prepare() -> None:
    """Opens the streams that are closed, and makes both outputs accept every text."""
    _open_closed()
    # rich calls int() for any digits of Unicode and any number of them.
    for variable in ("COLUMNS", "LINES"):
        if not re.fullmatch("[0-9]{1,5}", os.environ.get(variable, "80")):
            del os.environ[variable]
    codecs.register_error(_HANDLER, _ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _open_closed() -> None:
    """Otherwise another file gets the number of the stream, and libuv aborts the process."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has none for a number that was closed.
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


@contextmanager
def checked(fail: Callable[[str], SystemExit]) -> Iterator[None]:
    """Guarantees that everything which the block prints is written at its end, or raises the
    SystemExit that ``fail`` returns for the error message."""
    plain = sys.stdout
    if not isinstance(plain, io.TextIOWrapper):
        yield
        return
    plain.flush()
    # On the same open file: libraries ask `sys.__stdout__` for the size of the terminal.
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
        # Python would write the rest of the buffer again at exit.
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
    return "".join(_SUBSTITUTES.get(it) or _escaped(it) for it in found), error.end


def _escaped(character: str) -> str:
    """The JSON escape: two code units for a character above U+FFFF."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
