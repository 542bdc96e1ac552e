"""A process with two remotes, one of which is hostile, serves the other one, within its memory."""

from __future__ import annotations

import random

import pytest

from tests.sync.hostile_process import BODIES_MIB, KEPT_MIB, run_isolation

pytestmark = pytest.mark.long

SECONDS = 6
#: CPU seconds of one callback of the event loop: one of 0.7 once delayed all other remotes.
LONGEST_STEP = 0.2


#: Runs: all responses of one can be slow ones, of which nothing is rejected in its time.
ATTEMPTS = 5


async def test_hostile_remote_takes_neither_memory_nor_time_of_another() -> None:
    """The latency is far above the usual one, for a busy machine, and far below a timeout. The
    longest step is CPU time: parsing a body of the largest size is one."""
    seeds = random.sample(range(10**6), ATTEMPTS)
    for seed in seeds:
        result = await run_isolation(seed, seconds=SECONDS)
        latencies = sorted(result.busy)
        assert latencies[len(latencies) // 2] < 1, f"seed {seed}: {latencies}"
        assert latencies[-1] < 5, f"seed {seed}: {latencies}"
        assert result.longest < LONGEST_STEP, f"seed {seed}: {result.longest_what}"
        assert result.peak - result.before < KEPT_MIB + BODIES_MIB, f"seed {seed}: {result}"
        if sum(result.rejected.values()):
            break
    else:
        pytest.fail(f"seeds {seeds}: the server was not hostile")
