"""Questions to the user of a running bridge, on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

#: Seconds for a process to start and to answer.
PATIENCE = 40.0
#: Asks, and shows that the event loop goes on meanwhile.
_SCRIPT = """
import asyncio, sys
from bridge.cli.terminal_question import ask, is_interactive

async def main():
    assert is_interactive()
    MORE
    asked = asyncio.create_task(ask("Approve it now?"))
    await asyncio.sleep(0.05)
    print("the loop goes on", file=sys.stderr, flush=True)
    print("answer:", await asked, file=sys.stderr, flush=True)

asyncio.run(main())
"""


class Terminal:
    """The user's end of the terminal of a process."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.text = ""

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            with contextlib.suppress(OSError):
                self.text += os.read(self._file, 4096).decode()

    def type(self, keys: str) -> None:
        os.write(self._file, keys.encode())


@contextlib.contextmanager
def asking(more: str = "", *, background: bool = False) -> Iterator[Terminal]:
    """The script as a process of a terminal."""
    ours, theirs = pty.openpty()
    script = _SCRIPT.replace("MORE", more or "pass")
    command = [sys.executable, "-c", script]
    if background:  # by job control, as of a shell in which a user writes "bridge join &"
        command = ["sh", "-mc", '"$@" & wait', "sh", *command]
    process = subprocess.Popen(
        ("setsid", "--ctty", *command), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("\x04", False)],
    ids=["y", "Yes", "n", "return", "end of input"],
)
def test_only_yes_is_consent_and_the_event_loop_is_not_blocked(keys: str, answer: bool) -> None:
    with asking() as terminal:
        terminal.wait_for("Approve it now? [y/N]: ")
        terminal.wait_for("the loop goes on")
        terminal.type(keys)
        terminal.wait_for(f"answer: {answer}")


def test_withdrawn_question_is_followed_by_the_next() -> None:
    more = (
        'first = asyncio.create_task(ask("The first?"))\n'
        "    await asyncio.sleep(0.05)\n"
        "    first.cancel()"
    )
    with asking(more) as terminal:
        terminal.wait_for("The first? [y/N]: (no longer needed)")
        terminal.wait_for("Approve it now?")
        terminal.type("y\n")
        terminal.wait_for("answer: True")


def test_background_process_gets_no_answer_and_is_not_stopped() -> None:
    with asking(background=True) as terminal:
        terminal.wait_for("answer: False")
    assert "Approve it now?" not in terminal.text
