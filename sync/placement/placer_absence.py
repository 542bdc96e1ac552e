"""Releases held pods when no placer runs, so that they do not wait for ever.

The bridge looks at the placer's Lease every `LOOK_SECONDS`. If the Lease exists and no placer has
renewed it for `ABSENT_SECONDS`, by the bridge's own clock, the bridge removes the gate of each held
pod, with an Event: home's scheduler then decides by what the pod itself requires. Without the
permissions (`bridge placement render --release-by`) held pods wait for the placer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sync.base.resource_version import version_of
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration
from sync.kube.api_errors import Conflict, Forbidden, KubeError, NotFound
from sync.kube.api_resources import LEASES, PODS
from sync.kube.client import KubeClient
from sync.placement import placer_lease
from sync.runtime.event_recorder import EventRecorder
from translators.merge_patch import merge_patch
from translators.object_accessors import Object, metadata, name_of, namespace_of
from translators.ownership_labels import LABEL_PLACEMENT
from translators.placement import placed_pod
from translators.placement.placement_policy import PENDING

log = logging.getLogger(__name__)

LOOK_SECONDS, ABSENT_SECONDS = 15.0, 60.0
#: Seconds until the next look without the permission.
FORBIDDEN_SECONDS = 300.0
#: The reason of the Event.
NO_PLACER = "NoPlacerRuns"


class PlacerAbsence:
    """The task of one bridge, which looks only while ``is_active``: while home has policies."""

    def __init__(self, context: ControllerContext, is_active: Callable[[], bool]) -> None:
        self._is_active = is_active
        self._account: KubeClient = context.account
        self._events: EventRecorder = context.events
        self._seen = ""
        self._since = 0.0

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        return Declaration("placer-absence", run=self._run)

    async def _run(self) -> None:
        while True:
            seconds = LOOK_SECONDS
            try:
                if self._is_active() and await self._is_absent():
                    await self._release_all()
            except Forbidden as error:
                seconds = FORBIDDEN_SECONDS
                log.debug("home: pods that wait for a placer are not released: %s", error)
            except KubeError as error:
                log.warning("home: cannot look for the placer: %s", error)
            await asyncio.sleep(seconds)

    async def _is_absent(self) -> bool:
        """Whether there was a placer, and none runs."""
        name, namespace = placer_lease.NAME, placer_lease.NAMESPACE
        lease = await self._account.find(LEASES, name, namespace=namespace)
        now = asyncio.get_running_loop().time()
        if lease is None:
            return False
        if version_of(lease) != self._seen:
            self._seen, self._since = version_of(lease), now
        return now - self._since >= ABSENT_SECONDS

    async def _release_all(self) -> None:
        page = await self._account.list(PODS, labels=f"{LABEL_PLACEMENT}={PENDING}")
        for pod in page.items:
            if placed_pod.has_gate(pod):
                await self._release(pod)

    async def _release(self, pod: Object) -> None:
        changed = placed_pod.released(pod, None, "no placer runs")
        patch = {
            "metadata": {
                **merge_patch(metadata(pod), metadata(changed)),
                "resourceVersion": version_of(pod),
            },
            "spec": merge_patch(pod["spec"], changed["spec"], exact=frozenset({"schedulingGates"})),
        }
        try:
            await self._account.patch(PODS, name_of(pod), patch, namespace=namespace_of(pod))
        except (Conflict, NotFound):
            return  # A placer, another bridge or the owner was faster.
        message = (
            "the placer's Lease has expired; the scheduler decides by the pod's own requirements"
        )
        self._events.warn({"apiVersion": "v1", "kind": "Pod", **pod}, NO_PLACER, message)
