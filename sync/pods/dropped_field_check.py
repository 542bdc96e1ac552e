"""Checks that the remote's API server keeps the fields that restrict a pod.

The answer to each create request is compared with the request
(`translators.pods.fields_dropped_by_remote`): a pod without a field that restricts it is deleted
again, and rejected with `REASON`.

The pod could start before it is deleted. So a dry run precedes the create request of a pod with
restricting fields that supported servers are known to drop, and of a pod that was rejected before.
If a webhook of the remote does not support dry runs (400), only the comparison afterwards remains.
"""

from __future__ import annotations

import logging

from sync.base.namespace_fair_cache import FairCache
from sync.kube.api_errors import BadRequest
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.runtime.controller import ReconcileBlocked
from translators.field_paths import FieldMessage
from translators.object_accessors import Object, name_of, namespace_of, uid_of
from translators.pods import fields_dropped_by_remote

log = logging.getLogger(__name__)

#: ``status.reason`` of a pod that is not created because the remote drops a restricting field.
REASON = "RemoteDropsField"
#: Rejected home pods that are remembered; a forgotten one is created and deleted once more.
REJECTED_MAX = 10_000


class CreationCheck:
    """``client`` is the remote's. Every method raises KubeError."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        # UIDs of rejected home pods.
        self._rejected: FairCache[str, bool] = FairCache(REJECTED_MAX)

    async def dry_run(self, home: Object, sent: Object, *, namespace: str) -> None:
        """Sends a dry run, if the pod needs one. Raises ReconcileBlocked if the pod would lose a
        restricting field."""
        if not fields_dropped_by_remote.needs_dry_run(sent) and uid_of(home) not in self._rejected:
            return
        try:
            dry = await self._client.create(PODS, sent, namespace=namespace, dry_run=True)
        except BadRequest as error:
            log.debug("pod %s: dry run not supported: %s", name_of(sent), error)
            return
        self._check(home, fields_dropped_by_remote.pruned_fields(sent, dry))

    async def check_created(
        self, home: Object, sent: Object, created: Object
    ) -> list[FieldMessage]:
        """Returns the fields that the created pod lacks. If one of them restricts the pod, deletes
        the pod and raises ReconcileBlocked."""
        missing = fields_dropped_by_remote.pruned_fields(sent, created)
        try:
            self._check(home, missing)
        except ReconcileBlocked:
            name, namespace = name_of(created), namespace_of(created)
            await self._client.delete(PODS, name, namespace=namespace, uid=uid_of(created))
            raise
        return [it.field_message for it in missing]

    def _check(self, home: Object, missing: list[fields_dropped_by_remote.PrunedField]) -> None:
        restricting = [it.location for it in missing if it.restricts]
        if restricting:
            self._rejected.put(namespace_of(home), uid_of(home), True)
            raise ReconcileBlocked(
                REASON,
                f"remote: the API server drops {', '.join(restricting)}: "
                f"{fields_dropped_by_remote.MESSAGE}; use a remote "
                "that supports it, or remove it from the pod",
            )
        self._rejected.pop(uid_of(home))
