"""A process with two remotes, one of which is hostile, serves the other one, within its memory."""

from __future__ import annotations

import random

from tests.sync.hostile_process import BODIES_MIB, KEPT_MIB, run_isolation

SECONDS = 6


async def test_hostile_remote_takes_neither_memory_nor_time_of_another() -> None:
    """The latency is far above the usual one, for a busy machine, and far below a timeout."""
    seed = random.SystemRandom().randrange(10**6)
    result = await run_isolation(seed, seconds=SECONDS)
    latencies = sorted(result.busy)
    assert latencies[len(latencies) // 2] < 1, f"seed {seed}: {latencies}"
    assert latencies[-1] < 5, f"seed {seed}: {latencies}"
    assert result.peak - result.before < KEPT_MIB + BODIES_MIB, f"seed {seed}: {result}"
    assert sum(result.rejected.values()), f"seed {seed}: the server was not hostile"
