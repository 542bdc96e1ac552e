"""Writes the statuses of home pods, each as a patch of the fields that differ.

The status of a pod that was deleted or replaced meanwhile is dropped: the watch event of that
change queues the key.
"""

from __future__ import annotations

import logging

from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import NotFound, UidMismatch
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import changes, object_fields
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)


class StatusWriter:
    """Puts the API server's answers into the cache of home pods."""

    def __init__(self, client: KubeClient, *, home_pods: Informer, events: EventRecorder) -> None:
        self._client = client
        self._home_pods = home_pods
        self._events = events
        self.writing = False
        """Whether the change being handled is a write of the bridge and nothing else."""

    async def write(
        self,
        home: Object,
        patch: Object,
        event: tuple[str, str] | None = None,
        *,
        warning: bool = True,
    ) -> bool:
        """Sends a strategic merge patch of the status; returns False if the pod no longer exists.

        ``event``: (reason, message) of an Event to record with it, of type Warning or, without
        ``warning``, Normal. Raises KubeError.
        """
        key = Key(namespace_of(home), name_of(home))
        body: Object = {"metadata": {"uid": uid_of(home)}, "status": patch}
        try:
            namespace, name = key
            written = await self._client.patch(
                PODS, name, body, namespace=namespace, subresource="status", kind="strategic"
            )
        except (NotFound, UidMismatch):
            log.debug("pod %s: deleted before its status was written", key)
            return False
        self.writing = _differ_only_in(patch, home, written)
        self._home_pods.observe_write(written)
        self.writing = False
        if event is not None:
            record = self._events.warn if warning else self._events.normal
            record(home, *event)
            fields = object_fields("Pod", home, cluster="home")
            changes.info("pod %s: %s: %s", key, *event, extra=fields)
        return True


def _differ_only_in(patch: Object, before: Object, after: Object) -> bool:
    """Whether the patch explains every difference: no other client's change came with it."""
    status = after.get("status") or {}
    for key, value in patch.items():
        # A list may begin with a replace directive.
        is_replaced = isinstance(value, list) and value[:1] == [{"$patch": "replace"}]
        if key != "conditions" and (value[1:] if is_replaced else value) != status.get(key):
            return False
    written = {condition["type"] for condition in patch.get("conditions") or ()}
    meta = [
        {k: v for k, v in metadata(obj).items() if k not in ("managedFields", "resourceVersion")}
        for obj in (before, after)
    ]
    rest = [_without(patch, written, obj) for obj in (before, after)]
    is_same = rest[0] == rest[1] and meta[0] == meta[1]
    return is_same and before.get("spec") == after.get("spec")


def _without(patch: Object, written: set[str], obj: Object) -> Object:
    """The status without the fields and conditions of the patch."""
    status = obj.get("status") or {}
    kept = {key: value for key, value in status.items() if key not in patch and key != "conditions"}
    conditions = status.get("conditions") or ()
    return {**kept, "conditions": [c for c in conditions if c["type"] not in written]}
