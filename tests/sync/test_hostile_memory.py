"""A process whose remote is hostile continues, within its memory."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import pytest

from sync.kube import response_limits
from tests.sync import hostile_memory

pytestmark = pytest.mark.long

SECONDS = 6
#: Seconds that both processes take in addition to the measurement, on a busy machine.
SPARE_SECONDS = 90.0
#: MiB that a hostile remote may take in addition to the objects that are kept of it: what the
#: bodies need that are processed at the same time, as JSON and decoded.
BODIES_MIB = (
    response_limits.large_bodies()
    * (2 * response_limits.BODY_LIMIT + response_limits.DECODED_LIMIT)
    / 2**20
)
#: MiB of the objects that are kept, whose JSON is mostly text.
KEPT_MIB = hostile_memory.CACHE_LIMIT / 2**20
#: CPU seconds of one callback of the event loop: decoding the densest body takes half of it.
LONGEST_STEP = 2.0
#: Runs: all responses of one can be slow ones, of which nothing is rejected in its time.
ATTEMPTS = 5


async def _start(module: str, *args: str) -> Process:
    command = (sys.executable, "-m", module, *args)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


async def _run(seed: int) -> dict[str, Any]:
    """The output of `tests.sync.hostile_memory` with a `tests.sync.hostile_cluster`."""
    hostile = await _start("tests.sync.hostile_cluster", str(seed))
    try:
        assert hostile.stdout is not None
        port = (await hostile.stdout.readline()).decode().strip()
        bridge = await _start("tests.sync.hostile_memory", port, str(SECONDS))
        try:
            async with asyncio.timeout(SECONDS + SPARE_SECONDS):
                output, _ = await bridge.communicate()
        finally:
            if bridge.returncode is None:
                bridge.kill()
                await bridge.wait()
    finally:
        hostile.kill()
        await hostile.wait()
    assert bridge.returncode == 0, f"seed {seed}"
    found: dict[str, Any] = json.loads(output)
    return found


async def test_hostile_remote_takes_bounded_memory() -> None:
    seeds = random.sample(range(10**6), ATTEMPTS)
    for seed in seeds:
        found = await _run(seed)
        assert found["longest"] < LONGEST_STEP, f"seed {seed}: {found['longest_what']}"
        assert found["peak"] - found["before"] < KEPT_MIB + BODIES_MIB, f"seed {seed}: {found}"
        if sum(found["rejected"].values()):
            break
    else:
        pytest.fail(f"seeds {seeds}: the server was not hostile")
