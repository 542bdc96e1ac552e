"""Carries changes of a home pod to its remote pod, each on the path that takes it.

- An ephemeral container is sent when the ConfigMaps and Secrets that it refers to are there. One
  that refers to a reserved name is rejected with an Event, once. Fields of it that the remote's API
  server drops are an Event (`translators.pods.pruned_fields`).
- A refusal is told once, as an Event, and raised: the caller tries again. Of a resize the next plan
  makes a condition, too (`translators.pods.resize_condition`).
- A resize that was made is recorded at the remote pod, so that it is not sent again.
- A change that the remote takes and does not make (its admission webhooks change images or labels
  back) is not sent again while it is the same, and counts as acted on: the remote has decided. That
  is forgotten with the process; a new one tries once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple, get_args

from sync.base.fair_cache import FairCache
from sync.cache.store import Key
from sync.kube.errors import Forbidden, Invalid
from sync.kube.resources import PODS
from sync.mirror.copies import CopyController
from sync.pods import plan
from sync.pods.plan import Update
from sync.registration.context import ControllerContext
from sync.runtime.log_fields import object_fields
from translators.objects import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.pods import (
    last_applied,
    pruned_fields,
    references,
    remote_pod,
    resize_condition,
    unresolved_references,
)
from translators.pods.resize_condition import ResizeRejection
from translators.pods.update import Subresource

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Updates remembered as refused or without effect.
REMEMBERED_MAX = 10_000


class _Path(NamedTuple):
    """A remote pod, or the subresource of it that takes a kind of update."""

    uid: str
    subresource: Subresource


class PodUpdater:
    """Sends updates, and puts the API server's answers into the cache of remote pods."""

    def __init__(self, context: ControllerContext, copies: CopyController) -> None:
        self._client = context.remote
        self._policy = context.policy
        self._remote_pods = context.remote_pods
        self._watches = context.watches
        self._copies = copies
        self._events = context.events
        # What was told of updates that were refused, and those that had no effect.
        self._refused: FairCache[_Path, ResizeRejection] = FairCache(REMEMBERED_MAX)
        self._futile: FairCache[_Path, Object] = FairCache(REMEMBERED_MAX)

    async def send(self, home: Object, update: Update) -> bool:
        """Whether the remote accepted the update and undid it, so that the pod is to be planned
        again. Raises what the API server raises, and Waiting where a reference clashes."""
        path = _Path(update.uid, update.subresource)
        if self._futile.get(path) == update.patch:
            return False
        key, sent = Key(namespace_of(home), name_of(home)), update
        if update.subresource == "ephemeralcontainers":
            if self._watches.get(HomeNamespace(key.namespace)) is None:
                return False  # `PodController.requeue_namespace` brings the key back.
            checked = await self._resolved(home, update)
            if checked is None:
                self._futile.put(key.namespace, path, update.patch)
                return False
            sent = checked
        try:
            changed = await self._patch(key, sent)
        except (Forbidden, Invalid) as error:
            message = f"the remote cluster refuses the change: {error.message}"
            before = self._refused.get(path)
            refusal = resize_condition.classify_resize_rejection(
                update.patch, message, server_message=error.message
            )
            self._refused.put(key.namespace, path, refusal)
            if before is None or before.message != message:
                self._events.warn(home, "UpdateRefused", message)
            raise
        self._refused.pop(path)
        self._remote_pods.observe_write(changed)
        if update.subresource == "ephemeralcontainers" and (
            dropped := pruned_fields.pruned_fields(update.patch, changed)
        ):
            # It runs already, and the API removes no ephemeral container.
            self._events.warn(
                home, "FieldDropped", "; ".join(str(it.field_message) for it in dropped)
            )
        if update.subresource == "resize":
            # Of what the remote's admission made of it, nothing is to be resized back.
            record = Update(update.uid, last_applied.record_resources_patch(home))
            changed = await self._patch(key, record)
            self._remote_pods.observe_write(changed)
        undone = update in plan.updates(home, changed, self._policy)
        if undone:
            self._futile.put(key.namespace, path, update.patch)
            said = "pod %s: the remote cluster accepts an update and undoes it"
        else:
            said = "pod %s: updated in the remote"
        changes.info(said, key, extra=object_fields("Pod", home, cluster="remote"))
        return undone

    async def _resolved(self, home: Object, update: Update) -> Update | None:
        """The ephemeral containers with references that may be resolved in the remote; None where
        one is rejected, which is recorded as an Event."""
        added = update.patch["spec"]["ephemeralContainers"]
        names = {container["name"] for container in added}
        wanted = (home.get("spec") or {}).get("ephemeralContainers") or ()
        spec = {"ephemeralContainers": [it for it in wanted if it["name"] in names]}
        if reserved := references.reserved_secrets(spec):
            told = f"Secret {', '.join(reserved)}: {remote_pod.RESERVED_SECRET_MESSAGE}"
            self._events.warn(home, "UpdateRefused", told)
            return None
        omitted = await self._copies.ensure({**home, "spec": spec})
        changed, dropped = unresolved_references.remove_optional_references(
            update.patch["spec"], omitted
        )
        if dropped:
            self._events.warn(home, "FieldDropped", "; ".join(map(str, dropped)))
        return replace(update, patch={**update.patch, "spec": changed})

    def rejected_resize(self, remote: Object) -> ResizeRejection | None:
        """The last resize of the remote pod that was refused, unless one was taken since."""
        return self._refused.get(_Path(uid_of(remote), "resize"))

    def ineffective(self, remote: Object) -> dict[Subresource, Object]:
        """The updates of the remote pod that the remote accepted and undid, by their path."""
        paths: tuple[Subresource, ...] = get_args(Subresource)
        known = {path: self._futile.get(_Path(uid_of(remote), path)) for path in paths}
        return {path: patch for path, patch in known.items() if patch is not None}

    async def _patch(self, key: Key, update: Update) -> Object:
        namespace = self._policy.identity.remote_namespace(HomeNamespace(key.namespace))
        meta = {**update.patch.get("metadata", {}), "uid": update.uid}
        return await self._client.patch(
            PODS,
            key.name,
            {**update.patch, "metadata": meta},
            namespace=namespace,
            subresource=update.subresource or None,
            kind="strategic",
        )
