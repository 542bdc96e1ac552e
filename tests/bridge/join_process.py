"""`bridge join` in a child process, between two fake clusters."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE

#: Shortened bounds of a stop in the process, in seconds.
BOUND, STOP = 0.3, 6.0
#: Seconds for a start, and for a stop.
START, PATIENCE = 40.0, 20.0
_SCRIPT = f"""
EXTRA
from bridge.app import kubelet_api_setup, replica_handover
from bridge.cli import main, run_until_signal
replica_handover.RELEASE_SECONDS = kubelet_api_setup.STREAMS_SECONDS = {BOUND}
run_until_signal.STOP_SECONDS = {STOP}
main()
"""


class JoinProcess:
    """A `bridge join` process and its stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.stderr = ""

    async def wait_for_output(self, words: str) -> None:
        """Waits for this text on stderr."""
        assert self._process.stderr is not None
        async with asyncio.timeout(START):
            while words not in self.stderr:
                chunk = await self._process.stderr.read(4096)
                assert chunk, f"it ended: {self.stderr}"
                self.stderr += chunk.decode()

    @property
    def port(self) -> int:
        """The port of the kubelet API."""
        line = next(it for it in self.stderr.splitlines() if "kubelet API listens on" in it)
        return int(line.rpartition(":")[2])

    def resident_bytes(self, *, peak: bool = False) -> int:
        """Resident bytes now, or their peak since `reset_peak`."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"^Vm{'HWM' if peak else 'RSS'}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def reset_peak(self) -> None:
        """Resets the peak."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5", encoding="utf-8")

    async def wait_for_exit(self) -> int:
        """Waits until the process exits by itself; returns the exit code."""
        async with asyncio.timeout(START):
            _, rest = await self._process.communicate()
        self.stderr += rest.decode()
        return self._process.returncode or 0

    async def stop(self) -> tuple[int, float]:
        """Sends SIGTERM; returns the exit code and the seconds until the exit."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            _, rest = await self._process.communicate()
        self.stderr += rest.decode()
        return self._process.returncode or 0, time.monotonic() - began


@asynccontextmanager
async def join_process(
    two: Clusters,
    *,
    extra: str = "",
    address: str = "127.0.0.1",
    home_name: str = "h",
    options: Sequence[str] = (),
) -> AsyncIterator[JoinProcess]:
    """Runs the process while the block runs. ``extra`` is Python code that the process runs first;
    without ``address`` the process determines one. ``options`` are additional options."""
    command = ["join", "--kubeconfig", str(two.settings.remote.path), "--name", NODE]
    command += ["--home-kubeconfig", str(two.settings.home.path), "--home-name", home_name]
    command += ["--port", "0", *(["--address", address] if address else [])]
    command += options
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRIPT.replace("EXTRA", extra), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield JoinProcess(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
