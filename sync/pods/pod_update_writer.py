"""Sends changes of a home pod to its remote pod, each to the subresource that accepts it.

- An ephemeral container is sent when the ConfigMaps and Secrets to which it refers have copies. A
  container that refers to a reserved name is rejected with one Event. Its fields that the remote's
  API server drops are reported as an Event (`translators.pods.fields_dropped_by_remote`).
- A rejection by the API server, also where it lacks the subresource, is reported as one Event and
  raised for a retry. For a resize, the next plan also sets a condition
  (`translators.pods.resize_condition`).
- A resize that succeeded is recorded in the remote pod, so that it is not sent again.
- An update that the remote accepts and reverts (its admission webhooks change images or labels
  back) is not sent again while it stays the same, and counts as observed: the remote has decided. A
  restart forgets this and tries once more.
- An update that another client of the remote sets back is repeated at growing intervals
  (`sync.base.repeated_writes`), and counts as observed until then.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple, get_args

from sync.base.namespace_fair_cache import FairCache
from sync.base.repeated_writes import OVERWRITES, REPORTED, RepeatedWrites, overwritten_message
from sync.cache.store import Key
from sync.declaration.controller_context import ControllerContext
from sync.kube.api_errors import Forbidden, Invalid, NotFound
from sync.kube.api_resources import PODS
from sync.mirror.copy_controller import CopyController
from sync.pods import action_planner
from sync.pods.actions import Update
from sync.references.content_digest import digest
from sync.runtime.controller import ReconcileBlocked
from sync.runtime.log_fields import changes, object_fields
from translators import pod_security
from translators.object_accessors import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.pods import (
    fields_dropped_by_remote,
    last_applied_home_values,
    optional_references,
    references,
    remote_pod,
    resize_condition,
)
from translators.pods.resize_condition import ResizeRejection
from translators.pods.update import Subresource

log = logging.getLogger(__name__)


class _Path(NamedTuple):
    """A remote pod or one of its subresources."""

    uid: str
    subresource: Subresource


class PodUpdater:
    """Sends updates, and puts the API server's answers into the cache of remote pods."""

    def __init__(self, context: ControllerContext, copies: CopyController) -> None:
        self._client = context.remote
        self._policy = context.policy
        self._remote_pods = context.remote_pods
        self._watches = context.watches
        self._namespaces = context.namespaces
        self._references = context.references
        self._copies = copies
        self._events = context.events
        self._rejected: FairCache[_Path, ResizeRejection] = FairCache()
        # Digests of patches: a patch has up to 256 KiB of annotations.
        self._ineffective: FairCache[_Path, str] = FairCache()
        self._repeated: RepeatedWrites[_Path] = RepeatedWrites()

    async def send(self, home: Object, update: Update) -> float | None:
        """Returns after how many seconds the pod has to be planned again, because the remote
        accepted the update and reverted it, or because it must not be sent yet; None if no such
        plan is needed. Raises KubeError, and ReconcileBlocked as `CopyController.ensure`."""
        path, patch_digest = _Path(update.uid, update.subresource), digest(update.patch)
        if self._ineffective.get(path) == patch_digest:
            return None
        if wait := self._repeated.seconds_left(path, patch_digest):
            return wait
        key, sent = Key(namespace_of(home), name_of(home)), update
        if update.subresource == "ephemeralcontainers":
            references = self._references.keys_of(home)
            if self._watches.get(HomeNamespace(key.namespace)) is None or not all(
                map(self._references.is_readable, references)
            ):
                # `PodController.requeue_namespace` or `requeue_reference` queues the key again.
                return None
            resolved = await self._resolved(home, update)
            if resolved is None:
                self._ineffective.put(key.namespace, path, patch_digest)
                return None
            sent = resolved
        changed = await self._send(key, home, update, sent)
        self._rejected.pop(path)
        self._remote_pods.observe_write(changed)
        pruned = fields_dropped_by_remote.pruned_fields(update.patch, changed)
        if update.subresource == "ephemeralcontainers" and pruned:
            # The container runs already, and the API cannot remove it.
            message = "; ".join(str(it.field_message) for it in pruned)
            self._events.warn(home, "FieldDropped", message)
        if update.subresource == "resize":
            # Without the record, the next plan would revert changes by the remote's admission.
            record = Update(update.uid, last_applied_home_values.record_resources_patch(home))
            changed = await self._patch(key, record)
            self._remote_pods.observe_write(changed)
        is_reverted = update in action_planner.needed_updates(home, changed, self._policy)
        text = "updated in the remote"
        if is_reverted:
            self._ineffective.put(key.namespace, path, patch_digest)
            text = "the remote accepts an update and reverts it"
        elif self._repeated.sent(key.namespace, path, patch_digest) == REPORTED:
            self._events.warn(home, OVERWRITES, overwritten_message("the remote pod"))
        changes.info("pod %s: %s", key, text, extra=object_fields("Pod", home, cluster="remote"))
        return 0.0 if is_reverted else None

    async def _send(self, key: Key, home: Object, update: Update, sent: Update) -> Object:
        """Sends the patch. A rejection is reported and raised."""
        try:
            return await self._patch(key, sent)
        except NotFound as error:
            if not update.subresource or not await self._exists(key, update):
                raise
            message = f"remote: the API server has no subresource {update.subresource} of pods"
            self._report(key, home, update, message, server_message=error.message)
            raise Invalid(message, side=error.side, what=error.what, code=error.code) from error
        except (Forbidden, Invalid) as error:
            message = f"remote: the API server rejects the update: {error.message}"
            if pod_security.is_violation(error.message):
                namespace = HomeNamespace(key.namespace)
                message += f"; {self._namespaces.explain_pod_security(namespace)}"
            self._report(key, home, update, message, server_message=error.message)
            raise

    def _report(
        self, key: Key, home: Object, update: Update, message: str, *, server_message: str = ""
    ) -> None:
        """Records a rejection, and reports it if it is not the last one again."""
        path = _Path(update.uid, update.subresource)
        previous = self._rejected.get(path)
        rejection = resize_condition.classify_resize_rejection(
            update.patch, message, server_message=server_message
        )
        self._rejected.put(key.namespace, path, rejection)
        if previous is None or previous.message != message:
            self._events.warn(home, "UpdateRefused", message)

    async def _exists(self, key: Key, update: Update) -> bool:
        """Whether the remote pod exists, so that a 404 is about the subresource."""
        namespace = self._policy.identity.remote_namespace(HomeNamespace(key.namespace))
        remote = await self._client.find(PODS, key.name, namespace=namespace)
        return remote is not None and uid_of(remote) == update.uid

    async def _resolved(self, home: Object, update: Update) -> Update | None:
        """The update of ephemeral containers without references that must not be resolved in the
        remote; None if a container is rejected, which is reported as an Event."""
        added = update.patch["spec"]["ephemeralContainers"]
        names = {container["name"] for container in added}
        wanted = (home.get("spec") or {}).get("ephemeralContainers") or ()
        spec = {"ephemeralContainers": [it for it in wanted if it["name"] in names]}
        if reserved := references.reserved_secrets(spec):
            message = f"Secret {', '.join(reserved)}: {remote_pod.RESERVED_SECRET_MESSAGE}"
            self._events.warn(home, "UpdateRefused", message)
            return None
        try:
            omitted = await self._copies.ensure({**home, "spec": spec})
        except ReconcileBlocked as blocked:
            self._report(Key(namespace_of(home), name_of(home)), home, update, blocked.message)
            raise
        changed, dropped = optional_references.remove_optional_references(
            update.patch["spec"], omitted
        )
        if dropped:
            self._events.warn(home, "FieldDropped", "; ".join(map(str, dropped)))
        return replace(update, patch={**update.patch, "spec": changed})

    def rejected_resize(self, remote: Object) -> ResizeRejection | None:
        """The last rejected resize of the remote pod, unless a later one succeeded."""
        return self._rejected.get(_Path(uid_of(remote), "resize"))

    def forget(self, remote_uid: str) -> None:
        """Forgets the updates of a remote pod that was deleted."""
        for subresource in get_args(Subresource):
            path = _Path(remote_uid, subresource)
            self._rejected.pop(path)
            self._ineffective.pop(path)
            self._repeated.forget(path)

    def ineffective(self, remote: Object) -> dict[Subresource, str]:
        """The digests of the patches that the remote accepted and reverted, and of those that must
        not be repeated yet, by subresource."""
        paths: tuple[Subresource, ...] = get_args(Subresource)
        known = {path: self._ineffective.get(_Path(uid_of(remote), path)) for path in paths}
        delayed = {path: self._repeated.delayed(_Path(uid_of(remote), path)) for path in paths}
        known |= {path: found[0] for path, found in delayed.items() if found is not None}
        return {path: found for path, found in known.items() if found is not None}

    def seconds_until_repetition(self, remote: Object) -> float | None:
        """Seconds until an update may be repeated; None if none has to wait."""
        paths: tuple[Subresource, ...] = get_args(Subresource)
        delayed = [self._repeated.delayed(_Path(uid_of(remote), path)) for path in paths]
        return min((delay[1] for delay in delayed if delay is not None), default=None)

    async def _patch(self, key: Key, update: Update) -> Object:
        namespace = self._policy.identity.remote_namespace(HomeNamespace(key.namespace))
        meta = {**update.patch.get("metadata", {}), "uid": update.uid}
        patch, subresource = {**update.patch, "metadata": meta}, update.subresource or None
        return await self._client.patch(
            PODS, key.name, patch, namespace=namespace, subresource=subresource, kind="strategic"
        )
