"""Writes the statuses of home pods, each as a patch of what differs.

A write of ours is no news: while the informer of home's pods tells one that changed nothing else,
`PodStatuses.writing` is set, so that a pod which is refused is not tried again for its telling. A
pod that is gone, or is another one by now, takes no status, and its own event says so.
"""

from __future__ import annotations

import logging
from typing import Any

from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.kube.errors import NotFound, UidMismatch
from sync.kube.resources import PODS
from sync.runtime.event_recorder import EventRecorder
from sync.runtime.log_fields import object_fields
from translators.objects import Object, metadata, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")


class StatusWriter:
    """``home_pods`` is told what the API server answers."""

    def __init__(self, client: KubeClient, *, home_pods: Informer, events: EventRecorder) -> None:
        self._client = client
        self._home_pods = home_pods
        self._events = events
        self.writing = False
        """Whether the change that is being told is our write and nothing more."""

    async def write(
        self,
        home: Object,
        patch: Object,
        event: tuple[str, str] | None = None,
        *,
        warning: bool = True,
    ) -> bool:
        """Whether the pod was still there to take the strategic merge patch of its status.

        ``event``: (reason, message) of an Event to record with it, of type Warning or, without
        ``warning``, Normal. Raises what the API server raises.
        """
        key = Key(namespace_of(home), name_of(home))
        body: Object = {"metadata": {"uid": uid_of(home)}, "status": patch}
        try:
            written = await self._client.patch(
                PODS,
                key.name,
                body,
                namespace=key.namespace,
                subresource="status",
                kind="strategic",
            )
        except (NotFound, UidMismatch):
            log.debug("pod %s: its status is of no use any more", key)
            return False
        self.writing = _differ_only_in(patch, home, written)
        self._home_pods.observe_write(written)
        self.writing = False
        if event is not None:
            record = self._events.warn if warning else self._events.normal
            record(home, *event)
            told = object_fields("Pod", home, cluster="home")
            changes.info("pod %s: %s: %s", key, *event, extra=told)
        return True


def _differ_only_in(patch: Object, before: Object, after: Object) -> bool:
    """Whether a patch of the status explains all that is different, so that nobody else's change
    came with it."""
    status = after.get("status") or {}
    if any(_sent(patch[key]) != status.get(key) for key in patch if key != "conditions"):
        return False
    told = {condition["type"] for condition in patch.get("conditions") or ()}
    meta = [
        {k: v for k, v in metadata(obj).items() if k not in ("managedFields", "resourceVersion")}
        for obj in (before, after)
    ]
    same = _without(patch, told, before) == _without(patch, told, after) and meta[0] == meta[1]
    return same and before.get("spec") == after.get("spec")


def _sent(value: Any) -> Any:
    """What the patch makes of a field; of a map it names only some."""
    replaced = isinstance(value, list) and value[:1] == [{"$patch": "replace"}]
    return value[1:] if replaced else value


def _without(patch: Object, told: set[str], obj: Object) -> Object:
    """The status without what the patch says, and the conditions without those that it tells."""
    status = obj.get("status") or {}
    kept = {key: value for key, value in status.items() if key not in patch and key != "conditions"}
    found = status.get("conditions") or ()
    return {**kept, "conditions": [c for c in found if c["type"] not in told]}
