"""What a bridge costs that has nothing to do, and what a restart of it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from e2e.bench.pods import ways
from e2e.bench.pods.accounts import account
from e2e.bench.pods.load import Shape
from e2e.bench.pods.requests import Requests
from e2e.bench.pods.ways import Pair, Runner, Say

#: Seconds after a burst in which its last echoes are gone, and after a restart.
SETTLE = 15.0


async def idle(pair: Pair, shape: Shape, *, seconds: float, say: Say) -> dict[str, Any]:
    """Processor time and requests of a bridge whose pods all run and do not change."""
    async with _at_rest(pair, shape, say) as runner:
        say(f"all Running; {seconds:.0f} s of nothing")
        counts, before = _counts(pair), account(runner.pid)
        await asyncio.sleep(seconds)
        after = account(runner.pid)
        asked = {side: dict(count.count()) for side, count in counts.items()}
    return {
        "benchmark": "idle",
        "pods": shape.pods,
        "seconds": seconds,
        "cpu_percent": (after.cpu - before.cpu) / seconds * 100,
        "resident_mb": after.resident,
        "requests": asked,
    }


async def restart(pair: Pair, shape: Shape, *, say: Say) -> dict[str, Any]:
    """Time, processor time and writes of a join that finds all pods running."""
    async with _at_rest(pair, shape, say) as runner:
        say("all Running; joining again")
        counts = _counts(pair)
        seconds = await asyncio.to_thread(runner.restart)
        await asyncio.sleep(SETTLE)
        after = account(runner.pid)
        written = {side: dict(count.writes()) for side, count in counts.items()}
    return {
        "benchmark": "restart",
        "pods": shape.pods,
        "joined_seconds": seconds,
        "cpu_seconds": after.cpu,
        "peak_mb": after.peak,
        "writes": written,
    }


@asynccontextmanager
async def _at_rest(pair: Pair, shape: Shape, say: Say) -> AsyncIterator[Runner]:
    """A bridge whose pods all run, and have been left alone for a while; they are deleted then."""
    async with ways.running(ways.BRIDGE, pair, shape) as (runner, crowd), crowd.watched():
        assert runner is not None
        say(f"{shape.pods} pods")
        await crowd.run()
        await asyncio.sleep(SETTLE)
        yield runner
        await crowd.delete()


def _counts(pair: Pair) -> dict[str, Requests]:
    logs = {"home": pair.home.audit_log, "remote": pair.remote.audit_log}
    return {side: Requests(log) for side, log in logs.items() if log is not None}
