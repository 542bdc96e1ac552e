"""Callbacks that cannot end their caller, and timeouts that are ended early."""

from __future__ import annotations

import asyncio

import pytest

from sync.base.safe_callbacks import Callbacks, expire_now


def test_every_handler_is_called_in_order_though_one_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []
    defects: list[bool] = []
    callbacks: Callbacks[str] = Callbacks("a test", on_defect=lambda: defects.append(True))

    def broken(text: str) -> None:
        seen.append(f"broken {text}")
        raise KeyError(text)

    callbacks.add(lambda text: seen.append(f"first {text}"))
    callbacks.add(broken)
    callbacks.add(lambda text: seen.append(f"last {text}"))
    callbacks("a")
    callbacks("b")
    assert seen == ["first a", "broken a", "last a", "first b", "broken b", "last b"]
    assert len(defects) == 2
    assert [it.levelname for it in caplog.records].count("ERROR") == 1


def test_removed_handler_is_not_called_and_may_be_removed_twice() -> None:
    seen: list[int] = []
    callbacks: Callbacks[[]] = Callbacks("a test")
    remove = callbacks.add(lambda: seen.append(1))
    remove()
    remove()
    callbacks()
    assert seen == []


async def test_expire_now_ends_a_block_once_however_often_it_is_called() -> None:
    expire_now(None)
    limit = asyncio.timeout(60)

    async def block() -> None:
        async with limit:
            expire_now(limit)
            await asyncio.sleep(0)
            expire_now(limit)
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await block()
    expire_now(limit)
    assert limit.expired()


async def test_expire_now_after_the_block_has_ended_does_nothing() -> None:
    async with asyncio.timeout(60) as limit:
        await asyncio.sleep(0)
    expire_now(limit)
    assert not limit.expired()
