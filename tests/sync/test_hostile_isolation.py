"""A process with two remotes, one of which is hostile, serves the other one, within its memory."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE

from sync.kube import response_limits
from tests.sync import hostile_isolation

MIB = 2**20
SECONDS = 6
#: MiB: the objects that are kept, and what `LARGE_BODIES` bodies need, in JSON and decoded.
MOST = (
    hostile_isolation.CACHE_LIMIT
    + response_limits.LARGE_BODIES
    * (2 * response_limits.BODY_LIMIT + response_limits.DECODED_LIMIT)
) / MIB


async def test_hostile_remote_takes_neither_memory_nor_time_of_another() -> None:
    """The latency is far above the usual one, for a busy machine, and far below a timeout."""
    seed = random.SystemRandom().randrange(10**6)
    hostile = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sync.hostile_cluster", str(seed), stdin=PIPE, stdout=PIPE
    )
    try:
        assert hostile.stdout is not None
        port = (await hostile.stdout.readline()).decode().strip()
        bridge = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.sync.hostile_isolation", port, str(SECONDS)),
            stdout=PIPE,
        )
        async with asyncio.timeout(90):
            output, _ = await bridge.communicate()
    finally:
        hostile.kill()
        await hostile.wait()
    assert bridge.returncode == 0, f"seed {seed}"
    result = json.loads(output)
    latencies = sorted(result["busy"])
    assert latencies[len(latencies) // 2] < 1, f"seed {seed}: {latencies}"
    assert latencies[-1] < 5, f"seed {seed}: {latencies}"
    assert result["peak"] - result["before"] < MOST, f"seed {seed}: {result}"
    assert sum(result["rejected"].values()), f"seed {seed}: the server was not hostile"
