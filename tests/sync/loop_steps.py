"""How the work of several remotes divides the event loop of one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import patch

from sync.base.background_task import background_task
from sync.base.loop_share import ACTIVE, LoopShare


@asynccontextmanager
async def neighbour() -> AsyncIterator[None]:
    """Another remote of the process, which uses the loop now and then."""
    share = LoopShare(is_limited=True)

    async def work() -> None:
        while True:
            await share.step().finish()
            await asyncio.sleep(ACTIVE / 20)

    async with background_task(work(), name="neighbour"):
        await asyncio.sleep(0)
        yield


class LoopSteps:
    """The callbacks of all loops of this thread while `measured`: how long they keep the loop from
    others, in CPU time of the thread. Other processes of the machine do not count."""

    def __init__(self) -> None:
        self.longest = 0.0
        """CPU seconds of the longest callback."""
        self.what = ""
        """That callback."""

    def reset(self) -> None:
        self.longest, self.what = 0.0, ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        run = vars(asyncio.Handle)["_run"]

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.longest:
                self.longest, self.what = took, repr(handle)

        with patch.object(asyncio.Handle, "_run", timed):
            yield
