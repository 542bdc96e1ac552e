"""Workers that take keys from a queue and reconcile each until it succeeds.

- One key is never reconciled twice at once; different keys are, up to ``workers``. Namespaces take
  turns, and none has all workers (`sync.runtime.workqueue`). Requests of a reconcile go by the same
  turns (`sync.kube.request_limiter`).
- A reconcile that raises is tried again with growing waits, for ever; where the same request
  cannot succeed (`KubeError.retryable`), with the longest at once. The first failure of a key
  is logged, the following ones, and what is only waited for, at debug level. A defect in the code
  (any other exception than `KubeError` or `ReconcileBlocked`) is logged with where it was raised,
  not with what the object holds (`sync.base.exceptions`), and does not stop the other keys;
  ``on_defect`` may tell it where people look.
- Reconciles that need not wait for anything let the loop do its other work every `SLICE` seconds.
- `reconcile_now` lets another controller wait for the next result of a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from sync.base import exceptions
from sync.base.histograms import Histogram
from sync.base.tracing import trace_reconcile
from sync.kube.errors import KubeError, NotLeaderError
from sync.kube.request_limiter import FLOW
from sync.runtime.log_fields import key_fields
from sync.runtime.workqueue import WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

#: How a reconcile can end: in order, for `ReconcileBlocked`, for `KubeError`, or for any other
#: exception.
RESULTS = ("success", "waiting", "failure", "defect")
#: Seconds for which a controller's workers hold the loop at most, one after the other, before
#: answers that have come meanwhile are read: a part of what a pod on an idle bridge takes.
SLICE = 0.005
#: A reconcile that took less than this surely waited for no server.
_QUICK = 0.001


class ReconcileBlocked(Exception):
    """A reconcile cannot go on yet, for a reason that is no failure of a request.

    ``reason`` is one word in CamelCase, for Events and status; ``message`` a sentence that says
    what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


async def _nothing(_: object, __: Exception) -> None:
    """Tells a defect nowhere but in the log."""


class Controller(Generic[K]):
    """``reconcile(key)`` makes the world agree for one key, or raises. ``on_defect`` raises
    nothing. ``kind`` is that of home's objects that keys stand for, for the log."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[None]],
        *,
        workers: int,
        on_defect: Callable[[K, Exception], Awaitable[None]] = _nothing,
        kind: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.queue: WorkQueue[K] = WorkQueue(workers=workers)
        self._reconcile = reconcile
        self._on_defect = on_defect
        self._workers = workers
        self._failing: set[K] = set()
        # From 0 on: a series that first appears with the value 1 is no increase to Prometheus.
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        """How reconciles ended (`RESULTS`)."""
        self.work_duration = Histogram()
        """How long they took."""
        # By worker: when it began with the key that it has; 0 where it has none.
        self._began = [0.0] * workers
        self._settled: defaultdict[K, list[asyncio.Future[None]]] = defaultdict(list)
        # Seconds for which the loop was held since it last did other work.
        self._busy = 0.0
        self._pausing = False

    def __repr__(self) -> str:
        return f"<Controller {self.name} {self.queue!r}>"

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(number), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    @property
    def unfinished_work(self) -> list[float]:
        """For how many seconds each key that is being worked has been."""
        now = monotonic()
        return [now - began for began in self._began if began]

    async def reconcile_now(self, key: K) -> None:
        """Has the key reconciled once more and waits for that. Raises what it raised."""
        future = asyncio.get_running_loop().create_future()
        self._settled[key].append(future)
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
            # Who begins to wait while the key is being worked waits for the turn after this one.
            waiting = self._settled.pop(key, ()) if self._settled else ()
            started = working[number] = monotonic()
            try:
                try:
                    await reconcile(key)
                except (KubeError, ReconcileBlocked) as error:
                    self._failed(key, error, waiting)
                except Exception as error:  # noqa: BLE001  # one key's defect must not stop the others
                    self._tell_defect(key, error)
                    await self._on_defect(key, error)
                    self._failed(key, error, waiting)
                else:
                    self._succeeded(key, waiting)
                took = monotonic() - started
                self.work_duration.observe(took)
                if took < _QUICK:
                    self._busy += took
                    while self._busy > SLICE:
                        await self._pause()
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
        # What is waited for is told where people look for it: in a status or an Event.
        # So is a write that is not ours to make just now.
        quiet = key in self._failing or isinstance(error, ReconcileBlocked | NotLeaderError)
        level = logging.DEBUG if quiet else logging.WARNING
        self._failing.add(key)
        said = (
            str(error)
            if isinstance(error, KubeError | ReconcileBlocked)
            else exceptions.summary(error)
        )
        fields = key_fields(getattr(getattr(key, "resource", None), "kind", self.kind), key, error)
        log.log(level, "%s %s: %s (again in %.1f s)", self.name, key, said, wait, extra=fields)
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def _tell_defect(self, key: K, error: Exception) -> None:
        level = logging.DEBUG if key in self._failing else logging.ERROR
        log.log(
            level,
            "%s %s: a defect in the bridge; please report it: %s",
            self.name,
            key,
            exceptions.traced_summary(error),
            extra=key_fields(self.kind, key),
        )

    async def _pause(self) -> None:
        """Lets the loop do its other work. Workers that it wakes in one round share a slice."""
        if not self._pausing:
            self._pausing = True
            asyncio.get_running_loop().call_soon(self._paused)
        await asyncio.sleep(0)

    def _paused(self) -> None:
        self._pausing, self._busy = False, 0.0
