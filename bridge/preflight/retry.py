"""The checks of a join before clusters that may be away.

A person in the foreground is told at once. A bridge that something supervises (it has a health
port) waits in the process instead: ended and started again, it would be tried ever more seldom, and
in a pod of a cluster not for minutes after the remote's return. It waits for what passes by itself:
no answer, or one of 429 and 5xx. All else ends it either way: a credential that is not accepted, a
right that lacks, a certificate that is not trusted. But an API server that has just come back
refuses what it will allow when it has read its rules: that counts `BACK_SECONDS` after it was away.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.base.settings import JoinSettings
from bridge.preflight import cluster_facts
from bridge.preflight.cluster_facts import Found, Told
from sync.base.backoff import Backoff
from sync.kube.client import KubeClient
from sync.kube.errors import ApiServerCertificateError, ServerError, Throttled, Unreachable

log = logging.getLogger(__name__)

#: The first wait before clusters that were away are asked again, and the longest, in seconds.
WAIT_FIRST, WAIT_CAP = 1.0, 10.0
#: Seconds for an API server to read its rules (RBAC) when it has started.
BACK_SECONDS = 30.0
#: How a line ends that tells of such a wait; `bridge.install.rollout` looks for it in a pod's log.
WAITED = "; this bridge waits for it"


@dataclass(frozen=True, slots=True)
class Both:
    """The two clusters of a join, and what the checks found."""

    home: KubeClient
    remote: KubeClient
    found: Found


@asynccontextmanager
async def checked(
    settings: JoinSettings, *, told: Told, waits: Callable[[str], None] | None
) -> AsyncIterator[Both]:
    """Both clusters when the checks hold. Raises PreflightError.

    ``waits`` is told why, each time that one is away; None where that is an end, too. What was told
    before is not told again.
    """
    said = set[str]()

    def once(line: str) -> None:
        if line not in said:
            said.add(line)
            told(line)

    loop, away_until = asyncio.get_running_loop(), -math.inf
    backoff = Backoff(first=WAIT_FIRST, cap=WAIT_CAP)
    async with AsyncExitStack() as stack:
        while True:
            try:
                both = await _checked(settings, stack, once)
                break
            except PreflightError as error:
                if waits is None:
                    raise
                if _passes(error):
                    away_until = loop.time() + BACK_SECONDS
                elif loop.time() > away_until:
                    raise
                why = str(error)
            waits(why)
            if why not in said:
                said.add(why)
                log.warning("%s%s", why, WAITED)
            await asyncio.sleep(backoff.next())
        yield both


async def _checked(settings: JoinSettings, stack: AsyncExitStack, told: Told) -> Both:
    """One attempt; the clients stay open in the stack where it succeeds."""
    async with AsyncExitStack() as tried:
        remote = await tried.enter_async_context(
            cluster_facts.connected(settings.remote, side="remote", told=told)
        )
        home = await tried.enter_async_context(
            cluster_facts.connected(settings.home, side="home", told=told)
        )
        found = await cluster_facts.check(settings, home=home, remote=remote, told=told)
        await stack.enter_async_context(tried.pop_all())
        return Both(home, remote, found)


def _passes(error: PreflightError) -> bool:
    why = error.__cause__
    if isinstance(why, ApiServerCertificateError):
        return False
    return isinstance(why, TimeoutError | Unreachable | ServerError | Throttled)
