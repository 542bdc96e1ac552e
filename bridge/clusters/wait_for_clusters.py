"""Retries an attempt to connect to both clusters while one of them is unreachable.

A supervised bridge (one with a health port) waits in its process: if it exited instead, its
supervisor would restart it at ever longer intervals (CrashLoopBackOff), and so minutes after the
remote is back. Only a transient failure is retried: no response, or a response of 429 or 5xx. All
else raises, such as a rejected credential, a missing permission or an untrusted certificate. An
API server that has just started also rejects what it will allow once it has loaded its RBAC rules:
within `RBAC_SYNC_SECONDS` after a transient failure every failure is retried.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from bridge.base.command_error import PreflightError
from sync.base.backoff import Backoff
from sync.kube.api_errors import ApiServerCertificateError, ServerError, Throttled, Unreachable

T = TypeVar("T")
log = logging.getLogger(__name__)

#: The first and the longest wait between two attempts, in seconds.
WAIT_FIRST, WAIT_CAP = 1.0, 10.0
#: Seconds for an API server to load its RBAC rules after its start.
RBAC_SYNC_SECONDS = 30.0
#: The end of a log line about such a wait; `bridge.install.rollout` looks for it in a pod's log.
WAITING_SUFFIX = "; this bridge waits for it"


@asynccontextmanager
async def retry_while_unreachable(
    attempt: Callable[[], AbstractAsyncContextManager[T]], *, on_wait: Callable[[str], None] | None
) -> AsyncIterator[T]:
    """Enters ``attempt()``, again after each transient failure. Raises PreflightError.

    ``on_wait`` gets the error before each wait; with None nothing is retried.
    """
    logged = set[str]()
    loop, retry_all_until = asyncio.get_running_loop(), -math.inf
    backoff = Backoff(first=WAIT_FIRST, cap=WAIT_CAP)
    async with AsyncExitStack() as stack:
        while True:
            try:
                result = await stack.enter_async_context(attempt())
                break
            except PreflightError as error:
                if on_wait is None:
                    raise
                if _is_transient(error):
                    retry_all_until = loop.time() + RBAC_SYNC_SECONDS
                elif loop.time() > retry_all_until:
                    raise
                message = str(error)
            on_wait(message)
            if message not in logged:
                logged.add(message)
                log.warning("%s%s", message, WAITING_SUFFIX)
            await asyncio.sleep(backoff.next())
        yield result


def _is_transient(error: PreflightError) -> bool:
    cause = error.__cause__
    if isinstance(cause, ApiServerCertificateError):
        return False
    return isinstance(cause, TimeoutError | Unreachable | ServerError | Throttled)
