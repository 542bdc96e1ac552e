"""Events on home's objects, recorded in the background.

`EventRecorder.warn` and `normal` return at once. An Event that cannot be written is logged and
given up: it informs, nothing depends on it. At most `BACKLOG` wait; beyond that they are dropped,
newest first, so that a broken API server does not fill the memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sync.base import exceptions
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, KubeError
from sync.kube.resources import EVENTS
from translators.mirror.event import MESSAGE_MAX, event_name
from translators.objects import Object, metadata, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)

#: Events that wait to be written.
BACKLOG = 1000


class EventRecorder:
    """Writes Events that name ``node`` as their host. `run` is a task of the caller's group."""

    def __init__(self, client: KubeClient, *, node: str, now: Callable[[], str]) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(BACKLOG)

    def warn(self, about: Object, reason: str, message: str) -> None:
        """Something keeps the object from working; ``message`` says what to do."""
        self._record(about, "Warning", reason, message)

    def normal(self, about: Object, reason: str, message: str) -> None:
        """Something worth knowing happened to the object."""
        self._record(about, "Normal", reason, message)

    async def run(self) -> None:
        """Writes what waits, until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._write(event)
            except KubeError as error:
                log.warning("an Event could not be recorded: %s", error)
            except Exception as error:  # noqa: BLE001  # an Event informs, nothing depends on it
                log.error(  # noqa: TRY400  # a traceback can quote the object
                    "an Event: a defect in the bridge; please report it: %s",
                    exceptions.traced_summary(error),
                )

    async def _write(self, event: Object) -> None:
        try:
            await self._client.create(EVENTS, event, namespace=namespace_of(event))
        except AlreadyExists:
            # The same was said of the same object before: once more, as the kubelet counts.
            name, namespace = name_of(event), namespace_of(event)
            known = await self._client.get(EVENTS, name, namespace=namespace)
            again = {"count": int(known.get("count") or 1) + 1, "lastTimestamp": self._now()}
            await self._client.patch(EVENTS, name, again, namespace=namespace)

    def _record(self, about: Object, kind: str, reason: str, message: str) -> None:
        now = self._now()
        said = f"{uid_of(about)}/{kind}/{reason}/{message}"
        namespace = namespace_of(about) or "default"
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name(name_of(about), said), "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.get("apiVersion", "v1"),
                "kind": about.get("kind", ""),
                "name": name_of(about),
                "namespace": namespace_of(about),
                "uid": uid_of(about),
                "resourceVersion": metadata(about).get("resourceVersion", ""),
            },
            "type": kind,
            "reason": reason,
            "message": message[:MESSAGE_MAX],
            "source": {"component": "cluster-bridge", "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("too many Events wait to be recorded; dropped: %s %s", reason, message)
