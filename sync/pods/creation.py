"""Creates remote pods, and lets none run without the fields that restrict it.

The remote's API server may admit a pod without some of its fields
(`translators.pods.pruned_fields`). The answer to each creation is compared with what was sent, at
the cost of no request:

- a pod without a field that restricts it is deleted again, and refused with `REASON`;
- what else is missing is for the caller to report.

Between creation and deletion such a pod could begin to run. So a pod with restricting fields that
supported servers are known to drop, and one that was refused before, is made as a dry run first. A
webhook of the remote that takes no dry runs (400) leaves it with the comparison afterwards.
"""

from __future__ import annotations

import logging

from sync.base.fair_cache import FairCache
from sync.kube.client import KubeClient
from sync.kube.errors import BadRequest
from sync.kube.resources import PODS
from sync.runtime.controller import ReconcileBlocked
from translators.fieldpaths import FieldMessage
from translators.objects import Object, name_of, namespace_of, uid_of
from translators.pods import pruned_fields

log = logging.getLogger(__name__)

#: ``status.reason`` of a pod that is not made because the remote drops what restricts it.
REASON = "RemoteDropsField"
#: Home pods remembered as refused; one that is forgotten is made and deleted once more.
REMEMBERED_MAX = 10_000


class PodCreator:
    """``client`` is the remote's. Every method raises what the API server raises."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        # UIDs of home pods that were refused.
        self._refused: FairCache[str, bool] = FairCache(REMEMBERED_MAX)

    async def dry_run(self, home: Object, sent: Object, *, namespace: str) -> None:
        """Raises Waiting where a dry run shows that the pod would lose what restricts it. Asks for
        none unless the pod needs it."""
        if not pruned_fields.needs_dry_run(sent) and uid_of(home) not in self._refused:
            return
        try:
            made = await self._client.create(PODS, sent, namespace=namespace, dry_run=True)
        except BadRequest as error:
            log.debug("pod %s: no dry run: %s", name_of(sent), error)
            return
        self._refuse(home, pruned_fields.pruned_fields(sent, made))

    async def check_created(self, home: Object, sent: Object, made: Object) -> list[FieldMessage]:
        """What the pod that was made has lost. Where that restricts it, deletes it and raises
        Waiting."""
        missing = pruned_fields.pruned_fields(sent, made)
        try:
            self._refuse(home, missing)
        except ReconcileBlocked:
            namespace = made["metadata"]["namespace"]
            await self._client.delete(PODS, name_of(made), namespace=namespace, uid=uid_of(made))
            raise
        return [it.field_message for it in missing]

    def _refuse(self, home: Object, missing: list[pruned_fields.PrunedField]) -> None:
        restricting = [it.location for it in missing if it.restricts]
        if restricting:
            self._refused.put(namespace_of(home), uid_of(home), True)
            raise ReconcileBlocked(
                REASON,
                f"the pod would run without {', '.join(restricting)}: "
                f"{pruned_fields.MESSAGE}; use a "
                "remote that keeps it, or take it out of the pod",
            )
        self._refused.pop(uid_of(home))
