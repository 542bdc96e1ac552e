"""Checks of informers for readiness: each returns the problem, or ""."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sync.cache.informer import Informer


def unread_lists(informers: Iterable[Informer], where: str) -> str:
    """Whether a list has not been read since the start; ``where`` completes "lists of ..."."""
    waiting = sum(not informer.synced.is_set() for informer in informers)
    return f"{waiting} lists of {where} are not read yet" if waiting else ""


def lasting_outage(informers: Iterable[Informer], seconds: float) -> str:
    """Whether a watch has failed for longer than ``seconds``."""
    now = asyncio.get_running_loop().time()
    for informer in informers:
        since = informer.failing_since
        if since is not None and now - since > seconds:
            return f"{informer.resource} cannot be watched: {informer.error}"
    return ""
