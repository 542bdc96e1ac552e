"""Records Events about home objects in the background.

- Events of one namespace are written one after the other, in the order in which they were
  recorded; those of up to `WRITERS` namespaces at the same time. Namespaces take turns. So a
  webhook that hangs for the Events of one namespace delays no other namespace.
- An Event that cannot be written, or not in `WRITE_SECONDS`, is logged and dropped.
- At most `BACKLOG` Events wait. Further Events are dropped: a namespace with many waiting Events
  leaves places to the others (`FairQueue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable

from sync.base import exception_summary
from sync.base.fair_queue import FairQueue
from sync.kube.api_errors import AlreadyExists, KubeError
from sync.kube.api_resources import EVENTS
from sync.kube.client import KubeClient
from sync.kube.request_limiter import FLOW
from sync.runtime.workqueue import WorkQueue
from translators.mirror.event import MESSAGE_MAX, event_name
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)

#: How many Events may wait to be written.
BACKLOG = 1000
#: Namespaces whose Events are written at the same time: few of the places that all requests have.
WRITERS = 8
#: Seconds for an Event with all requests and retries: an API server that throttles answers most
#: requests in less.
WRITE_SECONDS = 60.0
#: ``source.component`` of the bridge's own Events.
COMPONENT = "cluster-bridge"


class EventRecorder:
    """Writes Events with ``node`` as ``source.host``. `run` is a task of the caller's group.

    ``reader`` gets Events, which a node may write and not read; None is ``client``.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        reader: KubeClient | None = None,
        node: str,
        now: Callable[[], str],
    ) -> None:
        self._client = client
        self._reader = reader or client
        self._node = node
        self._now = now
        # Namespaces with Events, these Events, and the places that they take until written.
        self._queue: WorkQueue[str] = WorkQueue(workers=WRITERS, group=str)
        self._waiting: defaultdict[str, deque[Object]] = defaultdict(deque)
        self._places: FairQueue[None] = FairQueue()
        # How many were dropped since the queue was last empty.
        self._dropped = 0

    @property
    def waiting(self) -> int:
        """How many Events wait to be written."""
        return self._places.held

    def warn(self, obj: Object, reason: str, message: str) -> None:
        """Records a Warning. The message states what keeps the object from working, and a
        remedy."""
        self._record(obj, "Warning", reason, message)

    def normal(self, obj: Object, reason: str, message: str) -> None:
        self._record(obj, "Normal", reason, message)

    async def run(self) -> None:
        """Writes queued Events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._work(), name=f"events-{number}")

    async def _work(self) -> None:
        while True:
            namespace = await self._queue.get()
            FLOW.set(namespace)
            event = self._waiting[namespace].popleft()
            self._places.release(namespace)
            if self._dropped and not self.waiting:
                log.warning("Events that were dropped since too many waited: %d", self._dropped)
                self._dropped = 0
            try:
                await self._write_logged(event)
            finally:
                if self._waiting[namespace]:
                    self._queue.add(namespace)
                else:
                    del self._waiting[namespace]
                self._queue.done(namespace)

    async def _write_logged(self, event: Object) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._write(event)
        except KubeError as error:
            log.warning("cannot record an Event: %s", error)
        except TimeoutError:
            log.warning("cannot record an Event: it was not written in %d s", WRITE_SECONDS)
        except Exception as error:  # noqa: BLE001  # nothing depends on an Event
            log.error(  # noqa: TRY400  # a traceback can quote the object
                "an Event: a defect in the bridge; please report it: %s",
                exception_summary.traced_summary(error),
            )

    async def _write(self, event: Object) -> None:
        try:
            await self._client.create(EVENTS, event, namespace=namespace_of(event))
        except AlreadyExists:
            # The same Event about the same object exists: increment its count, as the kubelet does.
            name, namespace = name_of(event), namespace_of(event)
            existing = await self._reader.get(EVENTS, name, namespace=namespace)
            repeated = {"count": int(existing.get("count") or 1) + 1, "lastTimestamp": self._now()}
            await self._client.patch(EVENTS, name, repeated, namespace=namespace)

    def _record(self, obj: Object, kind: str, reason: str, message: str) -> None:
        now = self._now()
        content = f"{uid_of(obj)}/{kind}/{reason}/{message}"
        namespace = namespace_of(obj) or "default"
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name(name_of(obj), content), "namespace": namespace},
            "involvedObject": {
                "apiVersion": obj.get("apiVersion", "v1"),
                "kind": obj.get("kind", ""),
                "name": name_of(obj),
                "namespace": namespace_of(obj),
                "uid": uid_of(obj),
                "resourceVersion": metadata(obj).get("resourceVersion", ""),
            },
            "type": kind,
            "reason": reason,
            "message": message[:MESSAGE_MAX],
            "source": {"component": COMPONENT, "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if self._places.try_acquire(namespace, BACKLOG):
            self._waiting[namespace].append(event)
            self._queue.add(namespace)
            return
        if not self._dropped:
            log.warning(
                "too many Events of namespace %s wait; dropped: %s %s", namespace, reason, message
            )
        self._dropped += 1
