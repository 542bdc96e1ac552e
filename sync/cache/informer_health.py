"""Records whether an informer works or since when it fails, and computes its backoff.

Failures back off from 0.8 to 30 s with jitter (client-go's numbers), and to `UNREACHABLE_CAP`
if there is no response: a server that is down cannot be overloaded. The first failure of a kind is
logged as a warning, repetitions are not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from sync.base import exception_summary
from sync.base.backoff import Backoff
from sync.base.safe_callbacks import Callbacks
from sync.cache.watcher import BrokenWatchError
from sync.kube.api_errors import (
    ApiServerCertificateError,
    KubeError,
    MalformedResponse,
    Unreachable,
)
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.runtime.log_fields import name_fields

log = logging.getLogger(__name__)

#: The longest wait, in seconds, before a server that does not answer is tried again.
UNREACHABLE_CAP = 5.0


class InformerHealth:
    """The state of one informer's list and watch. Errors of the types ``quiet`` are logged
    at debug level: the owner of the informer reports them."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None,
        quiet: tuple[type[KubeError], ...],
        rng: random.Random,
    ) -> None:
        self.error: KubeError | None = None
        """Why the informer fails; None while it works."""
        self.failing_since: float | None = None
        """The loop's time of the first failure since it last worked; None while it works."""
        self._client = client
        self._resource = resource
        self._quiet = quiet
        self._handlers: Callbacks[[]] = Callbacks(
            f"{client.side}: watch of {resource}", on_defect=self.count_defect
        )
        self._fields = name_fields(resource.kind, namespace=namespace or "", cluster=client.side)
        self._backoff = Backoff(first=0.8, cap=30.0, rng=rng)
        self._unreachable = Backoff(first=0.8, cap=UNREACHABLE_CAP, rng=rng)

    def on_change(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when the informer begins to fail, when it fails with another type of
        error, and when it works again."""
        self._handlers.add(handler)

    def succeeded(self) -> None:
        self._backoff.reset()
        self._unreachable.reset()
        if self.error is None:
            return
        level = self._level(self.error, logging.INFO)
        message = "%s: %s can be watched again"
        log.log(level, message, self._client.side, self._resource, extra=self._fields)
        self.error = self.failing_since = None
        self._handlers()

    def failed(self, error: KubeError) -> float:
        """Records a failure. Returns the seconds to wait before the next attempt."""
        self._client.metrics.watch_failures[str(self._resource)] += 1
        known, self.error = self.error, error
        if known is None:
            self.failing_since = asyncio.get_running_loop().time()
        if type(known) is not type(error):
            level = self._level(error, logging.WARNING)
            log.log(level, "cannot watch %s: %s", self._resource, error, extra=self._fields)
            self._handlers()
        # The other backoff does not grow while the server does not answer.
        has_answered = isinstance(error, ApiServerCertificateError | MalformedResponse)
        is_unreachable = isinstance(error, Unreachable) and not has_answered
        return (self._unreachable if is_unreachable else self._backoff).next()

    def failed_to_parse(self, error: Exception) -> float:
        """As `failed`, for a response of an unexpected shape, which made the bridge raise."""
        self.count_defect()
        level = logging.DEBUG if isinstance(self.error, BrokenWatchError) else logging.ERROR
        message = "%s: %s: the response cannot be parsed: %s"
        trace = exception_summary.traced_summary(error)
        log.log(level, message, self._client.side, self._resource, trace, extra=self._fields)
        # Not chained: the error can quote the response.
        message = "the response has another shape than an API server's"
        what = f"watch {self._resource}"
        return self.failed(BrokenWatchError(message, side=self._client.side, what=what))

    def count_defect(self) -> None:
        """Counts an event that a defect kept from being stored or handled."""
        self._client.metrics.defects[str(self._resource)] += 1

    def _level(self, error: KubeError, level: int) -> int:
        return logging.DEBUG if isinstance(error, self._quiet) else level
