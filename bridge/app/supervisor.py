"""Several joins in one process: `bridge run`.

Each has its own clients, caches, lease, Node and kubelet API, and ends for itself: what one raises
is told with its name, and it is begun again after growing waits, up to `RETRY_CAP`; the others do
not notice. One whose node `bridge leave` has taken away is not begun again. All share the event
loop and the process' memory. `run` ends when it is told to, or when no join is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bridge.app import join
from bridge.base.errors import find_user_error
from bridge.base.settings import Part
from bridge.election.elector import NodeLeft
from sync.base import exceptions
from sync.base.backoff import Backoff
from sync.runtime.log_fields import NODE

log = logging.getLogger(__name__)

#: The first wait before a join that failed is begun again, and the longest, in seconds.
RETRY_FIRST, RETRY_CAP = 2.0, 60.0
#: A join that lived for so many seconds had begun well: its next failure is its first.
WELL = 60.0


async def run_joins(
    parts: Sequence[Part], *, report: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Joins all, until ``stop``. Raises NodeLeft where no join is left."""
    async with join.cancel_when_set(stop), join.giving_back():
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(_kept(part, report), name=f"join-{part.label}")
        raise NodeLeft("no node is left to serve: all were removed by `bridge leave`")


async def _kept(part: Part, told: Callable[[str], None]) -> None:
    """One join, again and again. Raises nothing."""
    loop, backoff = asyncio.get_running_loop(), Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
    while True:
        NODE.set(part.label)
        began = loop.time()
        try:
            await join.serve_node(part.settings, told)
        except Exception as error:  # noqa: BLE001  # the others go on
            reason = find_user_error(error)
            if isinstance(reason, NodeLeft):
                log.error("%s", reason)  # noqa: TRY400
                return
            if loop.time() - began > WELL:
                backoff.reset()
            wait = backoff.next()
            said = str(reason) if reason is not None else _defect(error)
            log.error("%s (again in %.0f s)", said, wait)  # noqa: TRY400
        await asyncio.sleep(wait)


def _defect(error: Exception) -> str:
    first = exceptions.first_leaf(error)
    return f"a defect in the bridge; please report it: {exceptions.traced_summary(first)}"
