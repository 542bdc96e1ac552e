"""Shows the progress of a step: how much is done, the rate, and the time that is left.

On a terminal the line is renewed in place; anywhere else there is a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from bridge.base.progress_lines import Waiting

#: Seconds between two lines on a terminal, and elsewhere.
REDRAW_SECONDS, REPORT_SECONDS = 0.5, 30.0
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


class Meter:
    """The progress of one step after another. ``notify`` takes lines if standard error is no
    terminal."""

    def __init__(
        self, notify: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.notify = notify
        self._clock = clock
        self._draws = sys.stderr.isatty()
        self._interval = REDRAW_SECONDS if self._draws else REPORT_SECONDS
        self._name = ""
        self._total = self._done = 0
        self._began = self._shown = 0.0

    def begin(self, name: str, total: int) -> None:
        """Begins a step of so many bytes."""
        self._name, self._total, self._done = name, total, 0
        self._began = self._shown = self._clock()

    def add(self, count: int) -> None:
        """Counts bytes that are done."""
        self._done += count
        now = self._clock()
        if self._name and now - self._shown >= self._interval:
            self._shown = now
            self._show(progress_text(self._name, self._done, self._total, now - self._began))

    def end(self) -> None:
        """Ends the step."""
        self._name = ""
        if self._draws:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def _show(self, text: str) -> None:
        if self._draws:
            sys.stderr.write(f"\r\033[K… {text}")
            sys.stderr.flush()
        else:
            self.notify(Waiting(text))


def progress_text(name: str, done: int, total: int, seconds: float) -> str:
    """``copying: 412 MB of 1.0 GB (41%), 98 MB/s, 6 s left``."""
    done = min(done, total)
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{name}: {format_size(done)} of {format_size(total)}"
    if total:
        text += f" ({done * 100 // total}%)"
    if rate > 0:
        text += f", {format_size(rate)}/s, {_format_seconds((total - done) / rate)} left"
    return text


def format_size(size: float) -> str:
    """Bytes in the largest decimal unit that leaves a whole number or more."""
    index = 0
    while size >= 1000 and index < len(_UNITS) - 1:
        size /= 1000
        index += 1
    return f"{size:.1f} {_UNITS[index]}" if index and size < 100 else f"{size:.0f} {_UNITS[index]}"


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
