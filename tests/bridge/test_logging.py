"""What a person sees of the log."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bridge.observability.logging import CHANGES, to_terminal

NAMES = ("", CHANGES, "asyncio", "sync.informer")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *, verbose: bool = False) -> Iterator[io.StringIO]:
    """Logs go to the text that it gives, until the end of the block."""
    loggers = [logging.getLogger(name) for name in NAMES]
    handlers, levels = logging.root.handlers[:], [logger.level for logger in loggers]
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    try:
        to_terminal(verbose=verbose)
        yield shown
    finally:
        logging.root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def without_clock(shown: io.StringIO) -> list[str]:
    """The lines, each of which begins with a time of day."""
    lines = shown.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines), lines
    return [line[9:] for line in lines]


def say() -> None:
    """One record of each kind."""
    logging.getLogger(CHANGES).info("pod %s: %s", "default/web", "Running")
    logging.getLogger(CHANGES).debug("how it came")
    logging.getLogger("sync.informer").debug("a detail")
    logging.getLogger("sync.informer").info("a step")
    logging.getLogger("sync.informer").warning("a trouble")
    logging.getLogger("asyncio").debug("the loop")


def test_changes_and_troubles_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        say()
    assert without_clock(shown) == ["pod default/web: Running", "warning: a trouble"]


def test_verbose_shows_the_rest_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, verbose=True) as shown:
        say()
    assert without_clock(shown) == [
        "pod default/web: Running",
        "debug: a detail",
        "info: a step",
        "warning: a trouble",
    ]


def test_a_defect_comes_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            logging.getLogger("sync.controller").exception("pods: %s failed", "default/web")
    first, *rest = shown.getvalue().splitlines()
    assert first[9:] == "error: pods: default/web failed"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1].startswith("ZeroDivisionError: ")


def test_what_was_set_up_before_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        to_terminal(verbose=False)
        logging.getLogger(CHANGES).info("once")
    assert without_clock(shown) == ["once"]
