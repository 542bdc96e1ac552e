"""Workers that take keys from a work queue and reconcile each until it succeeds.

- No key is reconciled twice at the same time; up to ``workers`` different keys are. Namespaces take
  turns, and none gets all workers (`sync.runtime.workqueue`); the requests of a reconcile take the
  same turns (`sync.kube.request_limiter`).
- A reconcile that raises is retried for ever, with growing waits; if the same request cannot
  succeed (not `KubeError.retryable`), with the longest wait at once.
- The first failure of a key is logged as a warning; repetitions and `ReconcileBlocked` at debug
  level. Any other exception than `KubeError` and `ReconcileBlocked` is a defect: it is logged with
  the place that raised it and without the object's content (`sync.base.exception_summary`), passed
  to ``on_defect``, and does not stop other keys.
- Workers whose reconciles do not wait yield to the event loop every `SLICE` seconds, and after each
  reconcile of `_QUICK` seconds or more. None starts another reconcile while a key waits for that.
- `reconcile_now` lets another controller wait for the next result of a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from sync.base import clock, exception_summary
from sync.base.histograms import Histogram
from sync.base.tracing import trace_reconcile
from sync.kube.api_errors import KubeError, NotLeaderError
from sync.kube.request_limiter import FLOW
from sync.runtime.log_fields import key_fields
from sync.runtime.workqueue import WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: The results of a reconcile: it returned, or raised `ReconcileBlocked`, `KubeError`, or any other
#: exception.
RESULTS = ("success", "waiting", "failure", "defect")
#: Seconds for which a controller's workers may occupy the event loop, one after the other, before
#: it reads the responses that have arrived: a fraction of the latency of a pod on an idle bridge.
SLICE = 0.005
#: Seconds; a faster reconcile did not wait for a server. A slower one may have waited; it counts as
#: this long.
_QUICK = 0.001


class ReconcileBlocked(Exception):
    """Raised by a reconcile that cannot proceed yet, although no request failed; it is retried.

    ``reason`` is one CamelCase word for Events and status, ``message`` a sentence with the
    next step.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


def not_cached(obj: str) -> ReconcileBlocked:
    """Returns the error for an object of the remote that exists and that the cache does not
    hold."""
    return ReconcileBlocked(
        "RemoteNotCached",
        f"remote: {obj} exists, but the bridge cannot follow it: it has no memory left for objects "
        "of the remote, or another client has removed the labels of the bridge",
    )


async def _ignore_defect(_: object, __: Exception) -> None:
    """The default of ``on_defect``: a defect is only logged."""


class Controller(Generic[K]):
    """``reconcile(key)`` brings one key to its desired state, or raises. ``on_defect`` must not
    raise. ``kind`` is the kind of the home objects that keys name, for the log."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[None]],
        *,
        workers: int,
        on_defect: Callable[[K, Exception], Awaitable[None]] = _ignore_defect,
        kind: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.queue: WorkQueue[K] = WorkQueue(workers=workers)
        self._reconcile = reconcile
        self._on_defect = on_defect
        self._workers = workers
        self._failing: set[K] = set()
        # From 0: a series that first appears with the value 1 is no increase to Prometheus.
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        """How many reconciles ended in each of `RESULTS`."""
        self.work_duration = Histogram()
        """How long reconciles took."""
        # By worker: when its current reconcile began; 0 if it is idle.
        self._began = [0.0] * workers
        self._awaited: defaultdict[K, list[asyncio.Future[None]]] = defaultdict(list)
        # Seconds for which the workers have occupied the event loop since they last yielded.
        self._busy = 0.0
        self._yielding = False
        # The workers that wait for the next slice with a key.
        self._held = 0

    def __repr__(self) -> str:
        return f"<Controller {self.name} {self.queue!r}>"

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(number), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    @property
    def unfinished_work(self) -> list[float]:
        """The seconds so far of each reconcile in progress."""
        now = clock.now()
        return [now - began for began in self._began if began]

    async def reconcile_now(self, key: K) -> None:
        """Queues the key and waits for the end of its next reconcile. Raises the reconcile's
        exception."""
        future = asyncio.get_running_loop().create_future()
        self._awaited[key].append(future)
        self.queue.add(key)
        await future

    async def _work(self, number: int) -> None:
        queue, flow, working = self.queue, None, self._began
        reconcile = trace_reconcile(self._reconcile, self.name, self.kind)
        key: K | None = None
        while True:
            if key is None:
                key = await queue.get()
            if (group := queue.working[key]) != flow:
                FLOW.set(flow := group)
            waiting: Sequence[asyncio.Future[None]] = ()
            try:
                while self._busy > SLICE:
                    await self._next_slice()
                # Callers of `reconcile_now` from now on wait for the reconcile after this one.
                waiting = self._awaited.pop(key, ()) if self._awaited else ()
                started = working[number] = clock.now()
                try:
                    await reconcile(key)
                except (KubeError, ReconcileBlocked) as error:
                    self._failed(key, error, waiting)
                except Exception as error:  # noqa: BLE001  # a defect must not stop other keys
                    self._log_defect(key, error)
                    await self._on_defect(key, error)
                    self._failed(key, error, waiting)
                else:
                    self._succeeded(key, waiting)
                took = clock.now() - started
                self.work_duration.observe(took)
                self._busy += min(took, _QUICK)
                if took >= _QUICK or self._busy > SLICE or self._held:
                    # Workers that wait for the slice go first.
                    await asyncio.sleep(0)
            except BaseException:
                working[number] = 0.0
                queue.done(key)
                for future in waiting:
                    future.cancel()
                raise
            if (key := queue.done_and_get(key)) is None:
                working[number] = 0.0

    def _succeeded(self, key: K, waiting: Sequence[asyncio.Future[None]]) -> None:
        self.results["success"] += 1
        if self._failing:
            self._failing.discard(key)
            self.queue.forget(key)
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _failed(self, key: K, error: Exception, waiting: Sequence[asyncio.Future[None]]) -> None:
        result = "waiting" if isinstance(error, ReconcileBlocked) else "failure"
        self.results[result if isinstance(error, KubeError | ReconcileBlocked) else "defect"] += 1
        wait = self.queue.retry(key, soon=not isinstance(error, KubeError) or error.retryable)
        # A blocked reconcile reports in a status or an Event; a write without the lease is expected
        # while leadership changes.
        quiet = key in self._failing or isinstance(error, ReconcileBlocked | NotLeaderError)
        level = logging.DEBUG if quiet else logging.WARNING
        self._failing.add(key)
        message = (
            str(error)
            if isinstance(error, KubeError | ReconcileBlocked)
            else exception_summary.summary(error)
        )
        fields = key_fields(getattr(getattr(key, "resource", None), "kind", self.kind), key, error)
        log.log(level, "%s %s: %s (again in %.1f s)", self.name, key, message, wait, extra=fields)
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def _log_defect(self, key: K, error: Exception) -> None:
        level = logging.DEBUG if key in self._failing else logging.ERROR
        log.log(
            level,
            "%s %s: a defect in the bridge; please report it: %s",
            self.name,
            key,
            exception_summary.traced_summary(error),
            extra=key_fields(self.kind, key),
        )

    async def _next_slice(self) -> None:
        """Yields to the event loop. Workers that resume in one iteration of the loop share a
        slice."""
        if not self._yielding:
            self._yielding = True
            asyncio.get_running_loop().call_soon(self._reset_slice)
        self._held += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._held -= 1

    def _reset_slice(self) -> None:
        self._yielding, self._busy = False, 0.0
