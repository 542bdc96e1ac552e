"""Runs `tests.sync.hostile_isolation` against `tests.sync.hostile_cluster`, each as a process."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from typing import Any

from sync.kube import response_limits
from tests.sync import hostile_isolation

#: MiB that a hostile remote may take beside the objects that are kept of it: what the bodies need
#: that are processed at the same time, in JSON and decoded.
BODIES_MIB = (
    response_limits.LARGE_BODIES
    * (2 * response_limits.BODY_LIMIT + response_limits.DECODED_LIMIT)
    / 2**20
)
#: MiB of the objects that are kept.
KEPT_MIB = hostile_isolation.CACHE_LIMIT / 2**20
#: Seconds that both processes take beside the measurement, on a machine that is busy.
SPARE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Isolation:
    """One measurement: latencies in seconds, memory in MiB."""

    quiet: list[float]
    """The latencies of the other remote's pods before the hostile one was joined."""
    busy: list[float]
    before: float
    peak: float
    rejected: dict[str, int]
    """Data of the hostile remote that the process rejected, by the reason."""
    longest: float
    """CPU seconds of the longest callback of the event loop beside the hostile remote."""
    longest_what: str
    """That callback."""


async def run_isolation(
    seed: int, *, seconds: float, quiet_seconds: float = 1.0, attack: str = ""
) -> Isolation:
    """One measurement, with one attack or with all. Raises RuntimeError if the process failed, and
    TimeoutError."""
    hostile = await _start("tests.sync.hostile_cluster", str(seed), attack)
    try:
        assert hostile.stdout is not None
        port = (await hostile.stdout.readline()).decode().strip()
        bridge = await _start(
            "tests.sync.hostile_isolation", port, str(seconds), str(quiet_seconds)
        )
        try:
            async with asyncio.timeout(seconds + quiet_seconds + SPARE_SECONDS):
                output, _ = await bridge.communicate()
        finally:
            if bridge.returncode is None:
                bridge.kill()
                await bridge.wait()
    finally:
        hostile.kill()
        await hostile.wait()
    if bridge.returncode:
        raise RuntimeError(f"the process failed (seed {seed}, attack {attack or 'all'})")
    found: dict[str, Any] = json.loads(output)
    return Isolation(**found)


async def _start(module: str, *args: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", module, *filter(None, args))
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
