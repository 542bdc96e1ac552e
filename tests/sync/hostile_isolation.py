"""Two engines in one process, one with a hostile remote: ``python -m tests.sync.hostile_isolation
PORT SECONDS [QUIET]`` prints, as JSON, how long pods of the other took to reach their remote, in
``QUIET`` seconds before the hostile remote is joined and ``SECONDS`` after that, the memory of the
process before and at its peak, and the CPU time of the longest callback of the event loop. The
process also simulates the other API servers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sync.cache import store_writer
from tests.fakeapi import FakeApi
from tests.sync.engine_harness import EngineHarness
from tests.sync.loop_steps import LoopSteps

#: Seconds between two pods.
EACH = 0.1
#: Bytes of the objects of the hostile remote that are kept: less than usual, so that some seconds
#: reach the limit.
CACHE_LIMIT = 128 * 2**20


def _resident() -> float:
    """MiB that the process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure(port: int, seconds: float, quiet_seconds: float) -> dict[str, Any]:
    """The latencies of the pods, in seconds, and the memory in MiB."""
    steps = LoopSteps()
    async with FakeApi() as home, FakeApi() as remote, FakeApi() as other_home:
        hostile = SimpleNamespace(url=f"http://127.0.0.1:{port}", token="t")
        victim = EngineHarness(other_home, cast("FakeApi", hostile))
        async with EngineHarness(home, remote) as good:
            await good.start()
            good.pod("warm")
            await good.settle()
            quiet = await _latencies(good, "quiet", quiet_seconds)
            before, peak = _resident(), 0.0
            await victim.start(settle=False)
            with steps.measured():
                work = asyncio.create_task(_latencies(good, "busy", seconds))
                while not work.done():
                    peak = max(peak, _resident())
                    await asyncio.sleep(0.02)
            rejected = victim.engine.remote_pods.client.limits.rejected
            victim.assert_running()
            result = {
                "quiet": quiet,
                "busy": work.result(),
                "before": before,
                "peak": max(peak, _resident()),
                "rejected": dict(rejected),
                "longest": steps.longest,
                "longest_what": steps.what,
            }
            await victim.stop()
    return result


async def _latencies(harness: EngineHarness, name: str, seconds: float) -> list[float]:
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        pod = f"{name}-{len(found)}"
        harness.pod(pod)
        await harness.remote.until(partial(harness.remote_pod, pod), timeout=60)
        found.append(time.monotonic() - started)
        await asyncio.sleep(EACH)
    return found


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    setattr(store_writer, "CACHE_LIMIT", CACHE_LIMIT)  # noqa: B010  # imported there
    _, port_text, *durations = sys.argv
    seconds, quiet_seconds = map(float, [*durations, "1"][:2])
    print(json.dumps(asyncio.run(measure(int(port_text), seconds, quiet_seconds))))
