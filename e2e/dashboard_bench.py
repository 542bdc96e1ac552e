"""Measures the dashboard with a large fleet: the page in a real browser, and the process behind it.

    python -m e2e.dashboard_bench [--remotes 20] [--pods 5000] [--changes 100]

`bridge dashboard` runs as a process of its own against a fake API server, and a headless Chromium
shows its page. While so many pods change per second, the page is left alone, and then the table is
scrolled from end to end. Prints JSON: times between frames, long tasks (of more than 50 ms, as
browsers define them) and the processor time of the page's main thread; processor time and memory of
`bridge dashboard`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from e2e import browser
from e2e.bridge_process import BRIDGE
from e2e.browser import Browser
from e2e.dashboard_pictures import WIDE, shown
from sync.kube.api_resources import PODS
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write

#: Seconds that the page is left alone, and of scrolling.
IDLE, SCROLL = 20.0, 10.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S+/")
_TICKS = os.sysconf("SC_CLK_TCK")

#: Records frames and long tasks for some seconds; scrolls once through the table if it is to.
_RECORD = """
new Promise((done) => {
  const scroller = document.getElementById('scroller');
  const frames = [];
  const tasks = [];
  const observer = new PerformanceObserver((list) =>
    tasks.push(...list.getEntries().map((it) => it.duration)));
  observer.observe({ entryTypes: ['longtask'] });
  const begin = performance.now();
  let last = begin;
  const step = (now) => {
    frames.push(now - last);
    last = now;
    if (SCROLLS) scroller.scrollTop = scroller.scrollHeight * (now - begin) / MILLISECONDS;
    if (now - begin < MILLISECONDS) requestAnimationFrame(step);
    else setTimeout(() => done({ frames: frames.slice(1), tasks }), 200);
  };
  requestAnimationFrame(step);
})
"""


@asynccontextmanager
async def _dashboard(api: FakeApi, folder: Path) -> AsyncIterator[tuple[int, str]]:
    """Runs `bridge dashboard`; its process and address."""
    content = kubeconfig(api.url, user={"token": "none"}, context="production")
    file = write(folder / "home.yaml", content)
    process = await asyncio.create_subprocess_exec(
        *(BRIDGE, "dashboard", "--no-open", "--home-kubeconfig", file),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while (found := _ADDRESS.search((await process.stderr.readline()).decode())) is None:
                assert process.returncode is None
        yield process.pid, found[0]
    finally:
        process.terminate()
        await process.communicate()


def _processor_seconds(pid: int) -> float:
    """The processor time of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int, what: str) -> float:
    """``VmRSS`` or ``VmHWM`` in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", text)
    return round(int(found[1]) / 1000, 1) if found else 0.0


async def _change(api: FakeApi, pods: int, each_second: float) -> None:
    """Changes a pod after the other, until cancelled."""
    begin, number = time.monotonic(), 0
    while True:
        meta = example_fleet.pod(number % pods, "")["metadata"]
        status: dict[str, Any] = {"status": {"reason": f"Change{number}"}}
        api.update(PODS, meta["name"], status, meta["namespace"])
        number += 1
        await asyncio.sleep(max(0.0, begin + number / each_second - time.monotonic()))


async def _record(page: Browser, pid: int, seconds: float, *, scrolls: bool) -> dict[str, Any]:
    script = _RECORD.replace("SCROLLS", "true" if scrolls else "false")
    begin, page_before = time.monotonic(), await page.processor_seconds()
    before = _processor_seconds(pid)
    found = await page.evaluate(script.replace("MILLISECONDS", str(seconds * 1000)))
    elapsed = time.monotonic() - begin
    page_seconds = await page.processor_seconds() - page_before
    frames = sorted(found["frames"])
    return {
        "frames": len(frames),
        "framesPerSecond": round(len(frames) / seconds, 1),
        "medianMsBetweenFrames": round(statistics.median(frames), 1),
        "p99MsBetweenFrames": round(frames[int(len(frames) * 0.99)], 1),
        "longestMsBetweenFrames": round(frames[-1], 1),
        "longTasks": len(found["tasks"]),
        "longestTaskMs": round(max(found["tasks"], default=0), 1),
        "pageProcessorPercent": round(100 * page_seconds / elapsed, 1),
        "pageProcessorMsPerFrame": round(1000 * page_seconds / len(frames), 2),
        "dashboardProcessorPercent": round(100 * (_processor_seconds(pid) - before) / elapsed, 1),
        "dashboardMemoryMB": _memory(pid, "VmRSS"),
    }


async def measure(remotes: int, pods: int, changes: float) -> dict[str, Any]:
    """All figures."""
    async with FakeApi() as api:
        example_fleet.put_fleet(api, remotes=remotes, pods=pods)
        with tempfile.TemporaryDirectory() as folder:
            async with _dashboard(api, Path(folder)) as (pid, url), browser.opened() as page:
                await page.resize(*WIDE)
                begin = time.monotonic()
                await shown(page, url, remotes=remotes, pods=pods)
                found: dict[str, Any] = {
                    "remotes": remotes,
                    "pods": pods,
                    "changesPerSecond": changes,
                    "secondsUntilShown": round(time.monotonic() - begin, 2),
                }
                found["quiet"] = await _record(page, pid, IDLE, scrolls=False)
                task = asyncio.create_task(_change(api, pods, changes))
                try:
                    found["changing"] = await _record(page, pid, IDLE, scrolls=False)
                    found["scrolling"] = await _record(page, pid, SCROLL, scrolls=True)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                found["dashboardPeakMemoryMB"] = _memory(pid, "VmHWM")
                return found


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m e2e.dashboard_bench", description=__doc__)
    parser.add_argument("--remotes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--changes", type=float, default=100.0, help="changed pods per second")
    options = parser.parse_args()
    found = asyncio.run(measure(options.remotes, options.pods, options.changes))
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
