"""Workers that take keys from a queue and reconcile each until it succeeds.

- One key is never reconciled twice at once; different keys are, up to ``workers``.
- A reconcile that raises is tried again with growing waits, for ever; where the same request
  cannot succeed (`KubeError.retryable`), with the longest at once. The first failure of a key
  is logged, the following ones, and what is only waited for, at debug level. A defect in the code
  (any other exception than `KubeError` or `Waiting`) is logged with its traceback and does not
  stop the other keys.
- `settled` lets another controller wait for the next result of a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from sync.kube.errors import KubeError
from sync.measures import Histogram
from sync.workqueue import WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Waiting(Exception):
    """A reconcile cannot go on yet, for a reason that is no failure of a request.

    ``reason`` is one word in CamelCase, for Events and status; ``message`` a sentence that says
    what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Controller(Generic[K]):
    """``reconcile(key)`` makes the world agree for one key, or raises."""

    def __init__(
        self, name: str, reconcile: Callable[[K], Awaitable[None]], *, workers: int
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue()
        self._reconcile = reconcile
        self._workers = workers
        self._failing: set[K] = set()
        self.results: Counter[str] = Counter()
        """How reconciles ended: success, waiting (`Waiting`), failure (`KubeError`) or defect."""
        self.worked = Histogram()
        """How long they took."""
        self._settled: defaultdict[K, list[asyncio.Future[None]]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<Controller {self.name} {self.queue!r}>"

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self.queue.close()

    async def settled(self, key: K) -> None:
        """Has the key reconciled once more and waits for that. Raises what it raised."""
        future = asyncio.get_running_loop().create_future()
        self._settled[key].append(future)
        self.queue.add(key)
        await future

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            # Who begins to wait while the key is being worked waits for the turn after this one.
            waiting = self._settled.pop(key, [])
            try:
                await self._attempt(key, waiting)
            finally:
                self.queue.done(key)
                for future in waiting:
                    if not future.done():
                        future.cancel()

    async def _attempt(self, key: K, waiting: list[asyncio.Future[None]]) -> None:
        try:
            with self.worked.timed():
                await self._reconcile(key)
        except (KubeError, Waiting) as error:
            self.results["failure" if isinstance(error, KubeError) else "waiting"] += 1
            self._failed(key, error, waiting)
        except Exception as error:  # one key's defect must not stop the others
            log.exception("%s %s: a defect in the bridge; please report it", self.name, key)
            self.results["defect"] += 1
            self._failed(key, error, waiting)
        else:
            self.results["success"] += 1
            self._failing.discard(key)
            self.queue.forget(key)
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _failed(self, key: K, error: Exception, waiting: list[asyncio.Future[None]]) -> None:
        wait = self.queue.retry(key, soon=not isinstance(error, KubeError) or error.retryable)
        # What is waited for is told where people look for it: in a status or an Event.
        quiet = key in self._failing or isinstance(error, Waiting)
        level = logging.DEBUG if quiet else logging.WARNING
        self._failing.add(key)
        log.log(level, "%s %s: %s (again in %.1f s)", self.name, key, error, wait)
        for future in waiting:
            if not future.done():
                future.set_exception(error)
