"""An engine with a hostile remote: ``python -m tests.sync.hostile_memory PORT SECONDS`` prints, as
JSON, the memory of the process before the remote is joined and at its peak, the CPU time of the
longest callback of the event loop, and the data that was rejected. The process also simulates home.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sync.cache import cache_share
from tests.fakeapi import FakeApi
from tests.sync.engine_harness import EngineHarness
from tests.sync.loop_steps import LoopSteps

#: Bytes of the objects of the hostile remote that are kept: less than usual, so that some seconds
#: reach the limit.
CACHE_LIMIT = 128 * 2**20


def _resident() -> float:
    """MiB that the process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure(port: int, seconds: float) -> dict[str, Any]:
    """The memory in MiB, and the rest as in `tests.sync.test_hostile_memory`."""
    steps = LoopSteps()
    async with FakeApi() as home:
        hostile = SimpleNamespace(url=f"http://127.0.0.1:{port}", token="t")
        engine = EngineHarness(home, cast("FakeApi", hostile))
        before = peak = _resident()
        await engine.start(settle=False)
        with steps.measured():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                peak = max(peak, _resident())
                await asyncio.sleep(0.02)
        engine.assert_running()
        result = {
            "before": before,
            "peak": max(peak, _resident()),
            "rejected": dict(engine.engine.remote_pods.client.limits.rejected),
            "longest": steps.longest,
            "longest_what": steps.what,
        }
        await engine.stop()
    return result


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    setattr(cache_share, "CACHE_LIMIT", CACHE_LIMIT)  # noqa: B010  # imported there
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), float(sys.argv[2])))))
