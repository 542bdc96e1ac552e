"""The memory budget of a server's requests."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from aiohttp import web

from bridge.net.memory_budget import MemoryBudget


def request() -> Any:
    """A request with a transport that records calls."""
    return cast("web.BaseRequest", MagicMock())


def test_largest_request_is_ended_beyond_the_limit() -> None:
    budget = MemoryBudget(100)
    small, large, last = request(), request(), request()
    with budget.share(small) as one, budget.share(large) as two, budget.share(last) as three:
        one.hold(20)
        two.hold(50)
        three.hold(30)
        three.hold(40)
        assert not small.transport.abort.called
        assert large.transport.abort.called
        with pytest.raises(ConnectionAbortedError):
            two.hold(60)
        three.hold(80)
        with pytest.raises(ConnectionAbortedError):
            three.hold(81)
        assert last.transport.abort.called
        one.hold(100)


def test_finished_requests_hold_nothing() -> None:
    budget = MemoryBudget(100)
    for _ in range(5):
        one = request()
        with budget.share(one) as share:
            share.hold(100)
        assert not one.transport.abort.called


def test_request_without_a_connection_can_be_ended() -> None:
    gone = request()
    gone.transport = None
    with MemoryBudget(1).share(gone) as share, pytest.raises(ConnectionAbortedError):
        share.hold(2)
