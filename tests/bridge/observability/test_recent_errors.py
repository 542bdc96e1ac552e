"""The last warnings and errors, with counts and without tracebacks."""

from __future__ import annotations

import logging
import tracemalloc

from bridge.observability import recent_errors
from bridge.observability.recent_errors import RecentErrors

log = logging.getLogger("bridge.test")


def messages(of: RecentErrors) -> list[str]:
    return [it["message"] for it in of.as_list()]


def test_warnings_are_collected_while_the_block_runs() -> None:
    errors = RecentErrors()
    log.error("before")
    with errors.collect():
        log.warning("it fails")
        log.info("it goes on")
        log.error("it fails again")
    log.error("after")
    assert messages(errors) == ["it fails again", "it fails"]
    assert [entry["count"] for entry in errors.as_list()] == [1, 1]


def test_repeated_message_increases_the_count() -> None:
    errors = RecentErrors()
    errors.add("warning", "a", 0)
    errors.add("error", "b", 1)
    errors.add("warning", "a", 2)
    assert errors.as_list() == [
        {
            "level": "warning",
            "message": "a",
            "count": 2,
            "first": "1970-01-01T00:00:00Z",
            "last": "1970-01-01T00:00:02Z",
        },
        {
            "level": "error",
            "message": "b",
            "count": 1,
            "first": "1970-01-01T00:00:01Z",
            "last": "1970-01-01T00:00:01Z",
        },
    ]


def test_entries_are_bounded() -> None:
    errors = RecentErrors()
    for number in range(1000):
        errors.add("error", f"{number} " + "x" * 10_000, number)
    texts = messages(errors)
    assert len(texts) == recent_errors.MAX_ENTRIES
    assert texts[0].startswith("999 ")
    assert max(map(len, texts)) == recent_errors.MAX_LENGTH


def test_long_message_takes_no_memory_for_its_words() -> None:
    errors, message = RecentErrors(), "word " * 500_000
    tracemalloc.start()
    try:
        errors.add("warning", message, 0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert messages(errors) == [message[: recent_errors.MAX_LENGTH]]
    assert most < 100_000


def test_traceback_is_not_kept() -> None:
    errors = RecentErrors()
    with errors.collect():
        log.error("it failed", exc_info=ValueError("what an object holds"))
    assert messages(errors) == ["it failed"]
