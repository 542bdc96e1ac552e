"""The last warnings and errors of each join, with counts and without tracebacks."""

from __future__ import annotations

import asyncio
import logging

from bridge.observability import recent_errors
from bridge.observability.recent_errors import RecentErrors

log = logging.getLogger("bridge.test")


def messages(of: RecentErrors) -> list[str]:
    return [it["message"] for it in of.as_list()]


async def test_each_join_has_its_own_errors() -> None:
    both = RecentErrors(), RecentErrors()

    async def work(of: RecentErrors, name: str) -> None:
        with of.collect():
            async with asyncio.TaskGroup() as group:
                group.create_task(fails(name))
            asyncio.get_running_loop().call_soon(log.error, "%s calls back", name)
            await asyncio.sleep(0)

    async def fails(name: str) -> None:
        log.warning("%s fails", name)
        log.info("%s goes on", name)

    log.error("without a node")
    await asyncio.gather(work(both[0], "one"), work(both[1], "two"))
    assert messages(both[0]) == ["one calls back", "one fails"]
    assert messages(both[1]) == ["two calls back", "two fails"]
    assert [it["count"] for of in both for it in of.as_list()] == [1, 1, 1, 1]


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


def test_traceback_is_not_kept() -> None:
    errors = RecentErrors()
    with errors.collect():
        log.error("it failed", exc_info=ValueError("what an object holds"))
    assert messages(errors) == ["it failed"]
