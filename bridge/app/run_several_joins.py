"""Runs several joins in one process (`bridge run`).

Each join has its own clients, caches, lease, Node and kubelet API, and fails alone: its error is
logged with its name, and it is started again after increasing delays, up to `RETRY_CAP`. A join
whose node was removed by `bridge leave` is not started again. All joins share the event loop and
the memory of the process. `run_joins` ends when it is stopped, or when no join remains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bridge.app import join_lifecycle
from bridge.base.command_error import find_user_error
from bridge.base.consent import NO_CONSENT, Consent
from bridge.base.join_settings import Part
from bridge.election.elector import NodeLeft
from sync.base import exception_summary
from sync.base.backoff import Backoff
from sync.runtime.log_fields import NODE

log = logging.getLogger(__name__)

#: First and longest delay in seconds before a failed join is started again.
RETRY_FIRST, RETRY_CAP = 2.0, 60.0
#: Seconds after which a running join resets its delay.
STABLE_SECONDS = 60.0


async def run_joins(
    parts: Sequence[Part],
    *,
    notify: Callable[[str], None],
    stop: asyncio.Event,
    consent: Consent = NO_CONSENT,
) -> None:
    """Runs all joins until ``stop``. Raises NodeLeft when no join remains."""
    async with join_lifecycle.cancel_when_set(stop), join_lifecycle.releasing_memory():
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(_run_join(part, notify, consent), name=f"join-{part.label}")
        raise NodeLeft("no node remains to serve: `bridge leave` removed all of them")


async def _run_join(part: Part, notify: Callable[[str], None], consent: Consent) -> None:
    """Runs one join and restarts it after failures. Raises nothing."""
    loop, backoff = asyncio.get_running_loop(), Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
    while True:
        NODE.set(part.label)
        began = loop.time()
        try:
            await join_lifecycle.serve_node(part.settings, notify, consent)
        except Exception as error:  # noqa: BLE001  # the other joins continue
            reason = find_user_error(error)
            if isinstance(reason, NodeLeft):
                log.error("%s", reason)  # noqa: TRY400
                return
            if loop.time() - began > STABLE_SECONDS:
                backoff.reset()
            wait = backoff.next()
            message = str(reason)
            if reason is None:
                defect = exception_summary.traced_summary(exception_summary.first_leaf(error))
                message = f"a defect in the bridge; please report it: {defect}"
            log.error("%s (retry in %.0f s)", message, wait)  # noqa: TRY400
        await asyncio.sleep(wait)
